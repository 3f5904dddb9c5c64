"""Stepping: a launch that stops at every barrier of one block, and shows what that block knows there."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpu.emulator.build import build
from gpu.emulator.declarations import declared
from gpu.emulator.kernel import Function, Size
from gpu.emulator.launch import Running
from gpu.emulator.limits import MAX_THREADS, STATIC_SHARED_NBYTES, dimensions, dynamic_nbytes, modes
from gpu.emulator.loaded import load
from gpu.emulator.memory import bounds_of, bytes_at
from gpu.emulator.settings import Settings
from gpu.emulator.source import SourceError, without_comments
from gpu.emulator.trace import Trace


@dataclass(frozen=True)
class BarrierStep:
    """One block at one barrier.

    Attributes
    ----------
    index, line, source
        Which barrier of the block this is, and where it stands in the text.
    shared
        Shared memory by name, typed and shaped as the text declares it where that can be read off (bytes elsewhere).
        What nobody wrote is NaN, or absurd.
    tensors
        The array arguments as they are now, by name.
    watched
        Watched variables by name, one float64 for each thread of the block.
    """

    index: int
    line: int
    source: str
    shared: dict[str, np.ndarray]
    tensors: dict[str, np.ndarray]
    watched: dict[str, np.ndarray]


def with_watch(text: str, watch: Mapping[int, Sequence[str]]) -> tuple[str, list[str]]:
    """The text with the variables put down at the barriers of those lines.

    Raises
    ------
    SourceError
        There is no ``__syncthreads()`` on such a line.
    """
    lines, code = text.split("\n"), without_comments(text).split("\n")
    names: list[str] = []
    for number, variables in watch.items():
        at = code[number - 1].find("__syncthreads()") if 0 < number <= len(lines) else -1
        if at < 0:
            raise SourceError(f"variables are watched at barriers, and line {number} has no __syncthreads()")
        calls = ""
        for variable in variables:
            if variable not in names:
                names.append(variable)
            calls += f"refsim_watch({names.index(variable)}, (double)({variable})), "
        line = lines[number - 1]
        lines[number - 1] = f"{line[:at]}({calls}__syncthreads()){line[at + len('__syncthreads()') :]}"
    return "\n".join(lines), names


class Steps:
    """Iterate over it for the steps; afterwards `trace` has what the whole launch moved."""

    def __init__(self, running: Running, watched: list[str]) -> None:
        self._running, self._watched = running, watched
        self.trace: Trace | None = None

    def __iter__(self) -> Iterator[BarrierStep]:
        with self._running.prepared() as running:
            control, blocks = running.control, running.settings.step_block
            nbytes = sum(control.shared[i].nbytes for i in range(control.nshared))
            control.step_shared = running.memory.map(nbytes)
            control.watched = running.memory.map(8 * MAX_THREADS * max(1, len(self._watched)))
            come, control.step_write = os.pipe()
            control.step_read, go = os.pipe()
            control.step_block = blocks
            try:
                self._forget()
                running.start()
                os.close(control.step_write)
                os.close(control.step_read)
                index = 0
                while os.read(come, 1):
                    yield self._step(index)
                    self._forget()
                    index += 1
                    os.write(go, b"g")
            finally:
                os.close(come)
                os.close(go)
            running.wait()
            self.trace = running.finish().trace

    def _forget(self) -> None:
        count = MAX_THREADS * len(self._watched)
        bytes_at(self._running.control.watched, 8 * count).view(np.float64)[:] = np.nan

    def _step(self, index: int) -> BarrierStep:
        running, control = self._running, self._running.control
        text = running.loaded.module.text
        shared, at = {}, control.step_shared
        for i in range(control.nshared):
            nbytes = control.shared[i].nbytes
            dtype, shape = declared(text, running.shared_names[i])
            raw = bytes_at(at, nbytes).copy()
            size = np.dtype(dtype).itemsize
            fits = nbytes % size == 0 and (shape == (-1,) or nbytes == size * int(np.prod(shape)))
            shared[running.shared_names[i]] = raw.view(dtype).reshape(shape) if fits else raw
            at += nbytes
        threads = int(np.prod(running.block))
        columns = bytes_at(control.watched, 8 * MAX_THREADS * len(self._watched)).view(np.float64)
        values = columns.reshape(len(self._watched), MAX_THREADS)[:, :threads].copy()
        lines = text.splitlines()
        return BarrierStep(
            index,
            control.step_line,
            lines[control.step_line - 1].strip() if 0 < control.step_line <= len(lines) else "",
            shared,
            {n: self._tensor(n, a) for n, a in self._named()},
            dict(zip(self._watched, values, strict=True)),
        )

    def _named(self) -> list[tuple[str, np.ndarray]]:
        return [(self._running.entry.names[i], a) for i, a in self._running.arguments.arrays.items()]

    def _tensor(self, name: str, array: np.ndarray) -> np.ndarray:
        """An argument as the kernel sees it now."""
        first = self._running.memory.pointer(name, array)
        low, high = bounds_of(array)
        buffer = bytes_at(first - (array.ctypes.data - low), high - low)
        return np.ndarray(array.shape, array.dtype, buffer.data, array.ctypes.data - low, array.strides).copy()


def steps(
    kernel: Function,
    grid: Size,
    block: Size,
    args: Sequence[Any],
    *,
    shared_mem: int = 0,
    stop: Sequence[int] = (0, 0, 0),
    watch: Mapping[int, Sequence[str]] | None = None,
    checks: Mapping[str, str] | str | None = None,
) -> Steps:
    """Launch a kernel step by step: one `BarrierStep` for every barrier that block `stop` reaches.

    Parameters
    ----------
    watch
        Variables to look at, by the line of the barrier: ``{12: ("m", "l")}`` shows each thread's ``m`` and ``l`` as
        they are at the ``__syncthreads()`` of line 12. Any expression that is a number there will do.

    >>> import numpy as np
    >>> from gpu import emulator
    >>> kernel = emulator.RawKernel('''extern "C" __global__ void f(const float* x, float* y) {
    ...     __shared__ float s[4];
    ...     s[threadIdx.x] = x[threadIdx.x];
    ...     __syncthreads();
    ...     y[threadIdx.x] = s[3 - threadIdx.x];
    ... }''', "f")
    >>> x, y = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    >>> for step in steps(kernel, 1, 4, (x, y), watch={4: ("threadIdx.x",)}):
    ...     print(step.line, step.shared["s"], step.watched["threadIdx.x"])
    4 [0. 1. 2. 3.] [0. 1. 2. 3.]
    >>> y
    array([3., 2., 1., 0.], dtype=float32)
    """
    if not isinstance(kernel, Function):
        raise TypeError(f"kernel must be a RawKernel or module.get_function(name), got {type(kernel).__name__}")
    source = kernel.module
    text, names = with_watch(source.code, watch or {})
    built = build(text, source.options, name_expressions=source.name_expressions, compiler=source.compiler)
    loaded = load(built, text=source.code)
    shape = dimensions("grid", grid), dimensions("block", block)
    number = _block_number(stop, shape[0])
    limit = max(STATIC_SHARED_NBYTES, kernel.max_dynamic_shared_size_bytes)
    chosen = Settings(kernel.checks if checks is None else modes(checks), shared_limit=limit, step_block=number)
    return Steps(Running(loaded, loaded.entries[kernel.name], *shape, args, dynamic_nbytes(shared_mem), chosen), names)


def _block_number(stop: Sequence[int], grid: tuple[int, int, int]) -> int:
    """A block by its index, as blocks are counted. Raises ValueError for one that the grid doesn't have."""
    index = tuple(stop) if isinstance(stop, Sequence) else (stop,)
    index += (0,) * (3 - len(index))
    if len(index) > 3 or not all(isinstance(i, int) and 0 <= i < size for i, size in zip(index, grid, strict=True)):
        raise ValueError(f"stop must be a block of a grid of {grid}, such as (0, 0, 0); got {stop!r}")
    return index[0] + grid[0] * (index[1] + grid[1] * index[2])
