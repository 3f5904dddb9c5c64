"""Closed forms: what a million tokens cost beside a thousand, and beside running them.

Run with: pytest tests/benchmarks/test_closed_form.py -n 0 -s
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from refsim import attention
from refsim.attention import Plan
from refsim.cost import closed_form
from refsim.machine import Ledger
from tests.benchmarks.ratio import best_of_each, report

MANY = 50  # calls a timing, so that a timing is long enough
FORMS: dict[str, tuple[Callable[[Plan], Ledger], dict[str, Any]]] = {
    "standard": (closed_form.standard, {"causal": True}),
    "flash, causal": (closed_form.flash, {"causal": True}),
    "flash, window and ALiBi": (closed_form.flash, {"window": (300, 100), "alibi_slopes": np.ones(8)}),
    "paged": (closed_form.paged, {"causal": True, "block_size": 16}),
    "paged_gather": (closed_form.paged_gather, {"causal": True, "block_size": 16}),
    "split_kv, 4 splits": (closed_form.split_kv, {"causal": True, "block_size": 16}),
}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("decode", [False, True], ids=["prefill", "decode"])
def test_a_million_tokens_beside_a_thousand(name: str, decode: bool) -> None:
    form, variant = FORMS[name]
    plans = [
        Plan.of([(1 if decode else n, n)], 8, 2, 128, dtype="float16", tile=(100, 48), **variant)
        for n in (1000, 1_000_000)
    ]
    base, million = best_of_each(7, *(lambda p=plan: [form(p) for _ in range(MANY)] for plan in plans))
    report(f"{name}, 1,000,000 tokens", million / MANY, "1,000 tokens", base / MANY, "at most 2, under 0.001 s")


def test_closed_form_beside_execution() -> None:
    x = np.random.default_rng(0).standard_normal((2048, 4, 64), dtype=np.float32)
    closed, executed = best_of_each(
        3, lambda: closed_form.flash(Plan.of([(2048, 2048)], 4, 4, 64)), lambda: attention.flash(x, x, x)
    )
    report("flash over 2,048 tokens in closed form", closed, "executed", executed, "as little as may be")
