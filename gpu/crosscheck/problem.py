"""The inputs of a case, and three runs of it: the oracle, the reference on the machine, and the kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpu import ops
from gpu.crosscheck.cases import PAGED, Case
from gpu.ops.launch import Prepared
from gpu.ops.tiles import default_tile
from refsim import attention, oracle, softmax
from refsim.attention.merge import merge as merge_reference
from refsim.kvcache import kernels as cache_reference
from refsim.machine import Ledger
from refsim.model import rope as rope_values
from refsim.model import rope_kernel
from refsim.numerics import dtype_of

ABSURD = 2_147_480_000  # what lies in block tables beyond the entries that may be read
INPLACE = {"append": ("k_cache", "v_cache"), "copy_blocks": ("k_cache", "v_cache")}


@dataclass(frozen=True)
class Problem:
    """A case with its inputs: positional arguments by name, and keywords."""

    case: Case
    arrays: dict[str, Any]
    keywords: dict[str, Any]

    @classmethod
    def of(cls, case: Case) -> Problem:
        """Random inputs from the case's seed; everything that may not be read is poisoned."""
        rng = np.random.default_rng(case.seed)
        dtype = dtype_of(case.dtype)

        def normal(*shape: int) -> np.ndarray:
            return rng.standard_normal(shape, dtype=np.float32).astype(dtype)

        keys = {**case.variant, **case.options}
        if case.op in ("append", "copy_blocks", "merge", "rope"):
            return cls(case, _small_inputs(case, rng, normal), keys)
        queries, lengths = ([int(size[i]) for size in case.lengths] for i in (0, 1))
        q = normal(sum(queries), case.H, case.D)
        keys["tile"] = case.tile or default_tile(case.D, case.Dv, dtype.itemsize)
        if case.ragged:
            keys["cu_seqlens_q"] = np.cumsum([0, *queries], dtype=np.int32)
        if case.op in PAGED:
            k_cache, v_cache, tables = _caches(case, lengths, rng, normal)
            arrays = {"q": q, "k_cache": k_cache, "v_cache": v_cache, "block_tables": tables}
            return cls(case, arrays | {"seq_lens": np.array(lengths, np.int32)}, keys)
        if case.ragged:
            keys["cu_seqlens_k"] = np.cumsum([0, *lengths], dtype=np.int32)
        arrays = {"q": q, "k": normal(sum(lengths), case.G, case.D), "v": normal(sum(lengths), case.G, case.Dv)}
        return cls(case, arrays, keys)

    def prepare(self, runtime: Any, arrays: dict[str, Any], **more: Any) -> Prepared:
        """The kernel's call, ready to run on `arrays`."""
        return PREPARE[self.case.op](*arrays.values(), **self.keywords, runtime=runtime, **more)

    def fresh(self) -> dict[str, Any]:
        """The arrays, with copies of those that a kernel writes."""
        written = INPLACE.get(self.case.op, ())
        return {name: array.copy() if name in written else array for name, array in self.arrays.items()}

    def reference(self) -> tuple[dict[str, np.ndarray], Ledger]:
        """Outputs by name, and the ledger, of the reference."""
        arrays = self.fresh()
        keys = {name: value for name, value in self.keywords.items() if name != "form"}  # the kernels' own
        result = REFERENCE[self.case.op](*arrays.values(), **keys)
        return outputs(self.case, arrays, result), result if isinstance(result, Ledger) else result.ledger

    def oracle(self) -> dict[str, np.ndarray]:
        """Outputs by name in float64, with no tiles; for what only moves bytes, the reference's."""
        a = self.arrays
        if self.case.op in INPLACE:
            return self.reference()[0]
        if self.case.op == "merge":
            wide = [np.asarray(a[name], np.float64) for name in ("out_a", "lse_a", "out_b", "lse_b")]
            return dict(zip(("out", "lse"), softmax.merge(*wide), strict=True))
        if self.case.op == "rope":
            return {
                "out": rope_values.apply(np.asarray(a["x"], np.float64), a["positions"], a["inv_freq"], **self.keywords)
            }
        return dict(zip(("out", "lse"), self.oracle_attention(), strict=True))

    def oracle_attention(self, **changes: Any) -> tuple[np.ndarray, np.ndarray]:
        """The oracle's (out, lse) of an attention case, with some of its keywords changed."""
        a, variant = self.arrays, {**self.case.variant, **changes}
        if self.case.op in PAGED:
            return oracle.paged(*a.values(), cu_seqlens_q=self.keywords.get("cu_seqlens_q"), **variant)
        outs, lses, at_q, at_k = [], [], 0, 0
        for n, T in self.case.lengths:
            out, lse = oracle.attention(
                a["q"][at_q : at_q + n], a["k"][at_k : at_k + T], a["v"][at_k : at_k + T], **variant
            )
            outs.append(out)
            lses.append(lse)
            at_q, at_k = at_q + n, at_k + T
        return np.concatenate(outs), np.concatenate(lses, axis=1)


