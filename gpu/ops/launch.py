"""Launches that are ready to go, and what they moved once they went."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np

from gpu.ops.tiles import THREADS
from gpu.runtime import Module, Runtime
from refsim.attention import Plan
from refsim.machine import Key, Ledger, Work

R = TypeVar("R")

STATIC_SHARED_NBYTES = 48 * 1024


@dataclass
class Launch:
    """One kernel with everything that it is given. `trace` is what the emulator saw of it, after `run`."""

    kernel: str
    module: Module
    grid: tuple[int, int, int]
    args: tuple[Any, ...]
    tensors: tuple[str, ...]  # of the array arguments, in the order of `args`
    shared_nbytes: int = 0
    function: str = ""  # in the module; by default `kernel`, the name in the ledger
    threads: int = THREADS
    trace: Any = field(default=None, init=False)

    def run(self) -> None:
        """Launch it, unless it has no programs."""
        if min(self.grid) == 0:
            return
        function: Any = self.module.get_function(self.function or self.kernel)
        if self.shared_nbytes > max(STATIC_SHARED_NBYTES, function.max_dynamic_shared_size_bytes):
            function.max_dynamic_shared_size_bytes = self.shared_nbytes
        # The emulator's own form returns what it saw: another thread may launch the same function meanwhile.
        outcome = getattr(function, "launch", function)(
            self.grid, (self.threads, 1, 1), self.args, shared_mem=self.shared_nbytes
        )
        self.trace = getattr(outcome, "trace", None)

    def ledger(self) -> Ledger:
        """Bytes by tensor as the emulator counted them; launches and programs alone where nobody counted."""
        programs = int(np.prod([int(size) for size in self.grid]))
        work = Work(launches=1, programs=programs)
        if self.trace is None:
            return Ledger({}, {self.kernel: work})
        nbytes = {}
        for name, traffic in self.trace.tensors.items():
            for direction in ("read", "write"):
                nbytes[Key(self.kernel, name, "HBM", direction)] = getattr(traffic, direction).nbytes
        return Ledger(nbytes, {self.kernel: work})


@dataclass
class Prepared(Generic[R]):
    """A checked call with its workspaces: run it as often as you like; every run writes the same tensors."""

    launches: Sequence[Launch]
    finish: Callable[[Ledger], R]
    runtime: Runtime
    plan: Plan | None = None  # of an attention call

    def run(self) -> None:
        """Launch everything; on a GPU this returns before the kernels have ended."""
        for launch in self.launches:
            launch.run()

    def result(self) -> R:
        """Run, and return the answer with its ledger."""
        self.run()
        ledger = Ledger()
        for launch in self.launches:
            ledger = ledger + launch.ledger()
        return self.finish(ledger)


def null(array: Any) -> Any:
    """An array argument, or the null pointer where the call has no such tensor."""
    return np.uint64(0) if array is None else array
