"""The closed-form ledger of a case, from its sizes alone."""

from __future__ import annotations

from typing import Any

from gpu.crosscheck.cases import PAGED
from gpu.crosscheck.problem import Problem
from refsim.attention import Plan
from refsim.cost import closed_form, closed_form_cache
from refsim.machine import Ledger


def closed_form_ledger(problem: Problem) -> Ledger:
    """What the case's op moves, written down instead of run."""
    case, keys = problem.case, problem.keywords
    n = sum(size for size, _ in case.lengths)
    if case.op == "append":
        slots = problem.arrays["slot_mapping"]
        return closed_form_cache.append(len(slots), int((slots < 0).sum()), case.G, case.D, case.Dv, case.dtype)
    if case.op == "copy_blocks":
        pairs = len(problem.arrays["block_mapping"])
        return closed_form_cache.copy_blocks(pairs, case.block_size, case.G, case.D, case.Dv, case.dtype)
    if case.op == "merge":
        return closed_form_cache.merge(n, case.H, case.Dv, case.dtype)
    if case.op == "rope":
        return closed_form_cache.rope(n, case.H, case.D, case.dtype)
    variant: dict[str, Any] = dict(case.variant)
    plan = Plan.of(
        case.lengths,
        case.H,
        case.G,
        case.D,
        case.Dv,
        dtype=case.dtype,
        tile=keys["tile"],
        packed=keys.get("pack_gqa", case.op not in ("standard", "flash")),
        block_size=case.block_size if case.op in PAGED else None,
        **variant,
    )
    if case.op.startswith("split_kv"):
        split = {name: keys[name] for name in ("num_splits", "handover") if name in keys}
        return closed_form.split_kv(plan, ragged=case.ragged, **split)
    form = {
        "standard": closed_form.standard,
        "flash": closed_form.flash,
        "paged": closed_form.paged,
        "paged_gather": closed_form.paged_gather,
    }[case.op]
    return form(plan, ragged=case.ragged)
