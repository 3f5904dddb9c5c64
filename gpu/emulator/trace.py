"""What a launch moved: bytes, sectors and wavefronts by tensor, by direction and by source line."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from functools import cached_property

import numpy as np

SECTOR_NBYTES = 32
DIRECTIONS = ("read", "write", "atomic")


@dataclass(frozen=True)
class Traffic:
    """Counts of one tensor in one direction (or of any sum of such).

    ``nbytes`` counts what each thread asked for; ``unique_nbytes`` each byte of the tensor once (None where it is not
    known: of single lines and of shared memory). ``requests`` are warp accesses, ``sectors`` the 32-byte pieces of
    memory that they touch, ``useful_nbytes`` the different bytes asked for within those sectors. For shared memory
    ``wavefronts`` counts passes over the banks and ``ideal_wavefronts`` those that conflict-free accesses would take.
    """

    nbytes: int = 0
    accesses: int = 0
    requests: int = 0
    sectors: int = 0
    useful_nbytes: int = 0
    wavefronts: int = 0
    ideal_wavefronts: int = 0
    unique_nbytes: int | None = None

    @property
    def sector_nbytes(self) -> int:
        """Bytes of all sectors touched: what memory has to deliver when no cache helps."""
        return SECTOR_NBYTES * self.sectors

    @property
    def useful_share(self) -> float:
        """Of the bytes in the sectors touched, how many were asked for (1.0: none wasted; nan: no sectors)."""
        return self.useful_nbytes / self.sector_nbytes if self.sectors else float("nan")

    def __add__(self, other: Traffic) -> Traffic:
        names = [f.name for f in fields(self) if f.name != "unique_nbytes"]
        return Traffic(**{n: getattr(self, n) + getattr(other, n) for n in names})


NOTHING = Traffic(unique_nbytes=0)


@dataclass(frozen=True)
class TensorTraffic:
    """A tensor's traffic by direction. Atomic operations are a direction of their own."""

    name: str
    read: Traffic = NOTHING
    write: Traffic = NOTHING
    atomic: Traffic = NOTHING


@dataclass(frozen=True)
class Site:
    """The accesses of one instruction (its address in the compiled kernel) to one tensor in one direction."""

    pc: int
    tensor: str
    direction: str
    size: int
    traffic: Traffic


@dataclass(frozen=True)
class Row:
    """The accesses of one source line to one tensor (or ``shared``, or a module variable) in one direction."""

    line: int
    text: str
    tensor: str
    direction: str
    size: int
    traffic: Traffic


@dataclass(frozen=True)
class WarpAccess:
    """One access of one warp, address by address: what the pictures of sectors and banks are drawn from."""

    line: int
    tensor: str
    direction: str
    size: int
    block: int
    warp: int
    lanes: tuple[int, ...]
    offsets: tuple[int, ...]  # bytes from the start of the tensor, or of the array in shared memory


@dataclass(frozen=True)
class BarrierEvent:
    """One warp at one block barrier; time is counted in warp accesses of the block so far."""

    block: int
    warp: int
    barrier: int
    line: int
    arrived: int
    released: int


@dataclass(frozen=True)
class Trace:
    """Everything that a traced launch saw.

    ``tensors`` is by argument name and holds an entry for every array argument; ``shared`` is shared memory.
    """

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    tensors: dict[str, TensorTraffic]
    shared: TensorTraffic
    sites: tuple[Site, ...] = field(repr=False)
    place: Callable[[int], tuple[int, str]] = field(repr=False, compare=False)
    accesses: tuple[WarpAccess, ...] = field(default=(), repr=False)
    barriers: tuple[BarrierEvent, ...] = field(default=(), repr=False)
    heat: dict[str, np.ndarray] = field(default_factory=dict, repr=False)
    printed: str = ""

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """Traffic by source line; lines are looked up when this is first asked for."""
        rows: dict[tuple[int, str, str, str, int], Traffic] = {}
        for site in self.sites:
            line, text = self.place(site.pc)
            key = (line, text, site.tensor, site.direction, site.size)
            rows[key] = rows.get(key, Traffic()) + site.traffic
        return tuple(Row(*key, traffic) for key, traffic in sorted(rows.items(), key=lambda item: item[0]))

    def nbytes(self, tensor: str | None = None, direction: str | None = None) -> int:
        """Bytes that threads asked for, of one tensor or all, in one direction or all.

        Raises
        ------
        KeyError
            No array argument has that name.
        ValueError
            No such direction.
        """
        if direction not in (None, *DIRECTIONS):
            raise ValueError(f"direction must be one of {', '.join(DIRECTIONS)} or None, got {direction!r}")
        if tensor is not None and tensor not in self.tensors:
            raise KeyError(f"no tensor {tensor!r}; this launch had {', '.join(self.tensors) or 'none'}")
        chosen: Iterable[TensorTraffic] = self.tensors.values() if tensor is None else [self.tensors[tensor]]
        directions = DIRECTIONS if direction is None else (direction,)
        return sum(getattr(t, d).nbytes for t in chosen for d in directions)

    def by_line(self, tensor: str | None = None) -> dict[int, Traffic]:
        """Traffic by source line, summed over sizes and directions."""
        out: dict[int, Traffic] = {}
        for row in self.rows:
            if tensor in (None, row.tensor):
                out[row.line] = out.get(row.line, Traffic()) + row.traffic
        return dict(sorted(out.items()))

    def __str__(self) -> str:
        head = f"{self.kernel}  grid {self.grid}  block {self.block}"
        lines = [head, f"{'tensor':<14}{'':<8}{'bytes':>14}{'unique':>14}{'sectors':>11}{'useful':>8}"]
        for t in self.tensors.values():
            for d in ("read", "write", "atomic"):
                c: Traffic = getattr(t, d)
                if c.requests:
                    share = f"{c.useful_share:.0%}"
                    lines.append(
                        f"{t.name:<14}{d:<8}{c.nbytes:>14,}{c.unique_nbytes or 0:>14,}{c.sectors:>11,}{share:>8}"
                    )
        for d in ("read", "write", "atomic"):
            c = getattr(self.shared, d)
            if c.requests:
                lines.append(
                    f"{'shared':<14}{d:<8}{c.nbytes:>14,}  {c.wavefronts:,} wavefronts (ideal {c.ideal_wavefronts:,})"
                )
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        cells = "".join(
            f"<tr><td>{t.name}</td><td>{d}</td><td>{c.nbytes:,}</td><td>{c.unique_nbytes or 0:,}</td>"
            f"<td>{c.sectors:,}</td><td>{c.useful_share:.0%}</td></tr>"
            for t in self.tensors.values()
            for d, c in (("read", t.read), ("write", t.write), ("atomic", t.atomic))
            if c.requests
        )
        shared = "".join(
            f"<tr><td>shared</td><td>{d}</td><td>{c.nbytes:,}</td><td colspan=3>{c.wavefronts:,} wavefronts "
            f"(ideal {c.ideal_wavefronts:,})</td></tr>"
            for d, c in (("read", self.shared.read), ("write", self.shared.write), ("atomic", self.shared.atomic))
            if c.requests
        )
        heads = "".join(f"<th>{h}</th>" for h in ("tensor", "", "bytes", "unique", "sectors", "useful"))
        return f"<table><tr>{heads}</tr>{cells}{shared}</table>"
