"""Number types: names, sizes, rounding, and which type each part of an attention kernel uses.

Narrow types come from ml_dtypes. Their own sums and products accumulate in the narrow type, so nothing here or above
computes in them: values are *rounded* to the narrow type and carried in float32, which holds every one of them exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

DTYPES: dict[str, np.dtype] = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def dtype_of(given: Any) -> np.dtype:
    """The NumPy dtype of a name in `DTYPES`, a dtype or a scalar type.

    Raises TypeError for any other type, since no kernel here can store it.

    >>> dtype_of("bfloat16").itemsize, dtype_of(np.float32).name
    (2, 'float32')
    """
    if isinstance(given, str) and given in DTYPES:
        return DTYPES[given]
    try:
        dtype = None if given is None else np.dtype(given)
    except TypeError:
        dtype = None
    if dtype is not None and not dtype.isnative and dtype.newbyteorder("=") in _NAMES:
        raise TypeError(
            f"{given!r} has its bytes in the other order than this machine; convert the array first: "
            "x.astype(x.dtype.newbyteorder('='))"
        )
    if dtype not in _NAMES:
        raise TypeError(f"{given!r} is not a floating type that kernels store; choose one of {', '.join(DTYPES)}")
    return dtype


def name_of(dtype: Any) -> str:
    """The short name of a dtype: `name_of(np.dtype(ml_dtypes.float8_e4m3fn))` is 'e4m3'."""
    return _NAMES[dtype_of(dtype)]


def carrier(dtype: Any) -> np.dtype:
    """The type that values of `dtype` are computed in: float64 for float64, else float32."""
    return DTYPES["float64"] if dtype_of(dtype) == DTYPES["float64"] else DTYPES["float32"]


def largest(dtype: Any) -> float:
    """The largest finite value: 65504 for float16, 448 for e4m3."""
    return float(ml_dtypes.finfo(dtype_of(dtype)).max)


def unit_roundoff(dtype: Any) -> float:
    """Half the gap above 1: the largest relative error of one rounding (2**-24 for float32, 2**-8 for bfloat16).

    >>> unit_roundoff("bfloat16") == 2.0**-8
    True
    """
    return float(ml_dtypes.finfo(dtype_of(dtype)).eps) / 2


def round_to(x: np.ndarray, dtype: Any) -> np.ndarray:
    """`x` rounded to the nearest value of `dtype`, carried in `x`'s own type (which must be as wide).

    Values beyond the range become inf, or NaN in e4m3, which has no inf. No warning: overflow of a narrow type is
    one of the things that a simulator is there to show. float64 reaches bfloat16 and the 8-bit types by way of
    float32, so a value within 2**-25 of a tie may round as the tie does.

    >>> round_to(np.array([1.0, 1.001], np.float32), "bfloat16")
    array([1., 1.], dtype=float32)
    """
    dtype = dtype_of(dtype)
    if dtype == x.dtype:
        return x
    with np.errstate(over="ignore", invalid="ignore"):
        return x.astype(dtype).astype(x.dtype)


@dataclass(frozen=True)
class Precision:
    """Which type each part of a kernel uses.

    storage: tensors in HBM.  matrix: inputs of the matrix products.  accumulate: sums, the softmax and its state.
    p: the probabilities as they enter P V (and as standard attention stores S and P in HBM).
    """

    storage: np.dtype
    matrix: np.dtype
    accumulate: np.dtype
    p: np.dtype

    def __post_init__(self) -> None:
        for part in ("storage", "matrix", "accumulate", "p"):
            object.__setattr__(self, part, dtype_of(getattr(self, part)))
        if self.accumulate.itemsize < 4:
            raise TypeError(f"accumulation in {name_of(self.accumulate)} loses the sum; use float32 or float64")

    @classmethod
    def of(cls, storage: Any, *, matrix: Any = None, accumulate: Any = None, p: Any = None) -> Precision:
        """The usual choice for inputs of type `storage`: products in that type, sums in float32 (float64 for float64).

        >>> name_of(Precision.of("float16").accumulate)
        'float32'
        """
        stored = dtype_of(storage)
        return cls(
            storage=stored,
            matrix=stored if matrix is None else matrix,
            accumulate=carrier(stored) if accumulate is None else accumulate,
            p=stored if p is None else p,
        )
