"""Kernels on an NVIDIA GPU by CuPy: modules, arrays, and time from the device's own clock."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from gpu.runtime import Module


class CompileError(RuntimeError):
    """The GPU's compiler refused the text; the message is its log."""


class LaunchFailed(RuntimeError):
    """The driver refused a launch, or a kernel went wrong on the device."""


class CupyRuntime:
    """CuPy on the current device and stream, behind the protocol of `gpu.runtime`."""

    name = "cupy"

    def __init__(self) -> None:
        try:
            import cupy
        except ImportError as error:
            raise RuntimeError(
                "runtime 'cupy' needs CuPy: pip install 'refsim[gpu]' (CUDA 13) or [gpu-cuda12]"
            ) from error
        self.cupy = cupy

    @functools.cached_property
    def device_name(self) -> str:
        """Such as "NVIDIA H200"."""
        properties = self.cupy.cuda.runtime.getDeviceProperties(self.cupy.cuda.Device().id)
        name = properties["name"]
        return name.decode() if isinstance(name, bytes) else str(name)

    @functools.cached_property
    def multiprocessors(self) -> int:
        """Streaming multiprocessors of the device."""
        return int(self.cupy.cuda.Device().attributes["MultiProcessorCount"])

    @functools.cached_property
    def shared_nbytes(self) -> int:
        """Shared memory that a block can have, once its kernel asks for it."""
        return int(self.cupy.cuda.Device().attributes["MaxSharedMemoryPerBlockOptin"])

    def module(self, code: str, options: Sequence[str] = (), name_expressions: Sequence[str] = ()) -> Module:
        """CUDA C++ text, compiled by NVRTC when its first kernel is asked for."""
        raw = self.cupy.RawModule(code=code, options=tuple(options), name_expressions=tuple(name_expressions) or None)
        return CupyModule(raw, self)

    def asarray(self, array: Any) -> Any:
        """On the device, C-contiguous."""
        if isinstance(array, np.ndarray) and array.dtype == ml_dtypes.bfloat16:
            # As 16-bit integers: every CuPy can move those.
            return self.cupy.ascontiguousarray(self.cupy.asarray(array.view(np.int16))).view(self.bfloat16)
        return self.cupy.ascontiguousarray(self.cupy.asarray(array))

    @functools.cached_property
    def bfloat16(self) -> Any:
        """The type of bfloat16 arrays: ml_dtypes', which CuPy 14 takes for its own."""
        return np.dtype(ml_dtypes.bfloat16)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """An array with nothing in it yet."""
        if np.dtype(dtype) == ml_dtypes.bfloat16:
            return self.cupy.empty(shape, np.int16).view(self.bfloat16)
        return self.cupy.empty(shape, np.dtype(dtype))

    def to_numpy(self, array: Any) -> np.ndarray:
        """The array's values on the host, once the stream has got that far."""
        if array.dtype == ml_dtypes.bfloat16:
            return np.asarray(array.view(np.int16).get()).view(ml_dtypes.bfloat16)
        return np.asarray(array.get())

    def synchronize(self) -> None:
        """Wait for everything launched so far. Raises LaunchFailed for what went wrong meanwhile."""
        try:
            self.cupy.cuda.get_current_stream().synchronize()
        except self.cupy.cuda.runtime.CUDARuntimeError as error:
            raise LaunchFailed(explain(str(error))) from error

    def seconds(
        self, run: Callable[[], object], *, repeats: int = 20, warm_up: int = 3, flush: Any = None
    ) -> list[float]:
        """The time on the device of each of `repeats` calls, between two events around it.

        flush: an array larger than the L2 cache, written before each call, so that no call finds its inputs there.
        """
        cuda = self.cupy.cuda
        for _ in range(warm_up):
            run()
        self.synchronize()
        events = [(cuda.Event(), cuda.Event()) for _ in range(repeats)]
        for begin, end in events:
            if flush is not None:
                flush.fill(0)
            begin.record()
            run()
            end.record()
        self.synchronize()
        return [cuda.get_elapsed_time(begin, end) / 1000 for begin, end in events]


