"""Counts as Python's own integers, whose products no width cuts short."""

from __future__ import annotations

from operator import index
from typing import Any


def whole(name: str, value: Any) -> int:
    """`value` as an int. Raises ValueError, by `name`, for what is no whole number.

    >>> whole("block_size", 2.5)
    Traceback (most recent call last):
    ...
    ValueError: block_size is 2.5; expected a whole number
    """
    try:
        return index(value)
    except TypeError:
        raise ValueError(f"{name} is {value!r}; expected a whole number") from None
