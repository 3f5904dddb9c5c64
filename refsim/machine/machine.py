"""The machine: HBM, an on-chip memory of hard size, kernels, and a ledger that sees every byte."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any, Protocol

import numpy as np

from refsim.checks import whole_number, whole_numbers
from refsim.machine.hbm import HBMArray, UncountedAccess
from refsim.machine.ledger import Ledger
from refsim.machine.programs import Programs, Tally
from refsim.numerics import dtype_of

DEFAULT_SRAM_NBYTES = 164 * 1024  # an A100's shared memory a multiprocessor


class HasSram(Protocol):
    """Any device description that says how much on-chip memory a program can use."""

    @property
    def sram_nbytes(self) -> int: ...


class Machine:
    """HBM arrays, an on-chip capacity in bytes and a ledger.

    device: anything with `sram_nbytes`; or give `sram_nbytes` itself, None for no limit. Default: an A100's 164 KiB.

    >>> machine = Machine()
    >>> x, y = machine.hbm("x", np.arange(8.0)), machine.empty("y", (8,), "float64")
    >>> with machine.kernel("double") as kernel, kernel.programs() as prog:
    ...     tile = prog.load(x, ..., into=prog.buffer("x", (8,), "float64"))
    ...     prog.store(2 * tile, y, ...)
    >>> machine.to_host(y), machine.ledger().hbm_nbytes
    (array([ 0.,  2.,  4.,  6.,  8., 10., 12., 14.]), 128)
    """

    def __init__(self, device: HasSram | None = None, *, sram_nbytes: int | None = DEFAULT_SRAM_NBYTES) -> None:
        if device is not None and not hasattr(device, "sram_nbytes"):
            raise TypeError(
                f"device must say its sram_nbytes, as refsim.cost.devices.get('A100-80') does; got {device!r}"
            )
        limit = sram_nbytes if device is None else device.sram_nbytes
        if limit is not None:
            limit = whole_number("sram_nbytes", limit, 1, or_else="None for no limit")
        self.sram_nbytes = limit
        self._finished: defaultdict[str, Tally] = defaultdict(Tally)
        self._in_flight: list[Programs] = []
        self._counting = Lock()  # programs may run on several threads of this process
        self._running: str | None = None
        self._counts_for: tuple[Machine, ...] = (self,)

    def apart(self) -> Machine:
        """A ledger of its own for one call: what is counted there counts here, too.

        So calls may run side by side on one machine, in threads or as walks, and each knows what it cost.

        >>> machine = Machine()
        >>> call = machine.apart()
        >>> with call.kernel("nothing"):
        ...     pass
        >>> call.ledger().launches, machine.ledger().launches, machine.apart().ledger().launches
        (1, 1, 0)
        """
        call = Machine(sram_nbytes=self.sram_nbytes)
        call._counts_for = (call, *self._counts_for)
        return call

    def hbm(self, name: str, data: Any, *, writable: bool = False) -> HBMArray:
        """Put `data` in HBM under `name`. Nothing is copied; unless writable, kernels may only read it.

        Raises TypeError for what isn't numbers, ValueError where kernels are to write what is read-only.
        """
        array = np.asarray(data)
        if array.dtype.kind in "OSUMm":
            raise TypeError(f"{name!r} must hold numbers, got {array.dtype}")
        if writable and not array.flags.writeable:
            raise ValueError(f"{name!r} is read-only, and kernels are to write it; give a copy")
        return HBMArray(name, array, writable=writable)

    def empty(self, name: str, shape: tuple[int, ...], dtype: Any) -> HBMArray:
        """A new array in HBM, filled with NaN: reading what no kernel wrote shows."""
        sizes = whole_numbers(f"the shape of {name!r}", shape)
        return HBMArray(name, np.full(sizes, np.nan, dtype_of(dtype)), writable=True)

    def to_host(self, array: HBMArray) -> np.ndarray:
        """The values, read-only. Host copies don't cross the device's memory bus in a way that a kernel pays for."""
        if not isinstance(array, HBMArray):
            raise TypeError(f"to_host copies an array in HBM to the host, got {type(array).__name__}")
        if self._running is not None:
            raise UncountedAccess(f"{array.name!r} can't be copied to the host while kernel {self._running!r} runs")
        host = array._data.view()
        host.flags.writeable = False
        return host

    def ledger(self) -> Ledger:
        """What all kernels have done so far, unfinished programs included."""
        with self._counting:
            tallies: defaultdict[str, Tally] = defaultdict(Tally)
            for name, tally in [*self._finished.items(), *((batch.kernel, batch.tally) for batch in self._in_flight)]:
                tallies[name].add(tally)
        return Ledger(
            dict(entry for name, tally in tallies.items() for entry in tally.nbytes(name)),
            {name: tally.work() for name, tally in tallies.items()},
        )

    @contextmanager
    def kernel(self, name: str) -> Iterator[Kernel]:
        """Launch a kernel. Its programs run inside the `with` block, and no other kernel does."""
        with self._counting:
            for machine in self._counts_for:
                if machine._running is not None:
                    raise RuntimeError(
                        f"kernel {name!r} can't start inside kernel {machine._running!r}; "
                        "what runs beside it, as another thread does, needs a machine.apart()"
                    )
            self._running = name
        for machine in self._counts_for:
            with machine._counting:
                machine._finished[name].launches += 1
        try:
            yield Kernel(self, name)
        finally:
            self._running = None


def machine_of(given: Any) -> Machine:
    """The machine given, or a new one for None. Raises TypeError for anything else."""
    if given is not None and not isinstance(given, Machine):
        raise TypeError(f"machine must be a refsim.Machine, such as Machine(sram_nbytes=65536), got {given!r}")
    return given or Machine()


class Kernel:
    """One launch."""

    def __init__(self, machine: Machine, name: str) -> None:
        self.machine, self.name = machine, name

    @contextmanager
    def programs(self, *grid: int) -> Iterator[Programs]:
        """Run prod(grid) programs (thread blocks) side by side; what they hold on chip is gone afterwards."""
        grid = whole_numbers("a grid", grid)
        batch = Programs(self.name, grid, self.machine.sram_nbytes)
        for machine in self.machine._counts_for:
            with machine._counting:
                machine._in_flight.append(batch)
        try:
            yield batch
        finally:
            batch.end()
            for machine in self.machine._counts_for:
                with machine._counting:
                    machine._in_flight.remove(batch)
                    machine._finished[self.name].add(batch.tally)
