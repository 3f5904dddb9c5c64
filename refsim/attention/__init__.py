"""Attention algorithms, each written once as steps on the machine: call one for its result, or walk it with `.steps`.

standard, flash and split_kv take contiguous keys; paged_gather (stage A), paged (stage B) and split_kv a paged cache.
"""

from refsim.attention.call import Result
from refsim.attention.flash import flash
from refsim.attention.paged import paged, paged_gather
from refsim.attention.plan import Plan, Sequence
from refsim.attention.split_kv import split_kv
from refsim.attention.standard import standard

__all__ = ["Plan", "Result", "Sequence", "flash", "paged", "paged_gather", "split_kv", "standard"]
