"""The plan of an attention call: everything about it except the values.

An algorithm walks its plan, a closed form sums over it, and a CUDA launch is configured from it. Query heads that
share a KV head may be *packed* in one program, so that their keys and values are loaded once: a program then holds
`tokens * rho` rows, where rho is H/G packed and 1 otherwise, and the grid of one query tile is (G, H/G / rho).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from refsim.checks import whole_number, yes_or_no
from refsim.numerics import Precision, dtype_of, largest, name_of
from refsim.variant import LONGEST, Band, Variant, check_heads

TILE_SIZES = (128, 64, 32, 16)


def check_tile(tile: Any) -> tuple[int, int]:
    """(rows, keys) as whole numbers from 1; ValueError for anything else."""
    try:
        rows, keys = (whole_number("tile", size, 1) for size in tile)
    except (TypeError, ValueError):  # not whole numbers, or not two of them
        raise ValueError(f"tile must be (rows, keys), both whole numbers from 1, got {tile!r}") from None
    return rows, keys


@dataclass(frozen=True)
class Sequence:
    """One sequence of a call: its place in the batch, its first query token, n queries and T keys."""

    index: int
    start: int
    n: int
    T: int


@dataclass(frozen=True)
class Plan:
    """Sizes, variant, number types and tile of a call. Build it with `Plan.of`, which checks and fills in the tile."""

    sequences: tuple[Sequence, ...]
    H: int
    G: int
    D: int
    Dv: int
    variant: Variant
    precision: Precision
    packed: bool
    block_size: int | None = None
    Br: int = 0
    Bc: int = 0

    @classmethod
    def of(
        cls,
        lengths: Any,
        H: int,
        G: int,
        D: int,
        Dv: int | None = None,
        *,
        dtype: Any = "float32",
        precision: Precision | None = None,
        tile: tuple[int, int] | None = None,
        sram_nbytes: int | None = None,
        packed: bool = False,
        block_size: int | None = None,
        **variant: Any,
    ) -> Plan:
        """Plan a call over sequences with `lengths` [(n, T), ...] of queries and keys.

        tile: (Br, Bc), rows and keys a program holds at once. By default the largest of 128, 64, 32, 16 each that
        fits `sram_nbytes`. Br counts rows (tokens times packed heads) and is rounded to whole tokens; over a paged
        cache Bc is rounded to whole blocks, or to an even part of one.

        >>> plan = Plan.of([(1, 1000)], H=32, G=8, D=128, dtype="float16", packed=True, block_size=16)
        >>> plan.rows, plan.Bc, plan.grid
        (4, 128, (8, 1))
        """
        H, G, D = (whole_number(name, size, 0) for name, size in (("H", H), ("G", G), ("D", D)))
        check_heads(H, G, D, D)
        if not isinstance(precision, Precision | None):
            raise TypeError(f"precision must be a Precision, such as Precision.of('float16'), got {precision!r}")
        if block_size is not None:
            block_size = whole_number("block_size", block_size, 1)
        plan = cls(
            sequences=_sequences(lengths),
            H=H,
            G=G,
            D=D,
            Dv=D if Dv is None else whole_number("Dv", Dv, 0),
            variant=Variant.of(H, D, **variant),
            precision=precision or Precision.of(dtype_of(dtype)),
            packed=yes_or_no("pack_gqa", packed),
            block_size=block_size,
        )
        _check_range(plan)
        if tile is not None:
            return plan.with_tile(*check_tile(tile))
        choices = [plan.with_tile(Br, Bc) for Br in TILE_SIZES for Bc in TILE_SIZES if Bc <= Br or plan._few_rows(Br)]
        fitting = [p for p in choices if sram_nbytes is None or p.on_chip_nbytes <= sram_nbytes]
        return max(fitting, key=lambda p: (p.rows * p.Bc, p.rows), default=choices[-1])

    def with_tile(self, Br: int, Bc: int) -> Plan:
        """This plan with another tile, rounded as `of` says."""
        B = self.block_size
        if B is not None:
            Bc = Bc // B * B if Bc >= B else max(part for part in range(1, Bc + 1) if B % part == 0)
        tokens = min(max(1, Br // self.rho), max((s.n for s in self.sequences), default=1) or 1)
        return replace(self, Br=tokens * self.rho, Bc=Bc)

    def _few_rows(self, Br: int) -> bool:
        return max((s.n for s in self.sequences), default=1) * self.rho < Br

    def part(self, kv_heads: slice) -> Plan:
        """The plan of the same call for some of its KV heads and the query heads that read them."""
        G = len(range(self.G)[kv_heads])
        return replace(self, G=G, H=G * self.group, variant=self.variant.part(kv_heads, self.group))

    # Shape of the work

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.H // self.G

    @property
    def rho(self) -> int:
        """Query heads in one program."""
        return self.group if self.packed else 1

    @property
    def grid(self) -> tuple[int, int]:
        """Programs of one query tile: (KV heads, programs that share a KV head)."""
        return (self.G, self.group // self.rho)

    @property
    def programs(self) -> int:
        """Programs of one query tile, in all."""
        return self.H // self.rho

    @property
    def tokens(self) -> int:
        """Query tokens of the whole call."""
        return sum(s.n for s in self.sequences)

    @property
    def rows(self) -> int:
        """Rows of a full query tile."""
        return self.Br

    @property
    def tile_tokens(self) -> int:
        """Query tokens of a full query tile."""
        return self.Br // self.rho

    @property
    def unit(self) -> int:
        """Key tiles begin at multiples of this: whole blocks, or even parts of one; 1 for contiguous keys."""
        return 1 if self.block_size is None else min(self.block_size, self.Bc)

    def band(self, seq: Sequence) -> Band:
        """The mask of a sequence."""
        return self.variant.band(seq.n, seq.T)

    def query_tiles(self, seq: Sequence) -> Iterator[range]:
        """The query tokens of each tile of a sequence, counted within the sequence."""
        for start in range(0, seq.n, self.tile_tokens):
            yield range(start, min(start + self.tile_tokens, seq.n))

    def key_span(self, seq: Sequence, tokens: range) -> tuple[int, int]:
        """First key, and one past the last, that any of the query tokens sees."""
        band = self.band(seq)
        return int(band.first(tokens[0])), int(band.stop(tokens[-1]))

    def key_tiles(self, first: int, stop: int) -> Iterator[range]:
        """The keys of each tile that covers [first, stop): only keys that some row sees are ever loaded."""
        origin = first // self.unit * self.unit
        for start in range(origin, stop if first < stop else origin, self.Bc):
            yield range(max(start, first), min(start + self.Bc, stop))

    def splits(self, seq: Sequence, num_splits: int) -> list[tuple[int, int]]:
        """[first, stop) of each split of the keys that a sequence sees: even, in whole blocks, the last maybe empty.

        >>> Plan.of([(1, 5)], H=1, G=1, D=8).splits(Sequence(0, 0, 1, 5), 4)
        [(0, 2), (2, 4), (4, 5), (5, 5)]
        """
        first, stop = self.key_span(seq, range(max(seq.n, 1)))
        unit = self.block_size or 1
        origin = first // unit * unit
        size = -(-(stop - origin) // (num_splits * unit)) * unit
        edges = [min(max(origin + i * size, first), stop) for i in range(num_splits + 1)]
        return list(pairwise(edges))

    # On-chip memory

    @cached_property
    def on_chip_nbytes(self) -> int:
        """Bytes that a program of the tiled algorithms holds on chip at its peak: buffers and largest temporaries."""
        # Absorbing a key tile holds four statistics a row at once; before it, ALiBi's bias is as large as the scores.
        temporaries = max(4, self.Bc if self.variant.alibi_slopes is not None else 0) * self.rows
        return self.buffers_nbytes() + temporaries * self.precision.accumulate.itemsize

    def buffers_nbytes(self, *, sinks: bool = True) -> int:
        """Bytes of the buffers that a program of the tiled algorithms declares; `sinks`: room for sinks, if any."""
        operands = self.rows * self.D + self.Bc * (self.D + self.Dv)
        per_head = (self.variant.alibi_slopes is not None) + (sinks and self.variant.sinks is not None)
        sums = self.rows * (self.Bc + self.Dv + 2) + per_head * self.rho
        return operands * self.operand_dtype.itemsize + sums * self.precision.accumulate.itemsize

    @property
    def scores_dtype(self) -> Any:
        """The type in which standard attention keeps S and P in HBM: that of P, but bfloat16 for 8-bit types.

        A hidden score is -inf, which e4m3 doesn't have; nobody stores scores in 8 bits.
        """
        return self.precision.p if self.precision.p.itemsize > 1 else dtype_of("bfloat16")

    @property
    def operand_dtype(self) -> Any:
        """The type in which q, k and v lie on chip."""
        wider = self.precision.matrix.itemsize > self.precision.storage.itemsize
        return self.precision.storage if wider else self.precision.matrix


def _sequences(lengths: Any) -> tuple[Sequence, ...]:
    """One sequence after the other, from their [(queries, keys), ...]; ValueError for what are no lengths."""
    try:
        pairs = [(whole_number("n", n), whole_number("T", T)) for n, T in lengths]
    except (TypeError, ValueError):
        raise ValueError(f"lengths must be pairs of whole numbers, [(queries, keys), ...], got {lengths!r}") from None
    sequences, start = [], 0
    for i, (n, T) in enumerate(pairs):
        if not (0 <= n <= LONGEST and 0 <= T <= LONGEST):
            raise ValueError(f"sequence {i} has {n} queries and {T} keys; lengths go from 0 to {LONGEST:,}, an int32")
        sequences.append(Sequence(i, start, n, T))
        start += n
    return tuple(sequences)


def _check_range(plan: Plan) -> None:
    """Refuse, with ValueError, a number of the call that scores can't hold: it would become inf, and the answer NaN."""
    acc, variant = plan.precision.accumulate, plan.variant
    for name, values in (
        ("scale", variant.scale),
        ("scale / softcap", variant.scale / (variant.softcap or 1)),
        ("softcap", variant.softcap or 0),
        ("alibi_slopes", variant.alibi_slopes),
        ("sinks", variant.sinks),
    ):
        if values is not None and np.abs(values).max(initial=0) > largest(acc):
            raise ValueError(f"{name} must fit {name_of(acc)}, in which scores are computed, got {values}")
