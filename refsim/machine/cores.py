"""Programs of a launch need nothing of each other, so a run that nobody watches can spread them over the CPU's cores.

NumPy hands every matrix product to a BLAS library, which splits it over threads. A tile's product is too small for
that: two threads take as long as one, and the work between the products stays on one core. So here whole programs go to
threads, and the library is held to one thread meanwhile. They get the threads that the library had: a limit set for it
(OPENBLAS_NUM_THREADS, MKL_NUM_THREADS, threadpoolctl) is a limit here.

Counts and values don't depend on any of this: each batch of programs counts on its own and writes its own part.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from contextvars import copy_context
from functools import cache
from threading import Event, Lock
from typing import TYPE_CHECKING

from refsim.machine.steps import Step, Watch

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

Run = Generator[Step | None, None, None]

# Threads share Python's lock, which each takes between two operations of NumPy; more than these would wait for it.
MOST_THREADS = 4
# The library's limit belongs to the whole process, so one run at a time may set it and put it back.
_HOLDS_BLAS = Lock()


def threads(watch: Watch) -> int:
    """Threads that a run may use: 1 where somebody watches, or where no BLAS library can be held to one thread."""
    if not watch.silent:
        return 1
    return min(max((library.num_threads for library in _blas().lib_controllers), default=1), MOST_THREADS)


def side_by_side(runs: Sequence[Run], threads: int) -> Run:
    """Exhaust runs that need nothing of each other: on several threads, or one after another, as steps need it.

    What a run raises is raised here, the first in order; the others stop at their next step, or never begin.
    """
    if threads < 2 or len(runs) < 2 or not _HOLDS_BLAS.acquire(blocking=False):
        for run in runs:
            yield from run
        return
    try:
        stop = Event()
        with _blas().limit(limits=1), ThreadPoolExecutor(threads) as pool:
            # A thread begins with NumPy's default error state; the caller's is in its context.
            waiting = [pool.submit(copy_context().run, _exhaust, run, stop) for run in runs]
            try:
                for one in waiting:
                    one.result()
            finally:
                stop.set()
    finally:
        _HOLDS_BLAS.release()


def _exhaust(run: Run, stop: Event) -> None:
    with closing(run):
        while not stop.is_set():
            try:
                next(run)
            except StopIteration:
                return


@cache
def _blas() -> ThreadpoolController:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas")
