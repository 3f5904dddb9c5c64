"""Closed forms of what folds key tiles into a state: flash, paged (stage B) and paged_gather (stage A)."""

from __future__ import annotations

from typing import Any, Unpack

from refsim.attention.plan import Plan
from refsim.cost.closed_form import stages
from refsim.cost.closed_form.count import INDEX, Count, Inputs, InputTypes
from refsim.cost.closed_form.totals import Totals, parts_of_blocks, totals_of
from refsim.machine import Ledger


def flash(plan: Plan, *, ragged: bool = False, **dtypes: Unpack[InputTypes]) -> Ledger:
    """The ledger of `attention.flash` (see the package for what a closed form is).

    plan: the call's plan, over contiguous keys (no block_size).  ragged: whether it was given cu_seqlens_q and
    cu_seqlens_k.  q_dtype, k_dtype, v_dtype: the inputs' types, where they aren't the plan's storage type.

    Raises ValueError for a plan over a paged cache.

    >>> from refsim.attention import Plan
    >>> plan = Plan.of([(1_000_000, 1_000_000)], H=32, G=8, D=128, dtype="float16", causal=True, tile=(128, 128))
    >>> f"{flash(plan).matmul_flops:.3e}"  # half of 4 n n D H, and the diagonal tiles whole
    '8.193e+15'
    """
    return fold(plan, "flash", Inputs.of(contiguous(plan, "flash"), lengths(ragged), dtypes))


def paged(plan: Plan, *, ragged: bool = False, **dtypes: Unpack[InputTypes]) -> Ledger:
    """The ledger of `attention.paged`, stage B. `plan` has a block_size; `ragged`: the call was given cu_seqlens_q.

    Raises ValueError for a plan over contiguous keys.

    >>> from refsim.attention import Plan
    >>> plan = Plan.of([(1, 100)], H=8, G=2, D=64, packed=True, block_size=16, tile=(16, 32))
    >>> paged(plan).total(tensor="block_tables")  # 7 int32 entries for each of 2 KV heads
    56
    """
    return fold(plan, "paged", paged_inputs(plan, "paged", ragged, dtypes))


def paged_gather(plan: Plan, *, ragged: bool = False, **dtypes: Unpack[InputTypes]) -> Ledger:
    """The ledger of `attention.paged_gather`, stage A: kernel "gather", then "flash" over the copy.

    Arguments and errors: as in `paged`.

    >>> from refsim.attention import Plan
    >>> plan = Plan.of([(1, 100)], H=8, G=2, D=64, packed=True, block_size=16, tile=(16, 32))
    >>> paged_gather(plan).total(kernel="gather", tensor="k", direction="write") == 100 * 2 * 64 * 4
    True
    """
    cache = paged_inputs(plan, "paged_gather", ragged, dtypes)
    starts = ({"cu_seqlens_q": 2} if ragged else {}) | {"cu_seqlens_k": 2}  # the copy always is a ragged batch
    return _gather(plan, cache) + fold(plan, "flash", Inputs(cache.q, cache.k, cache.v, starts))


def fold(plan: Plan, kernel: str, inputs: Inputs) -> Ledger:
    """`refsim.attention.fold.attend`: a program for each query tile and head, which folds every key that it sees."""
    total, count = totals_of(plan), Count(kernel, plan)
    stages.launch(count, inputs)
    stages.load_q(count, inputs, total)
    if plan.variant.sinks is not None:
        stages.start_with_sinks(count, total)
    walk_keys(count, inputs, total)
    stages.finish(count, total)
    stages.store(count, total)
    return count.ledger(total.programs, stages.fold_peak(plan, total.peaks))


def walk_keys(count: Count, inputs: Inputs, total: Totals) -> None:
    """`refsim.attention.fold.fold_keys`, with the slopes that its scores need."""
    if count.plan.variant.alibi_slopes is not None:
        stages.load_per_head(count, "alibi_slopes", total.programs)
    stages.load_k(count, inputs, total)
    stages.scores(count, total)
    stages.load_v(count, inputs, total)
    stages.absorb(count, total)


def _gather(plan: Plan, inputs: Inputs) -> Ledger:
    """`refsim.attention.gather`: a program for each KV head and each part of a block, which it reads and writes.

    The launch is as wide for every sequence as for the longest; programs without a part read the lengths and stop.
    """
    parts, keys, longest = zip((0, 0, 0), *(parts_of_blocks(plan, seq) for seq in plan.sequences), strict=True)
    programs, count = plan.G * sum(parts), Count("gather", plan)
    count.idle_programs = plan.G * (max(parts) * len(plan.sequences) - sum(parts))
    stages.load_lengths(count, inputs, programs + count.idle_programs)
    count.read("cu_seqlens_k", programs, INDEX)
    count.read("block_tables", programs, INDEX)
    for name, head_dim, dtype in (("k", plan.D, inputs.k), ("v", plan.Dv, inputs.v)):
        elems = plan.G * sum(keys) * head_dim
        count.read(f"{name}_cache", elems, dtype)
        count.on_chip(f"{name}_cache", reads=elems, writes=elems, dtype=dtype)
        count.write(name, elems, dtype)
    return count.ledger(programs, max(longest) * (plan.D * inputs.k.itemsize + plan.Dv * inputs.v.itemsize))


def contiguous(plan: Plan, name: str) -> Plan:
    """The plan, once it is certain that it is one, and not over a paged cache."""
    check_plan(plan)
    if plan.block_size is not None:
        raise ValueError(f"{name} reads contiguous keys, and this plan is over blocks of {plan.block_size}")
    return plan


def check_plan(plan: Any) -> None:
    """TypeError for what is no plan."""
    if not isinstance(plan, Plan):
        raise TypeError(f"plan must be a Plan, made by attention.Plan.of(...); got a {type(plan).__name__}")


def lengths(ragged: bool) -> dict[str, int]:
    """The metadata that a program over contiguous keys reads: where its sequence starts and ends."""
    return {"cu_seqlens_q": 2, "cu_seqlens_k": 2} if ragged else {}


def paged_inputs(plan: Plan, name: str, ragged: bool, dtypes: InputTypes) -> Inputs:
    """The inputs of a call over a paged cache."""
    check_plan(plan)
    if plan.block_size is None:
        raise ValueError(f"{name} reads a paged cache: make its plan with block_size=...")
    reads = ({"cu_seqlens_q": 2} if ragged else {}) | {"seq_lens": 1}
    return Inputs.of(plan, reads, dtypes, table=True)
