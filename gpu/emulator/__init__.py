"""Run CUDA C++ kernels on any CPU and see every memory access.

>>> import numpy as np
>>> from gpu import emulator
>>> double = emulator.RawKernel('extern "C" __global__ void f(float* x) { x[threadIdx.x] *= 2; }', "f")
>>> x = np.arange(4, dtype=np.float32)
>>> double((1,), (4,), (x,))
>>> x
array([0., 2., 4., 6.], dtype=float32)
>>> double.trace.tensors["x"].read.nbytes
16
"""

from gpu.emulator.build import CompileError, cache_folder, clear_cache
from gpu.emulator.kernel import Function, RawKernel, RawModule
from gpu.emulator.limits import LaunchError
from gpu.emulator.memory import empty
from gpu.emulator.report import KernelError, Report
from gpu.emulator.run import run
from gpu.emulator.source import SourceError
from gpu.emulator.steps import BarrierStep, steps
from gpu.emulator.toolchain import CompilerNotFound
from gpu.emulator.trace import Row, TensorTraffic, Trace, Traffic

__all__ = [
    "BarrierStep",
    "CompileError",
    "CompilerNotFound",
    "Function",
    "KernelError",
    "LaunchError",
    "RawKernel",
    "RawModule",
    "Report",
    "Row",
    "SourceError",
    "TensorTraffic",
    "Trace",
    "Traffic",
    "cache_folder",
    "clear_cache",
    "empty",
    "run",
    "steps",
]
