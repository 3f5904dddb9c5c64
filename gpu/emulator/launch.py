"""One launch: tensors in, workers run, counts and findings out, tensors back."""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from gpu.emulator import native
from gpu.emulator.arguments import check_arguments, pack
from gpu.emulator.collect import collect_reports, collect_trace, printed, written_slots
from gpu.emulator.limits import LaunchError, check_limits
from gpu.emulator.loaded import Entry, Loaded
from gpu.emulator.memory import DeviceMemory, Tensor, arena, bytes_at, group
from gpu.emulator.report import KernelError, Report
from gpu.emulator.settings import Settings
from gpu.emulator.trace import Trace
from gpu.emulator.workers import STILL_RUNNING, Workers

PRINT_NBYTES = 1 << 20


@dataclass
class Outcome:
    """What a launch leaves behind; printed, a table of what it moved and what the checks reported."""

    trace: Trace | None
    reports: list[Report]
    seconds: float
    resumes: int

    def __str__(self) -> str:
        moved = "compiled untraced: nothing was counted" if self.trace is None else str(self.trace)
        return "\n".join([moved, *map(str, self.reports), f"{1000 * self.seconds:.1f} ms on the emulator"])


def _cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Running:
    """A launch from its start to its end."""

    def __init__(
        self,
        loaded: Loaded,
        entry: Entry,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        args: Sequence[Any],
        shared_mem: int,
        settings: Settings,
    ) -> None:
        self.loaded, self.entry, self.grid, self.block = loaded, entry, grid, block
        self.settings, self.shared_mem = settings, shared_mem
        self.stack_nbytes = -(-settings.stack_nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self.arguments = check_arguments(entry, args)
        check_limits(loaded, entry, grid, block, shared_mem, settings.shared_limit)
        named = [
            (entry.names[i], array, bool(entry.parameters[i].constant)) for i, array in self.arguments.arrays.items()
        ]
        self.tensors: list[Tensor] = group(named)
        self.traced = loaded.module.traced
        self.workers = Workers(loaded.runtime, entry.name)

    @contextmanager
    def prepared(self) -> Iterator[Running]:
        """The launch with its memory in place; nothing of it stays afterwards."""
        space = arena(self.loaded.module.runtime)
        with DeviceMemory(space, self.tensors) as memory:
            self.memory = memory
            races = self.settings.checks["race"] != "ignore"
            memory.place(traced=self.traced, races=races, heat=self.settings.heat)
            self._fill()
            try:
                yield self
            finally:
                self.workers.kill()

    def _count_workers(self) -> int:
        blocks = math.prod(self.grid)
        if self.loaded.devices or self.settings.step_block >= 0:
            return 1  # __device__ variables are one for all blocks; workers would each have their own
        wanted = self.settings.workers or (1 if blocks * math.prod(self.block) < 2048 else _cores())
        return max(1, min(wanted, blocks, native.MAX_WORKERS))

    def _fill(self) -> None:
        loaded, settings = self.loaded, self.settings
        control = native.Launch.from_address(self.memory.map(ctypes.sizeof(native.Launch)))
        self.control = control
        control.grid[:], control.block[:] = self.grid, self.block
        control.shared_nbytes, control.workers = self.shared_mem, self._count_workers()
        control.stack_nbytes = self.stack_nbytes
        control.entry = self.entry.address
        pointers = {i: self.memory.pointer(self.entry.names[i], a) for i, a in self.arguments.arrays.items()}
        addresses, self._keep = pack(self.arguments, pointers)
        if len(addresses) > native.MAX_ARGUMENTS:
            raise LaunchError(
                f"kernel `{self.entry.name}` takes {len(addresses)} arguments; at most {native.MAX_ARGUMENTS}"
            )
        for i, address in enumerate(addresses):
            control.arguments[i] = address
        control.module_low, control.module_high = loaded.base, loaded.end
        self._ranges(control)
        control.traced = self.traced
        control.keep_samples, control.keep_events = settings.keep_samples, settings.keep_barriers
        for i, check in enumerate(native.CHECKS):
            control.modes[i] = native.MODES.index(settings.checks[check])
        blocks = math.prod(self.grid)
        control.published, control.acquired = self.memory.map(8 * blocks), self.memory.map(8 * blocks)
        control.step_block, control.step_read, control.step_write = -1, -1, -1
        control.print_capacity, control.printed = PRINT_NBYTES, self.memory.map(PRINT_NBYTES)
        self.worker = []
        for i in range(control.workers):
            control.worker[i] = self.memory.map(ctypes.sizeof(native.Worker))
            self.worker.append(native.Worker.from_address(control.worker[i]))

    def _ranges(self, control: native.Launch) -> None:
        loaded = self.loaded
        self.shared_names = [s.short for s in loaded.shared]
        ranges = [(loaded.base + s.address, s.nbytes) for s in loaded.shared]
        if loaded.dynamic:
            self.shared_names.append("dynamic")
            ranges.append((loaded.base + loaded.dynamic.address, self.shared_mem))
        variables = [*loaded.constants, *loaded.devices, *loaded.guards]
        if max(len(ranges), len(variables)) > native.MAX_RANGES:
            raise LaunchError(f"the emulator keeps track of {native.MAX_RANGES} shared arrays and variables a module")
        control.nshared, control.nvariables = len(ranges), len(variables)
        control.const_variables = len(loaded.constants)
        control.visible_variables = len(loaded.constants) + len(loaded.devices)
        for i, (base, nbytes) in enumerate(ranges):
            control.shared[i] = native.Range(base, nbytes)
        for i, symbol in enumerate(variables):
            control.variables[i] = native.Range(loaded.base + symbol.address, symbol.nbytes)
        if loaded.devices:
            control.left = self.memory.map(sum(s.nbytes for s in loaded.devices))

    def _keep_device_variables(self) -> None:
        """What the kernel left in `__device__` variables stays there for the next launch, as on a GPU."""
        at = self.control.left
        for symbol in self.loaded.devices:
            self.loaded.view(symbol)[:] = bytes_at(at, symbol.nbytes)
            at += symbol.nbytes

    def start(self) -> None:
        """Let the workers run."""
        self.workers.start(self.control, math.prod(self.block))

    def wait(self) -> None:
        """Until every worker has ended.

        Raises
        ------
        TimeoutError
            The kernel ran longer than the settings allow; the message says which thread was where.
        RuntimeError
            A worker was killed from outside.
        """
        limit = self.settings.timeout
        if self.workers.wait(limit):
            return
        self.workers.ask_where()
        running = [r for r in collect_reports(self) if r.what == STILL_RUNNING]
        lines = [f"\n  block {r.block}, thread {r.thread} {r.what}" for r in running]
        places = [f" at {r.place}" if r.line or r.header else "" for r in running]  # some instructions have no line
        raise TimeoutError(
            f"kernel `{self.entry.name}` ran longer than {limit} s: does it spin or loop for ever?"
            + "".join(line + place for line, place in zip(lines, places, strict=True))
        )

    def finish(self, seconds: float = 0.0) -> Outcome:
        """Counts and findings; and the tensors go back, unless a check says that they are no good.

        Raises
        ------
        KernelError
            A check in mode "raise" failed.
        """
        if not all(w.ended for w in self.worker):
            raise RuntimeError(f"a worker of kernel `{self.entry.name}` ended before its blocks were done")
        if any(w.failed for w in self.worker):
            raise RuntimeError(f"kernel `{self.entry.name}` has more than {native.MAX_SITES} places that access memory")
        text = printed(self.control)
        if text:
            print(text, end="")
        reports = collect_reports(self)
        stopping = [r for r in reports if self.settings.checks[r.check] == "raise" or r.check in ("crash", "deadlock")]
        if stopping:
            raise KernelError([*stopping, *(r for r in reports if r not in stopping)])
        if self.control.stop:
            raise RuntimeError(f"kernel `{self.entry.name}` stopped early, and its checks are switched off")
        self.memory.bring_back(written_slots(self) if self.traced else None)
        self._keep_device_variables()
        trace = collect_trace(self, text) if self.traced else None
        return Outcome(trace, reports, seconds, sum(w.resumes for w in self.worker))


def launch(
    loaded: Loaded,
    entry: Entry,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    args: Sequence[Any],
    shared_mem: int,
    settings: Settings,
) -> Outcome:
    """Run a kernel to its end."""
    with Running(loaded, entry, grid, block, args, shared_mem, settings).prepared() as running:
        begin = time.perf_counter()
        running.start()
        running.wait()
        return running.finish(time.perf_counter() - begin)