def outputs(case: Case, arrays: dict[str, Any], result: Any) -> dict[str, np.ndarray]:
    """What a run left, by name."""
    if case.op in INPLACE:
        return {name: arrays[name] for name in INPLACE[case.op]}
    return {"out": result.out} if case.op == "rope" else {"out": result.out, "lse": result.lse}


def _caches(
    case: Case, lengths: list[int], rng: np.random.Generator, normal: Callable[..., np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    B = case.block_size
    blocks = [-(-T // B) for T in lengths]
    order = rng.permutation(sum(blocks) + 3)
    k_cache = np.full((len(order), B, case.G, case.D), np.nan, dtype_of(case.dtype))
    v_cache = np.full((len(order), B, case.G, case.Dv), np.nan, dtype_of(case.dtype))
    tables = np.full((len(lengths), max(blocks, default=0) + 2), ABSURD, np.int32)
    taken = 0
    for i, (T, count) in enumerate(zip(lengths, blocks, strict=True)):
        tables[i, :count] = order[taken : taken + count]
        at = np.arange(T)
        k_cache[tables[i, at // B], at % B] = normal(T, case.G, case.D)
        v_cache[tables[i, at // B], at % B] = normal(T, case.G, case.Dv)
        taken += count
    return k_cache, v_cache, tables


def _small_inputs(case: Case, rng: np.random.Generator, normal: Callable[..., np.ndarray]) -> dict[str, Any]:
    n = sum(size for size, _ in case.lengths)
    if case.op == "rope":
        positions = rng.integers(0, 200_000, n)
        return {
            "x": normal(n, case.H, case.D),
            "positions": positions,
            "inv_freq": rope_values.inv_freq(case.D, 10_000.0),
        }
    if case.op == "merge":
        lses = [rng.standard_normal((case.H, n), dtype=np.float32) * 20 for _ in range(2)]
        outs = [normal(n, case.H, case.Dv) for _ in range(2)]
        for out, lse in zip(outs, lses, strict=True):
            lse[rng.random(lse.shape) < 0.2] = -np.inf
            out[np.isneginf(lse).T] = np.nan  # weighs nothing, so it may be anything
        return {"out_a": outs[0], "lse_a": lses[0], "out_b": outs[1], "lse_b": lses[1]}
    B, blocks = case.block_size, 2 * (-(-n // case.block_size)) + 2
    caches = {"k_cache": normal(blocks, B, case.G, case.D), "v_cache": normal(blocks, B, case.G, case.Dv)}
    if case.op == "copy_blocks":
        ids = rng.permutation(blocks)
        pairs = np.stack([ids[: blocks // 2], ids[blocks // 2 : 2 * (blocks // 2)]], axis=1)
        return caches | {"block_mapping": pairs}
    slots = rng.permutation(blocks * B)[:n]
    slots[rng.random(n) < 0.2] = -1
    return {"k": normal(n + 2, case.G, case.D), "v": normal(n + 2, case.G, case.Dv), "slot_mapping": slots} | caches


PREPARE: dict[str, Callable[..., Prepared]] = {
    "standard": ops.standard.prepare,
    "flash": ops.flash.prepare,
    "paged": ops.paged.prepare,
    "paged_gather": ops.paged_gather.prepare,
    "split_kv": ops.split_kv.prepare,
    "split_kv_paged": ops.split_kv.prepare,
    "append": ops.append.prepare,
    "copy_blocks": ops.copy_blocks.prepare,
    "merge": ops.merge.prepare,
    "rope": ops.rope.prepare,
}
REFERENCE: dict[str, Callable[..., Any]] = {
    "standard": attention.standard,
    "flash": attention.flash,
    "paged": attention.paged,
    "paged_gather": attention.paged_gather,
    "split_kv": attention.split_kv,
    "split_kv_paged": attention.split_kv,
    "append": cache_reference.append,
    "copy_blocks": cache_reference.copy_blocks,
    "merge": merge_reference,
    "rope": rope_kernel.rope,
}
