"""Bytes of a case, tensor by tensor: closed form, executed reference, emulated kernel, the kernel's own count."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from refsim.machine import Ledger


@dataclass(frozen=True)
class Bytes:
    """Bytes of one tensor in one direction. None: nobody counted them that way.

    unique: each byte of the tensor once.  sectors, useful: 32-byte pieces of memory touched, and the share of their
    bytes that was asked for, which is 1 where accesses are coalesced.
    """

    kernel: str
    tensor: str
    direction: str
    closed_form: int
    reference: int
    emulated: int | None
    counted: int | None
    unique: int | None = None
    sectors: int | None = None
    useful: float | None = None

    @property
    def agree(self) -> bool:
        """Do all that counted say the same?"""
        return all(n in (None, self.reference) for n in (self.closed_form, self.emulated, self.counted))

    def __str__(self) -> str:
        said = {"closed form": self.closed_form, "reference": self.reference, "kernel": self.emulated}
        said |= {"kernel's own count": self.counted}
        counts = ", ".join(f"{who} {n:,} B" for who, n in said.items() if n is not None)
        return f"{self.kernel}: {self.tensor} {self.direction}: {counts}"


def byte_rows(
    closed: Ledger, reference: Ledger, emulated: Ledger | None, counted: Ledger | None, launches: Sequence[Any]
) -> tuple[Bytes, ...]:
    """A row for each tensor and direction that anybody counted a byte of."""
    said = [None if ledger is None else ledger.hbm_only() for ledger in (closed, reference, emulated, counted)]
    keys = sorted({key for counts in said if counts is not None for key in counts})
    seen = {launch.kernel: launch.trace for launch in launches if launch.trace is not None}
    rows = []
    for kernel, tensor, direction in keys:
        counts = [None if ledger is None else ledger.get((kernel, tensor, direction), 0) for ledger in said]
        trace = seen.get(kernel)
        traffic = None
        if trace is not None and tensor in trace.tensors:
            traffic = getattr(trace.tensors[tensor], direction)
        rows.append(
            Bytes(
                kernel,
                tensor,
                direction,
                closed_form=counts[0] or 0,
                reference=counts[1] or 0,
                emulated=counts[2],
                counted=counts[3],
                unique=traffic.unique_nbytes if traffic else None,
                sectors=traffic.sectors if traffic else None,
                useful=traffic.useful_share if traffic and traffic.sectors else None,
            )
        )
    return tuple(rows)


def add_up(rows: Iterable[Bytes]) -> list[Bytes]:
    """Rows of several cases as one for each kernel, tensor and direction."""
    sums: dict[tuple[str, str, str], list[Bytes]] = {}
    for row in rows:
        sums.setdefault((row.kernel, row.tensor, row.direction), []).append(row)

    def total(group: list[Bytes], name: str) -> int | None:
        values = [getattr(row, name) for row in group]
        return None if None in values else sum(values)

    out = []
    for key, group in sorted(sums.items()):
        sectors = total(group, "sectors")
        useful = None
        if sectors:
            useful = sum((row.useful or 0) * (row.sectors or 0) for row in group) / sectors
        closed_form, reference = total(group, "closed_form") or 0, total(group, "reference") or 0
        rest: dict[str, Any] = {name: total(group, name) for name in ("emulated", "counted", "unique")}
        out.append(Bytes(*key, closed_form, reference, **rest, sectors=sectors, useful=useful))
    return out
