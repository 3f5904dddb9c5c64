"""One kernel's entries in a ledger, written down instead of run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict

import numpy as np

from refsim.attention.plan import Plan
from refsim.machine import Key, Ledger, Work
from refsim.numerics import dtype_of

INDEX = np.dtype(np.int32)  # block tables and lengths


class InputTypes(TypedDict, total=False):
    """Types of the input tensors in HBM, where they aren't the plan's storage type (an 8-bit cache, say)."""

    q_dtype: Any
    k_dtype: Any
    v_dtype: Any


@dataclass(frozen=True)
class Inputs:
    """What a plan doesn't say about a call's tensors: their types, and which metadata a program reads.

    lengths: integers that each program reads from each tensor.  table: whether block ids are read for each key tile.
    """

    q: np.dtype
    k: np.dtype
    v: np.dtype
    lengths: Mapping[str, int]
    table: bool = False

    @classmethod
    def of(cls, plan: Plan, lengths: Mapping[str, int], dtypes: InputTypes, *, table: bool = False) -> Inputs:
        """Fill in the plan's storage type where no other is given. Raises TypeError for a type or name unknown."""
        if unknown := set(dtypes) - set(InputTypes.__annotations__):
            raise TypeError(f"unknown argument {min(unknown)!r}; the types of inputs are q_dtype, k_dtype and v_dtype")
        q, k, v = (dtype_of(dtypes.get(f"{x}_dtype") or plan.precision.storage) for x in "qkv")
        return cls(q, k, v, lengths, table)


@dataclass
class Count:
    """Bytes and work of one launch. Sizes are given in elements, over all programs."""

    kernel: str
    plan: Plan
    nbytes: defaultdict[Key, int] = field(default_factory=lambda: defaultdict(int))
    matmul_flops: int = 0
    flops: int = 0
    exponentials: int = 0
    idle_programs: int = 0

    def read(self, tensor: str, elems: int, dtype: np.dtype) -> None:
        """Elements read from HBM."""
        self.nbytes[Key(self.kernel, tensor, "HBM", "read")] += elems * dtype.itemsize

    def write(self, tensor: str, elems: int, dtype: np.dtype) -> None:
        """Elements written to HBM."""
        self.nbytes[Key(self.kernel, tensor, "HBM", "write")] += elems * dtype.itemsize

    def on_chip(self, buffer: str, *, reads: int = 0, writes: int = 0, dtype: np.dtype | None = None) -> None:
        """Elements read from and written to a buffer; q, k and v lie there in the operand type, all else in sums'."""
        if dtype is None:
            dtype = self.plan.operand_dtype if buffer in ("q", "k", "v") else self.plan.precision.accumulate
        self.nbytes[Key(self.kernel, buffer, "SRAM", "read")] += reads * dtype.itemsize
        self.nbytes[Key(self.kernel, buffer, "SRAM", "write")] += writes * dtype.itemsize

    def ledger(self, programs: int, sram_peak_nbytes: int) -> Ledger:
        """The ledger of the launch; the peak is that of the programs that had something to do."""
        work = Work(
            launches=1,
            programs=programs + self.idle_programs,
            matmul_flops=self.matmul_flops,
            flops=self.flops,
            exponentials=self.exponentials,
            sram_peak_nbytes=sram_peak_nbytes if programs else 0,
        )
        return Ledger(self.nbytes, {self.kernel: work})
