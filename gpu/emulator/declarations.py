"""Types and shapes of shared arrays, read off their declarations."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np

DTYPES: dict[str, Any] = {
    "float": np.float32,
    "double": np.float64,
    "int": np.int32,
    "unsigned": np.uint32,
    "unsigned int": np.uint32,
    "half": np.float16,
    "__half": np.float16,
    "nv_bfloat16": ml_dtypes.bfloat16,
    "__nv_bfloat16": ml_dtypes.bfloat16,
    "unsigned char": np.uint8,
}


def declared(text: str, name: str) -> tuple[Any, tuple[int, ...]]:
    """Type and shape of a shared array as the text declares it; bytes where the text is no help.

    >>> declared("__shared__ float tile[8][9];", "tile")
    (<class 'numpy.float32'>, (8, 9))
    """
    kinds = "|".join(sorted(map(re.escape, DTYPES), key=len, reverse=True))
    found = re.search(rf"__shared__\b[^;]*?\b({kinds})\s[^;]*?\b{re.escape(name)}\s*((?:\[[^]]*\])*)", text)
    if not found:
        return np.uint8, (-1,)
    sizes = re.findall(r"\[\s*([^]]*?)\s*\]", found[2])
    shape = tuple(int(s) for s in sizes) if all(s.isdigit() for s in sizes) else (-1,)
    return DTYPES[found[1]], shape


def dynamic_names(text: str) -> list[str]:
    """The names that a text gives to its dynamic shared memory.

    >>> dynamic_names("extern __shared__ __align__(16) float s[];")
    ['s']
    """
    return re.findall(r"\bextern\b[^;{}]*?\b__shared__\b[^;{}]*?\b([A-Za-z_]\w*)\s*\[\s*\]", text)
