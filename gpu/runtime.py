"""Where a kernel runs: the few things that calling code needs of CuPy on a GPU, or of the emulator on any CPU."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np


class Kernel(Protocol):
    """A compiled kernel: CuPy's calling form."""

    def __call__(self, grid: Any, block: Any, args: Sequence[Any], *, shared_mem: int = 0) -> None: ...


class Module(Protocol):
    """Compiled text."""

    def get_function(self, name: str) -> Kernel: ...


class Runtime(Protocol):
    """A place to compile and run kernels, with arrays of its own kind."""

    name: str

    def module(self, code: str, options: Sequence[str] = (), name_expressions: Sequence[str] = ()) -> Module:
        """Compile CUDA C++ text."""
        ...

    def asarray(self, array: np.ndarray) -> Any:
        """The array where kernels can reach it: C-contiguous, not copied where that isn't needed."""
        ...

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """An array with nothing in it yet."""
        ...

    def to_numpy(self, array: Any) -> np.ndarray:
        """The array's values on the host."""
        ...


class EmulatorRuntime:
    """Kernels on the CPU, on NumPy arrays."""

    name = "emulator"

    def __init__(self, *, traced: bool = True, checks: Any = None) -> None:
        self.traced, self.checks = traced, checks

    def module(self, code: str, options: Sequence[str] = (), name_expressions: Sequence[str] = ()) -> Module:
        from gpu.emulator import RawModule

        return RawModule(
            code=code, options=options, name_expressions=name_expressions, traced=self.traced, checks=self.checks
        )

    def asarray(self, array: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(array)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        from gpu.emulator import empty

        return empty(shape, dtype)

    def to_numpy(self, array: np.ndarray) -> np.ndarray:
        return array


def gpu_present() -> bool:
    """Is CuPy installed, with a device that it can use?"""
    return not why_no_gpu()


def why_no_gpu() -> str:
    """What is missing for kernels to run on a GPU; nothing where they can."""
    if importlib.util.find_spec("cupy") is None:
        return "CuPy is not installed (pip install 'refsim[gpu]' for CUDA 13, or 'refsim[gpu-cuda12]')"
    try:
        import cupy

        return "" if cupy.cuda.runtime.getDeviceCount() > 0 else "CuPy finds no GPU"
    except Exception as error:  # CuPy raises errors of several kinds where the driver is missing
        return f"CuPy is installed and can't be used: {type(error).__name__}: {error}"


def get(name: str = "auto") -> Runtime:
    """The runtime of that name: "cupy", "emulator", or "auto" for CuPy where there is a GPU.

    >>> get("emulator").name
    'emulator'

    Raises
    ------
    ValueError
        No such runtime.
    RuntimeError
        CuPy was asked for, and there is no GPU that it can use.
    """
    if name not in ("auto", "cupy", "emulator"):
        raise ValueError(f"no runtime {name!r}; there are 'auto', 'cupy' and 'emulator'")
    if name == "emulator":
        return EmulatorRuntime()
    if not gpu_present():
        if name == "cupy":
            raise RuntimeError(f"runtime 'cupy' needs CuPy and a GPU: {why_no_gpu()}; 'emulator' runs anywhere")
        return EmulatorRuntime()
    runtime: Runtime = importlib.import_module("gpu.cupy_runtime").CupyRuntime()
    return runtime
