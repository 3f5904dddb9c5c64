"""Closed form of split-KV: the splits' kernel and the reduction."""

from __future__ import annotations

from typing import Unpack

from refsim.attention.plan import Plan
from refsim.attention.split_kv import Handover, check_splits, few_tokens
from refsim.cost.closed_form import stages
from refsim.cost.closed_form.count import Count, Inputs, InputTypes
from refsim.cost.closed_form.tiled import check_plan, lengths, paged_inputs, walk_keys
from refsim.cost.closed_form.totals import totals_of
from refsim.machine import Ledger


def split_kv(
    plan: Plan,
    *,
    num_splits: int = 4,
    handover: Handover = "lse",
    ragged: bool = False,
    **dtypes: Unpack[InputTypes],
) -> Ledger:
    """The ledger of `attention.split_kv`: over a paged cache where the plan has a block_size, else contiguous keys.

    num_splits, handover: as in `attention.split_kv`. Takes time in proportion to the splits that may get keys, not to
    the lengths. Other arguments: as in `flash` and `paged`. Raises ValueError for a num_splits or handover that isn't
    one.

    >>> from refsim.attention import Plan
    >>> plan = Plan.of([(1, 1000)], H=1, G=1, D=64, packed=True)
    >>> split_kv(plan, num_splits=4).total(tensor="lse_partial", direction="write")
    16
    """
    check_plan(plan)
    num_splits = check_splits(num_splits, handover)
    if plan.block_size is None:
        inputs = Inputs.of(plan, lengths(ragged), dtypes)
    else:
        inputs = paged_inputs(plan, "split_kv", ragged, dtypes)
    return _splits(plan, inputs, num_splits, handover) + _reduce(plan, inputs, num_splits, handover)


def _splits(plan: Plan, inputs: Inputs, num_splits: int, handover: Handover) -> Ledger:
    """Kernel "split_kv": a program for each query tile, head and split."""
    total, count = totals_of(plan, num_splits=num_splits), Count("split_kv", plan)
    stages.launch(count, inputs, splits=num_splits)
    stages.load_q(count, inputs, total)
    walk_keys(count, inputs, total)
    if handover == "lse":
        stages.finish(count, total)
        stages.store(count, total, out="o_partial", lse="lse_partial", partial=True)
    else:
        acc = plan.precision.accumulate
        for buffer, elems in (("o", total.rows * plan.Dv), ("m", total.rows), ("l", total.rows)):
            count.on_chip(buffer, reads=elems)
            count.write(f"{buffer}_partial", elems, acc)
    peak = stages.fold_peak(plan, total.peaks, sinks=False, finishes=handover == "lse")
    return count.ledger(total.programs, peak)


def _reduce(plan: Plan, inputs: Inputs, num_splits: int, handover: Handover) -> Ledger:
    """Kernel "reduce": a program for each query tile and head, over all its splits.

    `weights` lie where the first scalars were loaded: the LSEs, or the maxima that a state hands over.
    """
    total, count = totals_of(plan), Count("reduce", plan)
    acc, rows, Dv = plan.precision.accumulate, total.rows, plan.Dv
    scalars = num_splits * rows
    weights = "lse_partial" if handover == "lse" else "m_partial"
    stages.launch(count, inputs)
    stages.load_lengths(count, inputs, total.programs)
    # Load, max, subtract the shift, exp; later the division by l, and one use of each weight in o * weight.
    count.read(weights, scalars, acc)
    count.on_chip(weights, reads=4 * scalars + scalars, writes=4 * scalars)
    count.flops += 3 * scalars
    count.exponentials += scalars
    # Row statistics: m, shift, l, l or tiny, ln of it, the sum; shift, weights - shift, weights / l and lse read them.
    count.on_chip("temporaries", reads=7 * rows, writes=6 * rows)
    count.flops += 3 * rows
    count.exponentials += rows
    if handover == "lse":
        count.on_chip(weights, reads=scalars)  # l sums the weights
        count.flops += scalars
    else:
        count.read("l_partial", scalars, acc)
        count.on_chip("l_partial", reads=2 * scalars, writes=2 * scalars)  # l weighs its splits' sums
        count.on_chip(weights, reads=scalars)
        count.flops += 2 * scalars
    if plan.variant.sinks is not None:
        # One more logit: in the maximum, and as e^(sink - shift) in l.
        stages.load_per_head(count, "sinks", total.programs)
        count.on_chip("sinks", reads=2 * rows)
        count.on_chip("temporaries", reads=5 * rows, writes=4 * rows)
        count.flops += 3 * rows
        count.exponentials += rows
    # Each split's o: loaded, multiplied by its weight, added.
    elems = num_splits * rows * Dv
    count.read("o_partial", elems, acc)
    count.on_chip("o_partial", reads=2 * elems, writes=2 * elems)
    count.on_chip("o", reads=elems, writes=elems)
    count.flops += 2 * elems
    stages.store(count, total)
    held = (num_splits * (1 if handover == "lse" else 2) + Dv) * plan.rows
    held += few_tokens(plan) * plan.rho * Dv + (plan.rho if plan.variant.sinks is not None else 0)
    # m, shift, l, l or tiny, ln of it and lse live at the end.
    return count.ledger(total.programs, (held + 6 * total.peaks.rows) * acc.itemsize)
