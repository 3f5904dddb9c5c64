"""The stages that tiled kernels are made of, as counts: loading, scoring, absorbing, finishing, storing.

Each function stands beside the one of `refsim.attention.fold` or `refsim.softmax` that it counts. In comments r is the
rows of a program, c the keys of a key tile; `scores` sums r c over all key tiles, `folds` r, `keys` c.
"""

from __future__ import annotations

from refsim.attention.plan import Plan
from refsim.cost.closed_form.count import INDEX, Count, Inputs
from refsim.cost.closed_form.totals import Peaks, Totals


def launch(count: Count, inputs: Inputs, *, splits: int = 1, tile_tokens: int | None = None) -> None:
    """`Call.idle_programs`: a ragged launch is as wide for each sequence as for the longest; the idle look and stop."""
    if integers := inputs.lengths.get("cu_seqlens_q"):
        tiles = [-(-seq.n // (tile_tokens or count.plan.tile_tokens)) for seq in count.plan.sequences]
        count.idle_programs = (max(tiles, default=0) * len(tiles) - sum(tiles)) * splits * count.plan.programs
        count.read("cu_seqlens_q", integers * count.idle_programs, INDEX)


def load_lengths(count: Count, inputs: Inputs, programs: int) -> None:
    """What says where a sequence starts and how long it is, once a program."""
    for tensor, integers in inputs.lengths.items():
        count.read(tensor, integers * programs, INDEX)


def load_per_head(count: Count, name: str, programs: int) -> None:
    """ALiBi slopes or sinks: one number a query head of the program."""
    elems = programs * count.plan.rho
    count.read(name, elems, count.plan.precision.accumulate)
    count.on_chip(name, writes=elems)


def load_q(count: Count, inputs: Inputs, total: Totals) -> None:
    """The lengths, then the query tile."""
    load_lengths(count, inputs, total.programs)
    elems = total.rows * count.plan.D
    count.read("q", elems, inputs.q)
    count.on_chip("q", writes=elems)


def load_k(count: Count, inputs: Inputs, total: Totals) -> None:
    """A tile's block ids, where there is a table, and its keys."""
    elems = total.keys * count.plan.D
    if inputs.table:
        count.read("block_tables", total.entries, INDEX)
    count.read("k_cache" if inputs.table else "k", elems, inputs.k)
    count.on_chip("k", writes=elems)


def load_v(count: Count, inputs: Inputs, total: Totals) -> None:
    """A tile's values."""
    elems = total.keys * count.plan.Dv
    count.read("v_cache" if inputs.table else "v", elems, inputs.v)
    count.on_chip("v", writes=elems)


def scores(count: Count, total: Totals) -> None:
    """`OnChip.scores`: s = q k^T, then passes over s for scale, softcap and ALiBi."""
    plan, variant = count.plan, count.plan.variant
    count.on_chip("q", reads=total.folds * plan.D)
    count.on_chip("k", reads=total.keys * plan.D)
    count.matmul_flops += 2 * total.scores * plan.D
    passes = 1
    count.flops += total.scores
    if variant.softcap is not None:
        passes += 2
        count.exponentials += total.scores  # tanh
        count.flops += total.scores
    if variant.alibi_slopes is not None:
        passes += 1
        count.on_chip("alibi_slopes", reads=total.folds)
        count.on_chip("temporaries", reads=total.scores, writes=total.scores)  # slope x distance
        count.flops += 2 * total.scores
    count.on_chip("s", reads=passes * total.scores, writes=(1 + passes) * total.scores)


def absorb(count: Count, total: Totals) -> None:
    """`softmax.absorb_in_place`, with P V in the matrix unit."""
    folds, all_scores, Dv = total.folds, total.scores, count.plan.Dv
    count.on_chip("s", reads=4 * all_scores, writes=2 * all_scores)  # max, s - shift, exp, sum
    count.on_chip("s", reads=all_scores, dtype=count.plan.precision.p)  # P into P V
    count.on_chip("v", reads=total.keys * Dv)
    count.on_chip("m", reads=2 * folds, writes=folds)
    count.on_chip("l", reads=2 * folds, writes=2 * folds)
    count.on_chip("o", reads=2 * folds * Dv, writes=2 * folds * Dv)  # o * fade, o + P V
    # Row statistics: max s, m_new, shift, m - shift, fade, sum P are written; each use of one is a read.
    count.on_chip("temporaries", reads=9 * folds, writes=6 * folds)
    count.matmul_flops += 2 * all_scores * Dv
    count.flops += 3 * all_scores + folds * (5 + Dv)
    count.exponentials += all_scores + folds


def finish(count: Count, total: Totals) -> None:
    """`softmax.finish_in_place`: o / l and m + ln l."""
    rows, Dv = total.rows, count.plan.Dv
    count.on_chip("l", reads=rows)
    count.on_chip("m", reads=rows)
    count.on_chip("o", reads=rows * Dv, writes=rows * Dv)
    count.on_chip("temporaries", reads=3 * rows, writes=3 * rows)  # l or tiny, ln of it, the sum
    count.flops += rows * (2 + Dv)
    count.exponentials += rows


def store(count: Count, total: Totals, *, out: str = "out", lse: str = "lse", partial: bool = False) -> None:
    """A finished query tile: its answer and its LSE."""
    precision, elems = count.plan.precision, total.rows * count.plan.Dv
    count.on_chip("o", reads=elems)
    count.write(out, elems, precision.accumulate if partial else precision.storage)
    count.on_chip("temporaries", reads=total.rows)
    count.write(lse, total.rows, precision.accumulate)


def start_with_sinks(count: Count, total: Totals) -> None:
    """`OnChip.empty_state` with sinks: m begins at the head's sink."""
    load_per_head(count, "sinks", total.programs)
    count.on_chip("sinks", reads=total.rows)
    count.on_chip("m", writes=total.rows)


def fold_peak(plan: Plan, peaks: Peaks, *, sinks: bool = True, finishes: bool = True) -> int:
    """The most bytes that a program of the tiled kernels holds on chip: its buffers and its largest temporaries."""
    acc = plan.precision.accumulate.itemsize
    # Absorbing holds m_new, shift, fade and one statistic more; finishing three; ALiBi's bias is a tile of scores.
    temporaries = max(4 * peaks.folding_rows, 3 * peaks.rows if finishes else 0, peaks.scores)
    return plan.buffers_nbytes(sinks=sinks) + temporaries * acc
