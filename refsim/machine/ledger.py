"""The ledger: what a run moved and computed, by kernel, tensor, memory level and direction."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple

Level = Literal["HBM", "SRAM"]
Direction = Literal["read", "write"]
LEVELS: tuple[Level, ...] = ("HBM", "SRAM")
DIRECTIONS: tuple[Direction, ...] = ("read", "write")


class Key(NamedTuple):
    """What a byte count belongs to."""

    kernel: str
    tensor: str
    level: Level
    direction: Direction


@dataclass(frozen=True)
class Work:
    """What one kernel did apart from moving bytes, over all its launches.

    flops leaves out matrix products (`matmul_flops`, two for each multiply-add) and exponentials (exp, log and tanh,
    one each). Comparing and selecting by position costs nothing here, as it does on a GPU beside the arithmetic.
    sram_peak_nbytes is the most that one program (thread block) held on chip at once.
    """

    launches: int = 0
    programs: int = 0
    matmul_flops: int = 0
    flops: int = 0
    exponentials: int = 0
    sram_peak_nbytes: int = 0

    def __add__(self, other: Work) -> Work:
        sums = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(Work)}
        return Work(**sums | {"sram_peak_nbytes": max(self.sram_peak_nbytes, other.sram_peak_nbytes)})

    def __sub__(self, other: Work) -> Work:
        rest = {f.name: getattr(self, f.name) - getattr(other, f.name) for f in fields(Work)}
        return Work(**rest | {"sram_peak_nbytes": self.sram_peak_nbytes})


@dataclass(frozen=True)
class Ledger:
    """Bytes by `Key` and `Work` by kernel. Ledgers add and subtract; zero entries are dropped, so `==` compares counts.

    >>> read = Ledger({Key("flash", "k", "HBM", "read"): 4096}, {"flash": Work(launches=1)})
    >>> (read + read).hbm_nbytes, (read - read).hbm_nbytes
    (8192, 0)
    """

    nbytes: Mapping[Key, int] = field(default_factory=dict)
    work: Mapping[str, Work] = field(default_factory=dict)

    def __post_init__(self) -> None:
        nbytes = {key if type(key) is Key else Key(*key): int(n) for key, n in self.nbytes.items() if n}
        object.__setattr__(self, "nbytes", nbytes)
        object.__setattr__(self, "work", {kernel: work for kernel, work in self.work.items() if work != Work()})

    def __add__(self, other: Ledger) -> Ledger:
        if not isinstance(other, Ledger):
            return NotImplemented
        nbytes, work = dict(self.nbytes), dict(self.work)
        for key, n in other.nbytes.items():
            nbytes[key] = nbytes.get(key, 0) + n
        for kernel, more in other.work.items():
            work[kernel] = work.get(kernel, Work()) + more
        return Ledger(nbytes, work)

    def __sub__(self, other: Ledger) -> Ledger:
        if not isinstance(other, Ledger):
            return NotImplemented
        nbytes = {key: self.nbytes.get(key, 0) - other.nbytes.get(key, 0) for key in {*self.nbytes, *other.nbytes}}
        rest = {kernel: self.work.get(kernel, Work()) - other.work.get(kernel, Work()) for kernel in self.work}
        return Ledger(
            nbytes, {kernel: w for kernel, w in rest.items() if w != Work(sram_peak_nbytes=w.sram_peak_nbytes)}
        )

    def total(
        self,
        *,
        kernel: str | None = None,
        tensor: str | None = None,
        level: Level | None = "HBM",
        direction: Direction | None = None,
    ) -> int:
        """Bytes that match every filter given; by default those that crossed HBM. level=None: both levels together.

        Raises ValueError for a level or direction that there isn't; a kernel or tensor that did nothing has 0 bytes.

        >>> Ledger({Key("flash", "k", "HBM", "read"): 8, Key("flash", "o", "HBM", "write"): 2}).total(tensor="o")
        2
        """
        if level not in (None, *LEVELS) or direction not in (None, *DIRECTIONS):
            raise ValueError(
                f"level must be one of {LEVELS} or None, direction one of {DIRECTIONS} or None, "
                f"got {level!r} and {direction!r}"
            )
        wanted = (kernel, tensor, level, direction)
        return sum(
            n for key, n in self.nbytes.items() if all(w is None or w == k for w, k in zip(wanted, key, strict=True))
        )

    @property
    def hbm_nbytes(self) -> int:
        """All bytes read from and written to HBM."""
        return self.total(level="HBM")

    @property
    def sram_nbytes(self) -> int:
        """All operand bytes read from and written to on-chip buffers."""
        return self.total(level="SRAM")

    @property
    def flops(self) -> int:
        """Arithmetic outside matrix products, exponentials apart."""
        return sum(w.flops for w in self.work.values())

    @property
    def matmul_flops(self) -> int:
        """Arithmetic of matrix products, two for each multiply-add."""
        return sum(w.matmul_flops for w in self.work.values())

    @property
    def exponentials(self) -> int:
        """Evaluations of exp, log and tanh."""
        return sum(w.exponentials for w in self.work.values())

    @property
    def launches(self) -> int:
        """Kernel launches."""
        return sum(w.launches for w in self.work.values())

    @property
    def programs(self) -> int:
        """Programs (thread blocks) over all launches."""
        return sum(w.programs for w in self.work.values())

    def hbm_only(self) -> dict[tuple[str, str, str], int]:
        """HBM bytes by (kernel, tensor, direction): what a GPU kernel can be held against."""
        return {(k.kernel, k.tensor, k.direction): n for k, n in self.nbytes.items() if k.level == "HBM"}

    def rows(self) -> list[dict[str, Any]]:
        """One dict an entry, ready for a DataFrame."""
        return [key._asdict() | {"nbytes": n} for key, n in sorted(self.nbytes.items())]

    def __str__(self) -> str:
        lines = [f"{'kernel':<16}{'tensor':<14}{'HBM read':>16}{'HBM write':>16}{'SRAM read':>18}{'SRAM write':>18}"]
        for kernel, tensor, counts in self._table():
            lines.append(
                f"{kernel:<16}{tensor:<14}"
                + "".join(f"{n:>{w},}" for n, w in zip(counts, (16, 16, 18, 18), strict=True))
            )
        for kernel, w in self.work.items():
            lines.append(
                f"{kernel:<16}launches {w.launches:,}  programs {w.programs:,}  matmul FLOPs {w.matmul_flops:,}  "
                f"other FLOPs {w.flops:,}  exponentials {w.exponentials:,}  on-chip peak {w.sram_peak_nbytes:,} B"
            )
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        head = "".join(
            f"<th>{c}</th>" for c in ("kernel", "tensor", "HBM read", "HBM write", "SRAM read", "SRAM write")
        )
        body = "".join(
            f"<tr><td>{html.escape(kernel)}</td><td>{html.escape(tensor)}</td>"
            + "".join(f"<td style='text-align:right'>{n:,}</td>" for n in counts)
            + "</tr>"
            for kernel, tensor, counts in self._table()
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def _table(self) -> Iterable[tuple[str, str, list[int]]]:
        columns = [(level, direction) for level in LEVELS for direction in DIRECTIONS]
        in_hbm = {(k.kernel, k.tensor) for k in self.nbytes if k.level == "HBM"}
        kernels = list(self.work)
        for kernel, tensor in sorted(
            {(k.kernel, k.tensor) for k in self.nbytes},
            key=lambda at: (kernels.index(at[0]) if at[0] in kernels else len(kernels), at not in in_hbm, at[1]),
        ):
            yield kernel, tensor, [self.nbytes.get(Key(kernel, tensor, lv, d), 0) for lv, d in columns]
