"""A plain roofline: each kernel takes as long as its busiest resource, and kernels follow one another."""

from __future__ import annotations

import html
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from refsim.cost import devices
from refsim.cost.device import Device
from refsim.machine import Ledger, Work
from refsim.numerics import name_of

# Buffers that a GPU's program keeps in registers, so that using them moves nothing through shared memory.
REGISTERS = frozenset({"s", "p", "m", "l", "o", "temporaries", "alibi_slopes", "sinks"})


@dataclass(frozen=True)
class KernelTime:
    """One kernel's time, over all its launches.

    seconds: what each resource needs by itself, "HBM", "on-chip", "matrix", "vector" and "exponential", with the
    multiprocessors that stand idle in the last wave counted in.  launch_s: its launches.
    waves: programs that the busiest multiprocessor runs, one after another, in a launch.
    """

    kernel: str
    launches: int
    programs: int
    waves: int
    seconds: Mapping[str, float]
    launch_s: float

    def __reduce__(self) -> Any:
        # Estimates travel between processes, and a mapping proxy can't be pickled.
        return _rebuilt, ({**vars(self), "seconds": dict(self.seconds)},)

    @property
    def total_s(self) -> float:
        """The busiest resource, all others hidden behind it, and the launches."""
        return max(self.seconds.values()) + self.launch_s

    @property
    def bound(self) -> str:
        """What the time goes to: the busiest resource, or "launch" where that takes longer."""
        busiest = max(self.seconds, key=lambda resource: self.seconds[resource])
        return busiest if self.seconds[busiest] >= self.launch_s else "launch"


@dataclass(frozen=True)
class Estimate:
    """The time of a ledger on a device, kernel by kernel. Prints as a table; `rows` suits a DataFrame."""

    device: Device
    dtype: str
    kernels: tuple[KernelTime, ...]

    @property
    def total_s(self) -> float:
        """Seconds of all kernels, one after another."""
        return sum(kernel.total_s for kernel in self.kernels)

    @property
    def bound(self) -> str:
        """What the longest kernel's time goes to; "nothing" where no kernel ran."""
        return max(self.kernels, key=lambda kernel: kernel.total_s).bound if self.kernels else "nothing"

    def rows(self) -> list[dict[str, Any]]:
        """One dict a kernel, times in seconds."""
        return [
            {"kernel": k.kernel, "programs": k.programs, "waves": k.waves}
            | {f"{resource}_s": seconds for resource, seconds in k.seconds.items()}
            | {"launch_s": k.launch_s, "total_s": k.total_s, "bound": k.bound}
            for k in self.kernels
        ]

    def __str__(self) -> str:
        table = list(self._cells())
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = [f"{self.device.title}, matrix products in {self.dtype}; microseconds"]
        for name, *cells, bound in table:
            numbers = "".join(f"  {cell:>{width}}" for cell, width in zip(cells, widths[1:-1], strict=True))
            lines.append(f"{name:<{widths[0]}}{numbers}  {bound}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = [
            "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells)
            for tag, cells in zip(("th", *("td" for _ in (*self.kernels, "all"))), self._cells(), strict=True)
        ]
        caption = html.escape(f"{self.device.title}, matrix products in {self.dtype}; microseconds")
        return f"<table><caption>{caption}</caption>" + "".join(f"<tr>{row}</tr>" for row in rows) + "</table>"

    def _cells(self) -> Iterator[list[str]]:
        resources = list(RESOURCES)
        yield ["kernel", "programs", "waves", *resources, "launch", "total", "bound by"]
        for k in self.kernels:
            times = [*(k.seconds[resource] for resource in resources), k.launch_s, k.total_s]
            yield [k.kernel, f"{k.programs:,}", f"{k.waves:,}", *(f"{1e6 * s:,.2f}" for s in times), k.bound]
        yield ["all", "", "", *("" for _ in resources), "", f"{1e6 * self.total_s:,.2f}", self.bound]


RESOURCES = ("HBM", "on-chip", "matrix", "vector", "exponential")


def estimate(
    ledger: Ledger, device: Device | str, *, dtype: Any = "float16", registers: Collection[str] = REGISTERS
) -> Estimate:
    """How long a device would need for what a ledger counts, and for what it would wait.

    ledger: counted or in closed form.  device: a `Device`, or a built-in one's name.  dtype: the type that matrix
    products take their inputs in.  registers: on-chip buffers whose use isn't shared-memory traffic.

    Assumes, for each kernel: its programs are equal; a multiprocessor runs one after another, with an even share of
    HBM's bandwidth; the resources overlap perfectly and each works at its peak; every HBM byte comes from HBM, with no
    help from L2; shared memory carries what is read from buffers outside `registers` (filling them is an asynchronous
    copy that is not charged); an operation outside matrix products takes a float32 lane one clock, half a
    multiply-add; launches don't overlap with anything.

    Raises UnknownDevice, TypeError for what is no ledger, device, set of names or floating type, and ValueError for a
    type whose matrix products the device has no figure for.

    Source: "Roofline: An Insightful Visual Performance Model for Multicore Architectures", with more than one roof.

    >>> from refsim.attention import Plan
    >>> from refsim.cost import closed_form
    >>> plan = Plan.of([(1, 65536)], H=32, G=8, D=128, dtype="float16", packed=True)
    >>> estimate(closed_form.flash(plan), "A100-80").bound
    'HBM'
    """
    if not isinstance(ledger, Ledger):
        raise TypeError(f"ledger must be a refsim.machine.Ledger, such as result.ledger; got a {type(ledger).__name__}")
    if isinstance(registers, str) or not isinstance(registers, Collection):
        raise TypeError(f"registers must be names of on-chip buffers, such as {{'s', 'p'}}; got {registers!r}")
    device = devices.device_of(device)
    peaks = {
        "HBM": device.hbm_bytes_per_s,
        "on-chip": device.sram_bytes_per_s,
        "matrix": device.matrix_flops_per_s(dtype),
        "vector": device.fp32_flops_per_s / 2,
        "exponential": device.exps_per_s,
    }
    shared: dict[str, int] = {}
    for key, nbytes in ledger.nbytes.items():
        if key.level == "SRAM" and key.direction == "read" and key.tensor not in registers:
            shared[key.kernel] = shared.get(key.kernel, 0) + nbytes
    kernels = []
    for kernel in {**ledger.work, **{key.kernel: None for key in ledger.nbytes}}:
        work = ledger.work.get(kernel, Work())
        amounts = {
            "HBM": ledger.total(kernel=kernel),
            "on-chip": shared.get(kernel, 0),
            "matrix": work.matmul_flops,
            "vector": work.flops,
            "exponential": work.exponentials,
        }
        waves, stretch = _waves(work, device)
        kernels.append(
            KernelTime(
                kernel=kernel,
                launches=work.launches,
                programs=work.programs,
                waves=waves,
                seconds=MappingProxyType({name: amounts[name] / peaks[name] * stretch for name in RESOURCES}),
                launch_s=work.launches * device.launch_s,
            )
        )
    return Estimate(device, name_of(dtype), tuple(kernels))


def _waves(work: Work, device: Device) -> tuple[int, float]:
    """Programs of the busiest multiprocessor in a launch, and how much longer that takes than an even share."""
    if work.programs == 0:
        return 0, 1.0
    a_launch = work.programs / max(work.launches, 1)
    waves = int(-(-a_launch // device.multiprocessors))
    return waves, waves * device.multiprocessors / a_launch


def _rebuilt(values: dict[str, Any]) -> KernelTime:
    return KernelTime(**values | {"seconds": MappingProxyType(values["seconds"])})
