"""The front door: every part of refsim by its name, imported when it is first used.

import refsim

out, lse = refsim.oracle.attention(q, k, v, causal=True)
result = refsim.attention.flash(q, k, v, causal=True)        # the same answer, and result.ledger
for step in refsim.attention.flash.steps(q, k, v): ...       # the same run, a step at a time
decoder = refsim.model.load()
refsim.charts.traffic_by_algorithm({"flash": result.ledger})
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from refsim import attention, charts, cost, kvcache, machine, mistakes, model, numerics, oracle, serving, softmax
    from refsim.attention import Result
    from refsim.kvcache import BlockManager, PagedKV
    from refsim.machine import Ledger, Machine, SramOverflow, Step
    from refsim.numerics import Precision

_PARTS = (
    *("attention", "charts", "cost", "kvcache", "machine", "mistakes", "model", "numerics"),
    *("oracle", "serving", "softmax"),
)
_NAMES = {
    "BlockManager": "refsim.kvcache",
    "Ledger": "refsim.machine",
    "Machine": "refsim.machine",
    "PagedKV": "refsim.kvcache",
    "Precision": "refsim.numerics",
    "Result": "refsim.attention",
    "SramOverflow": "refsim.machine",
    "Step": "refsim.machine",
}

__all__ = [
    "BlockManager",
    "Ledger",
    "Machine",
    "PagedKV",
    "Precision",
    "Result",
    "SramOverflow",
    "Step",
    "attention",
    "charts",
    "cost",
    "kvcache",
    "machine",
    "mistakes",
    "model",
    "numerics",
    "oracle",
    "serving",
    "softmax",
]


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    if name in _PARTS:
        return importlib.import_module(f"refsim.{name}")
    raise AttributeError(f"module 'refsim' has no attribute {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
