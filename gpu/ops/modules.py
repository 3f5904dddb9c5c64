"""Kernels compiled for a type and head size, once for each runtime."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from gpu.runtime import Module, Runtime
from refsim.attention import Plan
from refsim.numerics import DTYPES, Precision, dtype_of, name_of

KERNELS = Path(__file__).parent.parent / "kernels"
STORAGE_MACROS = {"float32": (), "float16": ("-DFLOAT16",), "bfloat16": ("-DBFLOAT16",)}

_modules: dict[tuple[Any, ...], Module] = {}


def check_types(plan: Plan, **arrays: Any) -> None:
    """Raise TypeError unless all arrays have one type that kernels store, and the precision is the usual one for it."""
    types = {name: array.dtype for name, array in arrays.items()}
    if len(set(types.values())) != 1:
        raise TypeError(f"the kernels read tensors of one type, got {', '.join(f'{n} {t}' for n, t in types.items())}")
    check_storage(plan.precision.storage)
    if plan.precision != Precision.of(next(iter(types.values()))):
        raise TypeError(f"the kernels compute with {Precision.of(next(iter(types.values())))}; got {plan.precision}")


def check_storage(dtype: Any) -> None:
    """Raise TypeError for a type that no kernel stores."""
    dtype_of(dtype)  # what the reference refuses, in its words
    if dtype not in [DTYPES[name] for name in STORAGE_MACROS]:
        raise TypeError(
            f"the kernels store {', '.join(STORAGE_MACROS)}, not {np.dtype(dtype)}; use refsim.attention for it"
        )


def macros(dtype: Any, *, aligned: bool, counted: bool = False, **sizes: int) -> tuple[str, ...]:
    """Compiler options that specialise a kernel.

    >>> macros("float16", aligned=True, HEAD_DIM=64)
    ('-DFLOAT16', '-DALIGNED', '-DHEAD_DIM=64')
    """
    flags = (
        *STORAGE_MACROS[name_of(dtype)],
        *(("-DALIGNED",) if aligned else ()),
        *(("-DCOUNTED",) if counted else ()),
    )
    return (*flags, *(f"-D{name}={value}" for name, value in sizes.items()))


def module(runtime: Runtime, file: str, options: tuple[str, ...]) -> Module:
    """A kernel file compiled with `options`, or the one compiled before."""
    # CuPy keeps compiled kernels by text and options, and doesn't look into headers.
    extra = (f"-DHEADERS=0x{header_digest(KERNELS)}",) if runtime.name == "cupy" else ()
    key = (runtime.name, getattr(runtime, "traced", None), str(getattr(runtime, "checks", None)), file, options, extra)
    if key not in _modules:
        code = (KERNELS / file).read_text()
        _modules[key] = runtime.module(code, ("--std=c++17", f"-I{KERNELS}", *options, *extra))
    return _modules[key]


@functools.cache
def header_digest(folder: Path) -> str:
    """A number that changes with any header of the kernels."""
    text = "\0".join(path.read_text() for path in sorted(folder.glob("*.cuh")))
    return hashlib.sha256(text.encode()).hexdigest()[:8]
