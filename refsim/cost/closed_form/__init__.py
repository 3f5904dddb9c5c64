"""Closed forms: the ledger of an attention call from its plan alone, in time that doesn't depend on its lengths.

Each function is named as the algorithm in `refsim.attention` whose ledger it gives, and gives it exactly, for a run on
a fresh machine: bytes in HBM and on chip by kernel, tensor and direction, FLOPs, exponentials, launches, programs, and
the most bytes that a program held on chip.
"""

from refsim.cost.closed_form.split_kv import split_kv
from refsim.cost.closed_form.standard import standard
from refsim.cost.closed_form.tiled import flash, paged, paged_gather

__all__ = ["flash", "paged", "paged_gather", "split_kv", "standard"]
