"""What the loaders share: JSON objects, names held against each other, and arrays that may become float32."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float32

MOST_NAMED = 6


def json_object(where: Path | str, text: str | bytes) -> dict[str, Any]:
    """A JSON object; ValueError, saying where it stood, for anything else.

    >>> json_object("config.json", "[1]")
    Traceback (most recent call last):
    ValueError: config.json: expected a JSON object {...}, found a list
    """
    try:
        found = json.loads(text)
    except ValueError as error:  # not JSON, or not even text
        raise ValueError(f"{where}: not JSON ({error})") from error
    if not isinstance(found, dict):
        raise ValueError(f"{where}: expected a JSON object {{...}}, found a {type(found).__name__}")
    return found


def check_names(where: Path, kind: str, wanted: set[str], given: set[str]) -> None:
    """Raise ValueError unless the file has just the arrays (or tensors: `kind`) that the config asks for."""
    if wanted != given:
        raise ValueError(
            f"{where}: {kind} missing: {_some(wanted - given)}; {kind} not understood: {_some(given - wanted)}"
        )


def check_layers(where: Path, layers: int, arrays: int) -> None:
    """Raise ValueError for more layers than there are arrays, before a name is made up for each."""
    if layers > arrays:
        raise ValueError(f"{where}: the config says {layers} layers, there are {arrays} arrays in all")


def as_float32(where: Path, name: str, array: np.ndarray) -> Float32[np.ndarray, "*shape"]:
    """Weights of a floating type as float32. NotImplementedError for others: whole numbers are quantized weights."""
    if array.dtype.kind != "f":
        raise NotImplementedError(
            f"{where}: {name} holds {array.dtype}; weights are floating numbers (quantized ones are not supported yet)"
        )
    return array.astype(np.float32, copy=False)


def _some(names: Iterable[str]) -> str:
    """The first few names, and how many more there are.

    >>> _some("abcdefgh")
    "['a', 'b', 'c', 'd', 'e', 'f'] and 2 more"
    """
    found = sorted(names)
    more = len(found) - MOST_NAMED
    return f"{found[:MOST_NAMED]} and {more:,} more" if more > 0 else str(found)
