"""Closed form of standard attention: scores, softmax, output, with S and P through HBM."""

from __future__ import annotations

from typing import Unpack

from refsim.attention.plan import Plan
from refsim.attention.standard import SoftmaxTile
from refsim.cost.closed_form import stages
from refsim.cost.closed_form.count import Count, Inputs, InputTypes
from refsim.cost.closed_form.tiled import contiguous, lengths
from refsim.cost.closed_form.totals import totals_of
from refsim.machine import DEFAULT_SRAM_NBYTES, Ledger


def standard(
    plan: Plan, *, sram_nbytes: int | None = DEFAULT_SRAM_NBYTES, ragged: bool = False, **dtypes: Unpack[InputTypes]
) -> Ledger:
    """The ledger of `attention.standard`, with all n x T scores of each head whatever the mask hides.

    sram_nbytes: the machine's on-chip memory, which decides whether the softmax reads S once or twice.
    Other arguments and errors: as in `flash`; the plan is unpacked.

    >>> from refsim.attention import Plan
    >>> plan = Plan.of([(100, 100)], H=2, G=2, D=64)
    >>> standard(plan).total(tensor="s", direction="write")  # 2 heads of 100 x 100 float32
    80000
    """
    if contiguous(plan, "standard").packed:
        raise ValueError("standard attention has a program for each query head; make its plan with packed=False")
    inputs = Inputs.of(plan, lengths(ragged), dtypes)
    return _scores(plan, inputs) + _softmax(plan, inputs, sram_nbytes) + _output(plan, inputs)


def _scores(plan: Plan, inputs: Inputs) -> Ledger:
    """Kernel "scores": S = q k^T, tile by tile."""
    total, count = totals_of(plan, dense=True), Count("scores", plan)
    stages.launch(count, inputs)
    biased = plan.variant.alibi_slopes is not None
    if biased:
        stages.load_per_head(count, "alibi_slopes", total.programs)
    stages.load_q(count, inputs, total)
    stages.load_k(count, inputs, total)
    stages.scores(count, total)
    count.on_chip("s", reads=total.scores)
    count.write("s", total.scores, plan.scores_dtype)
    acc, operand = plan.precision.accumulate.itemsize, plan.operand_dtype.itemsize
    held = (plan.Br + plan.Bc) * plan.D * operand + (plan.Br * plan.Bc + biased) * acc
    return count.ledger(total.programs, held + total.peaks.scores * acc)


def _softmax(plan: Plan, inputs: Inputs, sram_nbytes: int | None) -> Ledger:
    """Kernel "softmax": a program for some rows of S, whole where they fit on chip, else in parts and read twice."""
    count, tile, programs, peak = Count("softmax", plan), SoftmaxTile.of(plan, sram_nbytes), 0, 0
    acc, sinks = plan.precision.accumulate, plan.variant.sinks is not None
    stages.launch(count, inputs, tile_tokens=tile.rows)
    for seq in plan.sequences:
        programs += -(-seq.n // tile.rows) * plan.H
        _softmax_rows(count, seq.n * plan.H, seq.T, parts=-(-seq.T // tile.columns))
        # Beside S, m, l and the sink: a fold holds four row statistics at once, finishing (with no key) three.
        alive = (4 if seq.T else 3) * min(tile.rows, seq.n)
        if seq.n:
            peak = max(peak, tile.rows * (tile.columns + 2) + sinks + alive)
    stages.load_lengths(count, inputs, programs)
    if sinks:
        stages.load_per_head(count, "sinks", programs)
        count.on_chip("sinks", reads=programs)  # a program's rows share their head's sink
        count.on_chip("m", writes=plan.tokens * plan.H)
    return count.ledger(programs, peak * acc.itemsize)


def _softmax_rows(count: Count, rows: int, T: int, parts: int) -> None:
    """All rows of one sequence, each of T scores in so many parts."""
    precision, scores, folds = count.plan.precision, rows * T, rows * parts
    twice = parts > 1
    # First pass: load, max, s - shift, exp, sum; m and l as in the online softmax.
    count.read("s", scores, count.plan.scores_dtype)
    count.on_chip("s", reads=4 * scores, writes=3 * scores)
    count.on_chip("m", reads=2 * folds, writes=folds)
    count.on_chip("l", reads=2 * folds, writes=2 * folds)
    count.on_chip("temporaries", reads=8 * folds, writes=6 * folds)
    count.flops += 3 * scores + 5 * folds
    count.exponentials += scores + folds
    if twice:  # load, s - m and exp again
        count.read("s", scores, count.plan.scores_dtype)
        count.on_chip("s", reads=2 * scores, writes=3 * scores)
        count.on_chip("m", reads=folds)
        count.on_chip("temporaries", reads=folds, writes=folds)
        count.flops += scores + folds
        count.exponentials += scores
    # p / l and its store; then m + ln l.
    count.on_chip("s", reads=2 * scores, writes=scores)
    count.on_chip("temporaries", reads=folds)
    count.write("p", scores, count.plan.scores_dtype)
    count.flops += scores
    count.on_chip("l", reads=rows)
    count.on_chip("m", reads=rows)
    count.on_chip("temporaries", reads=3 * rows, writes=3 * rows)
    count.flops += 2 * rows
    count.exponentials += rows
    count.write("lse", rows, precision.accumulate)


def _output(plan: Plan, inputs: Inputs) -> Ledger:
    """Kernel "output": out = P v, tile by tile."""
    total, count = totals_of(plan, dense=True), Count("output", plan)
    stages.launch(count, inputs)
    precision, elems = plan.precision, total.rows * plan.Dv
    stages.load_lengths(count, inputs, total.programs)
    count.read("p", total.scores, plan.scores_dtype)
    count.on_chip("p", reads=total.scores, writes=total.scores, dtype=precision.p)
    stages.load_v(count, inputs, total)
    count.on_chip("v", reads=total.keys * plan.Dv)
    count.on_chip("o", reads=total.folds * plan.Dv + elems, writes=total.folds * plan.Dv)
    count.matmul_flops += 2 * total.scores * plan.Dv
    count.write("out", elems, precision.storage)
    held = plan.Br * plan.Bc * precision.p.itemsize + plan.Bc * plan.Dv * plan.operand_dtype.itemsize
    return count.ledger(total.programs, held + plan.Br * plan.Dv * precision.accumulate.itemsize)
