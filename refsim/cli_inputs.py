"""What `refsim step` and `refsim traffic` run: random inputs of a shape, contiguous and in a paged cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from refsim import attention
from refsim.cli_shape import CONTIGUOUS, Shape
from refsim.kvcache import BlockManager, blocks_for
from refsim.numerics import DTYPES

if TYPE_CHECKING:
    from refsim.machine import Algorithm, Machine


@dataclass(frozen=True)
class Inputs:
    """Random q, k, v of a shape, and the same k and v in a paged cache whose blocks lie in a shuffled order."""

    shape: Shape
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    k_cache: np.ndarray
    v_cache: np.ndarray
    block_tables: np.ndarray

    def call(self, name: str, machine: Machine) -> tuple[Algorithm[..., attention.Result], list[Any], dict[str, Any]]:
        """An algorithm with its arguments for these inputs: run it, or walk it with `.steps`."""
        shape, (starts_q, starts_k) = self.shape, self.shape.starts
        keywords: dict[str, Any] = {"tile": shape.tile, "machine": machine, **shape.mask}
        if shape.ragged(name):
            keywords["cu_seqlens_q"] = starts_q
        if name == "split_kv":
            keywords["num_splits"] = shape.num_splits
        if name in CONTIGUOUS:
            if shape.ragged(name):
                keywords["cu_seqlens_k"] = starts_k
            return getattr(attention, name), [self.q, self.k, self.v], keywords
        lens = np.array([keys for _, keys in shape.lengths], np.int32)
        return getattr(attention, name), [self.q, self.k_cache, self.v_cache, self.block_tables, lens], keywords


def make_inputs(shape: Shape, seed: int) -> Inputs:
    """Draw inputs for a shape. Unused slots of the cache hold NaN.

    Raises ValueError for sizes below 1 and a seed below 0, MemoryError for a shape too large to draw.
    """
    shape.check()
    if seed < 0:
        raise ValueError(f"--seed must be 0 or more, got {seed}")
    rng, dtype, B = np.random.default_rng(seed), DTYPES[shape.dtype], shape.block_size
    starts_q, starts_k = shape.starts

    def draw(tokens: int, heads: int) -> np.ndarray:
        return rng.standard_normal((tokens, heads, shape.head_dim)).astype(dtype)

    q, k, v = draw(starts_q[-1], shape.heads), draw(starts_k[-1], shape.kv_heads), draw(starts_k[-1], shape.kv_heads)
    num_blocks = sum(blocks_for(T, B) for _, T in shape.lengths)
    manager = BlockManager(max(num_blocks, 1), B, free_order=rng.permutation(max(num_blocks, 1)).tolist())
    k_cache, v_cache = (np.full((max(num_blocks, 1), B, *rows.shape[1:]), np.nan, dtype) for rows in (k, v))
    for i, (_, T) in enumerate(shape.lengths):
        manager.allocate(i, T)
        slots = manager.slot_mapping(i, 0, T)
        for cache, rows in ((k_cache, k), (v_cache, v)):
            cache[slots // B, slots % B] = rows[starts_k[i] : starts_k[i] + T]
    return Inputs(shape, q, k, v, k_cache, v_cache, manager.block_tables(range(len(shape.lengths))))
