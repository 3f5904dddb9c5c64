"""Standard attention: three kernels, with S and P written to HBM and read back. The price that FlashAttention saves."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np

from refsim import softmax
from refsim.attention.call import Call, Result
from refsim.attention.fold import OnChip
from refsim.attention.inputs import contiguous_call
from refsim.attention.plan import Plan
from refsim.machine import HBMArray, Machine, Step, Watch, algorithm
from refsim.numerics import Precision


@dataclass(frozen=True)
class SoftmaxTile:
    """Rows and columns of S that a program of the softmax kernel holds. Whole rows where they fit: S is read once.

    One size for a launch: that of the longest sequence.
    """

    rows: int
    columns: int

    @classmethod
    def of(cls, plan: Plan, sram_nbytes: int | None) -> SoftmaxTile:
        """The most rows, whole if they fit; otherwise the plan's tile, and S is read twice."""
        acc = plan.precision.accumulate.itemsize
        columns = max((seq.T for seq in plan.sequences), default=1) or 1
        if sram_nbytes is None:
            return cls(plan.rows, columns)
        # Beside each row of S: m, l and, in the fold, m_new, shift, fade and a sum. The sink is one number.
        numbers = sram_nbytes // acc - (plan.variant.sinks is not None)
        rows = min(plan.rows, numbers // (columns + SOFTMAX_ROW_STATISTICS))
        return cls(rows, columns) if rows > 0 else cls(plan.rows, plan.Bc)


SOFTMAX_ROW_STATISTICS = 6


@algorithm
def standard(
    watch: Watch,
    q: Any,
    k: Any,
    v: Any,
    *,
    tile: tuple[int, int] | None = None,
    machine: Machine | None = None,
    precision: Precision | None = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    **variant: Any,
) -> Generator[Step | None, None, Result]:
    """S = scale q k^T, P = softmax(S), out = P v: three kernels, S and P through HBM in the type of P.

    q (n, H, D), k (T, G, D), v (T, G, Dv) -> Result. Arguments and errors: as in `flash`. Hidden scores are computed
    and stored as -inf, as a library without fused masks does, so that the n * T terms are there in full.

    Source: "FlashAttention: Fast and Memory-Efficient Exact Attention with IO-Awareness", algorithm 0.

    >>> import numpy as np
    >>> x = np.random.default_rng(0).standard_normal((100, 2, 64), dtype=np.float32)
    >>> standard(x, x, x).ledger.total(tensor="s", direction="write")  # 2 heads of 100 x 100 float32
    80000
    """
    call = contiguous_call(q, k, v, tile, machine, precision, cu_seqlens_q, cu_seqlens_k, False, variant)
    scores, weights = Matrices(call, "s"), Matrices(call, "p")
    yield from _score(watch, call, scores)
    yield from _softmax(watch, call, scores, weights)
    yield from _weigh(watch, call, weights)
    return call.result()


class Matrices:
    """An (n, T) matrix a head for every sequence, in HBM."""

    def __init__(self, call: Call, name: str) -> None:
        plan = call.plan
        self.per_sequence = [
            call.machine.hbm(name, np.full((*plan.grid, seq.n, seq.T), np.nan, plan.scores_dtype), writable=True)
            for seq in plan.sequences
        ]

    def of(self, seq: Any) -> HBMArray:
        """The matrix of one sequence, (G, programs per KV head, n, T)."""
        return self.per_sequence[seq.index]


def _score(watch: Watch, call: Call, scores: Matrices) -> Generator[Step | None, None, None]:
    plan, machine = call.plan, call.machine
    with machine.kernel("scores") as kernel:
        call.idle_programs(kernel)
        for seq, i, tokens in call.tiles():
            with kernel.programs(*plan.grid) as prog:
                chip = OnChip(prog, call, only="qks")
                q = call.load_q(prog, seq, tokens, chip.q)
                for j, keys in enumerate(plan.key_tiles(0, seq.T)):
                    k = prog.load(call.keys.k, call.keys.locate(prog, seq, keys), into=chip.k)
                    s = chip.scores(q, k, seq, tokens, keys)
                    prog.store(s, scores.of(seq), np.s_[:, :, tokens.start : tokens.stop, keys.start : keys.stop])
                    index = {"sequence": seq.index, "query_tile": i, "key_tile": j}
                    yield watch.step("scores", machine, "scores", index, s=s)


def _softmax(watch: Watch, call: Call, scores: Matrices, weights: Matrices) -> Generator[Step | None, None, None]:
    """One pass over S where whole rows fit on chip; two (statistics, then P) where they don't."""
    plan, machine = call.plan, call.machine
    acc = plan.precision.accumulate
    tile = SoftmaxTile.of(plan, machine.sram_nbytes)
    with machine.kernel("softmax") as kernel:
        call.idle_programs(kernel, tile_tokens=tile.rows)
        for seq in plan.sequences:
            columns = [range(c, min(c + tile.columns, seq.T)) for c in range(0, seq.T, tile.columns)]
            for start in range(0, seq.n, tile.rows):
                rows = range(start, min(start + tile.rows, seq.n))
                with kernel.programs(*plan.grid) as prog:
                    call.load_lengths(prog, seq)
                    buffer = prog.buffer("s", (tile.rows, tile.columns), acc)
                    m = prog.buffer("m", (tile.rows,), acc).full(-np.inf, len(rows))
                    l = prog.buffer("l", (tile.rows,), acc).full(0, len(rows))
                    if call.sinks is not None:
                        np.positive(prog.load(call.sinks, ..., into=prog.buffer("sinks", (1,), acc)), out=m)
                        l.data[...] = 1
                    for part in columns:
                        s = prog.load(scores.of(seq), _at(rows, part), into=buffer)
                        softmax.weigh_in_place(m, l, s)
                    some, lse = softmax.divisor_and_lse(m, l)
                    for part in columns:
                        if len(columns) > 1:
                            s = prog.load(scores.of(seq), _at(rows, part), into=buffer)
                            np.subtract(s, np.maximum(m, np.finfo(acc).min)[..., None], out=s)
                            np.exp(s, out=s)
                        np.divide(s, some[..., None], out=s)
                        prog.store(s, weights.of(seq), _at(rows, part))
                    at = slice(seq.start + rows.start, seq.start + rows.stop)
                    prog.store(lse.reshape(len(rows), 1), call.lse, np.s_[:, :, at])
                    index = {"sequence": seq.index, "first_row": rows.start, "stop_row": rows.stop}
                    yield watch.step("softmax", machine, "softmax", index, m=m, l=l, lse=lse)


def _weigh(watch: Watch, call: Call, weights: Matrices) -> Generator[Step | None, None, None]:
    plan, machine = call.plan, call.machine
    with machine.kernel("output") as kernel:
        call.idle_programs(kernel)
        for seq, i, tokens in call.tiles():
            with kernel.programs(*plan.grid) as prog:
                chip = OnChip(prog, call, only="pvo")
                call.load_lengths(prog, seq)
                out = chip.o.full(0, len(tokens), plan.Dv)
                for j, keys in enumerate(plan.key_tiles(0, seq.T)):
                    p = prog.load(weights.of(seq), _at(tokens, keys), into=chip.p)
                    v = prog.load(call.keys.v, call.keys.locate(prog, seq, keys), into=chip.v)
                    prog.mma(p, v, acc=out)
                    index = {"sequence": seq.index, "query_tile": i, "key_tile": j}
                    yield watch.step("accumulate", machine, "output", index, o=out)
                at = np.s_[:, :, call.at(seq, tokens)]
                prog.store(out.reshape(len(tokens), 1, plan.Dv), call.out, at)
                yield watch.step("write", machine, "output", {"sequence": seq.index, "query_tile": i}, out=out)


def _at(rows: range, columns: range) -> Any:
    return np.s_[:, :, rows.start : rows.stop, columns.start : columns.stop]
