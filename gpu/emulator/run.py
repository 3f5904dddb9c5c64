"""`run`: compile and launch in one call, with everything that a launch can be asked for as arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpu.emulator.build import DYNAMIC_SHARED_NBYTES
from gpu.emulator.kernel import Function, RawKernel, Size
from gpu.emulator.launch import Outcome
from gpu.emulator.limits import modes
from gpu.emulator.settings import STACK_NBYTES


def run(
    kernel: Function | str,
    grid: Size,
    block: Size,
    args: Sequence[Any],
    *,
    name: str | None = None,
    options: Sequence[str] = (),
    shared_mem: int = 0,
    checks: Mapping[str, str] | str | None = None,
    workers: int | None = None,
    traced: bool = True,
    accesses: int = 0,
    barriers: bool = False,
    heat: bool = False,
    timeout: float | None = None,
    stack_nbytes: int = STACK_NBYTES,
    shared_limit: int = DYNAMIC_SHARED_NBYTES,
) -> Outcome:
    """Launch a kernel (a `Function`, or text and a name) and return its `Outcome`.

    Parameters
    ----------
    checks
        One mode for all checks, or a mapping from check to mode: "raise" stops the launch at the first finding and
        leaves every array as it was; "report" notes it and goes on; "ignore" does neither. There are out_of_bounds,
        misaligned, uninitialised, race, barrier, mask, deadlock, const_write, overflow, assertion and crash.
    workers
        Processes to spread the blocks over; by default one a core.
    traced
        For text: False compiles at plain speed, without counts and without the checks that watch memory.
    accesses
        Keep each warp access of the first so many blocks whole (``trace.accesses``).
    barriers
        Keep when each warp came to each barrier (``trace.barriers``).
    heat
        Count the reads of each element (``trace.heat``).
    timeout
        Seconds after which a launch is given up with TimeoutError.
    stack_nbytes
        Room for each thread's local variables.
    shared_limit
        Bytes of shared memory that the device would give a block.

    >>> import numpy as np
    >>> x = np.zeros(2, np.float32)
    >>> text = 'extern "C" __global__ void f(float* x) { x[threadIdx.x] = 1; }'
    >>> outcome = run(text, 1, 3, (x,), name="f", checks="report")
    >>> outcome.reports[0].check, outcome.reports[0].thread, x
    ('out_of_bounds', (2, 0, 0), array([1., 1.], dtype=float32))
    """
    if isinstance(kernel, str):
        if name is None:
            raise TypeError("run(text, ...) needs name=, the kernel to launch")
        kernel = RawKernel(kernel, name, options, traced=traced)
    if not isinstance(kernel, Function):
        raise TypeError(
            f"kernel must be a kernel's text, a RawKernel or module.get_function(name), got {type(kernel).__name__}"
        )
    return kernel.launch(
        grid,
        block,
        args,
        shared_mem=shared_mem,
        checks=kernel.checks if checks is None else modes(checks),
        workers=workers,
        keep_samples=accesses,
        keep_barriers=barriers,
        heat=heat,
        timeout=timeout,
        stack_nbytes=stack_nbytes,
        shared_limit=shared_limit,
    )