def log_of(error: Exception) -> str:
    """A compiler's log, and what to do where it is the toolkit that is missing."""
    if "could not open source file" not in str(error):
        return str(error)
    return (
        f"{error}\nNVRTC needs the CUDA toolkit's headers: set CUDA_PATH to a toolkit, or install those of your CUDA "
        "(pip install nvidia-cuda-runtime nvidia-cuda-cccl for CUDA 13, nvidia-cuda-runtime-cu12 for 12)"
    )


class CupyModule:
    """A RawModule whose errors are ours."""

    def __init__(self, raw: Any, runtime: CupyRuntime) -> None:
        self._raw, self._runtime = raw, runtime
        self._functions: dict[str, Any] = {}

    def compile(self, log_stream: Any = None) -> None:
        """Compile now. Raises CompileError with the compiler's log."""
        try:
            self._raw.compile(log_stream)
        except self._runtime.cupy.cuda.compiler.CompileException as error:
            raise CompileError(log_of(error)) from error

    def get_function(self, name: str) -> CupyKernel:
        """A kernel by name."""
        if name not in self._functions:
            try:
                self._functions[name] = CupyKernel(self._raw.get_function(name), name, self._runtime)
            except self._runtime.cupy.cuda.compiler.CompileException as error:
                raise CompileError(log_of(error)) from error
        kernel: CupyKernel = self._functions[name]
        return kernel

    def get_global(self, name: str) -> Any:
        """Where a `__device__` variable lies."""
        return self._raw.get_global(name)


class CupyKernel:
    """A kernel whose launch errors are ours."""

    def __init__(self, raw: Any, name: str, runtime: CupyRuntime) -> None:
        self._raw, self.name, self._runtime = raw, name, runtime

    @property
    def max_dynamic_shared_size_bytes(self) -> int:
        """Dynamic shared memory that a launch may ask for."""
        return int(self._raw.max_dynamic_shared_size_bytes)

    @max_dynamic_shared_size_bytes.setter
    def max_dynamic_shared_size_bytes(self, nbytes: int) -> None:
        if nbytes != self._raw.max_dynamic_shared_size_bytes:
            self._raw.max_dynamic_shared_size_bytes = nbytes

    @property
    def attributes(self) -> dict[str, int]:
        """Registers, shared memory and so on, as the driver knows them."""
        return dict(self._raw.attributes)

    def __call__(self, grid: Any, block: Any, args: Sequence[Any], *, shared_mem: int = 0) -> None:
        """Launch on the current stream. Raises LaunchFailed, with what the driver's words mean."""
        try:
            self._raw(tuple(grid), tuple(block), tuple(args), shared_mem=shared_mem)
        except self._runtime.cupy.cuda.driver.CUDADriverError as error:
            raise LaunchFailed(explain(f"kernel {self.name!r}: {error}")) from error


OUTSIDE = "a kernel touched memory outside its tensors; run the same call on the emulator, which says where"
MEANINGS = {
    "INVALID_VALUE": "the grid, the block or the shared memory asked for is more than the device has",
    "OUT_OF_RESOURCES": "a block needs more registers or shared memory than a multiprocessor has; use a smaller tile",
    "NO_BINARY": "the kernel was compiled for another architecture",
    "ILLEGAL_ADDRESS": OUTSIDE,
    "illegal memory": OUTSIDE,
    "MISALIGNED": "a wide access was not aligned; run the same call on the emulator, which says where",
}


def explain(text: str) -> str:
    """A driver's message with what it means.

    >>> explain("CUDA_ERROR_OUT_OF_RESOURCES: too many resources requested")  # doctest: +ELLIPSIS
    'CUDA_ERROR_OUT_OF_RESOURCES: too many resources requested (a block needs more registers ...'
    """
    meaning = next((meaning for word, meaning in MEANINGS.items() if word in text), None)
    return text if meaning is None else f"{text} ({meaning})"
