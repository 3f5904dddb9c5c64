"""Checks of what a caller gives: each returns it in the form that the code goes on with, or says what is wrong.

Errors name the argument, what was expected of it and what was given.
"""

from __future__ import annotations

from collections.abc import Collection
from math import isfinite
from numbers import Real
from operator import index
from typing import Any

import numpy as np

from refsim.numerics import dtype_of


def whole_number(
    name: str,
    value: Any,
    least: int | None = None,
    or_else: str | None = None,
    wrong: type[Exception] = ValueError,
) -> int:
    """A count, size or index as Python's own int, whose products no width cuts short.

    or_else: what else the caller takes, for the error's text.
    Raises `wrong` for what is no whole number (True and False count nothing), ValueError for one below `least`.

    >>> whole_number("block_size", 2.5, 1)
    Traceback (most recent call last):
    ...
    ValueError: block_size must be a whole number from 1, got 2.5
    """
    number = value
    if type(value) is not int:
        try:
            number = None if isinstance(value, bool) else index(value)
        except TypeError:
            number = None
    if number is None or (least is not None and number < least):
        expected = "a whole number" if least is None else f"a whole number from {least}"
        also = "" if or_else is None else f", or {or_else}"
        raise (wrong if number is None else ValueError)(f"{name} must be {expected}{also}, got {value!r}")
    return number


def whole_numbers(name: str, values: Any) -> tuple[int, ...]:
    """A shape or a grid as a tuple. Raises TypeError for what is no whole number, ValueError for a negative one."""
    try:
        # Programs declare buffers by the thousand: plain ints need no call.
        sizes = tuple([size if type(size) is int else whole_number(name, size) for size in values])
    except (TypeError, ValueError):  # no whole number, or nothing to walk through
        raise TypeError(f"{name} must be whole numbers, one an axis, got {values!r}") from None
    if sizes and min(sizes) < 0:
        raise ValueError(f"{name} can't be negative, got {sizes}")
    return sizes


def integers(
    name: str, values: Any, ndim: int, dtype: Any = None, *, wrong: type[Exception] = ValueError
) -> np.ndarray:
    """An array of integers with `ndim` axes: a copy of type `dtype`, which must hold them all, or by default as given.

    What is empty has no integers to show, and may be of any type.
    Raises `wrong` for another type or number of axes, ValueError for lists of unequal lengths and what doesn't fit.

    >>> integers("indices", [[3, 5]], 2, np.int32)
    array([[3, 5]], dtype=int32)
    """
    axes = "1 axis" if ndim == 1 else f"{ndim} axes"
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise ValueError(f"{name} must be integers with {axes}; rows differ in length: {error}") from None
    if array.size == 0:
        shape = array.shape if array.ndim == ndim else (0,) * ndim
        return np.empty(shape, np.int64 if dtype is None else dtype)
    if array.ndim != ndim or array.dtype.kind not in "iu":
        raise wrong(f"{name} must be integers with {axes}, got {array.dtype} of shape {array.shape}")
    if dtype is None:
        return array
    if not np.can_cast(array.dtype, dtype):
        outside = np.argwhere((array < np.iinfo(dtype).min) | (array > np.iinfo(dtype).max))
        if len(outside):
            first = tuple(outside[0].tolist())
            raise ValueError(f"{name} must fit {np.dtype(dtype)}; {name}{list(first)} is {array[first]}")
    return array.astype(dtype)


def check_array(name: str, array: Any) -> np.dtype:
    """The type of an array that holds floating numbers, on any device. Raises TypeError for anything else."""
    if not hasattr(array, "shape") or not hasattr(array, "dtype"):
        raise TypeError(f"{name} must be an array, got {type(array).__name__}")
    if not isinstance(array.dtype, np.dtype):
        raise TypeError(
            f"{name} must have a NumPy dtype, as arrays of NumPy and CuPy do, got {array.dtype} of "
            f"{type(array).__module__}; np.from_dlpack makes a NumPy array of it"
        )
    try:
        return dtype_of(array.dtype)
    except TypeError as error:
        raise TypeError(f"{name}: {error}") from None


def yes_or_no(name: str, value: Any) -> bool:
    """A flag as a bool. Raises TypeError for anything else, since a text such as "no" would count as a yes."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be True or False, got {value!r}")
    return bool(value)


def one_of(name: str, value: Any, known: Collection[str]) -> Any:
    """A word that is one of those known. Raises ValueError, which lists them, for anything else."""
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")
    return value


def is_finite(value: Any) -> bool:
    """Whether a value is a real number that a float can hold; True and False are none.

    >>> is_finite(-1), is_finite(True), is_finite(float("nan")), is_finite(10**400), is_finite("1")
    (True, False, False, False, False)
    """
    try:
        # The class of all real numbers alone would do, but takes long to ask.
        return isinstance(value, (float, int, Real)) and not isinstance(value, bool) and isfinite(value)
    except OverflowError:  # a whole number beyond every float
        return False


def is_real(dtype: np.dtype) -> bool:
    """Whether an array of that type holds real numbers; those of ml_dtypes, which NumPy calls void, are."""
    return dtype.kind not in "cOSUmM"


def is_positive(value: Any) -> bool:
    """Whether a value is a number above 0 that a float can hold.

    >>> is_positive(1.5), is_positive(0), is_positive(float("inf"))
    (True, False, False)
    """
    return is_finite(value) and float(value) > 0
