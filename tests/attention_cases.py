"""Random attention problems and every algorithm as a function of one of them. Shared by unit and property tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from refsim import attention, oracle
from refsim.attention import Result
from refsim.machine import Machine


@dataclass
class Problem:
    """A ragged batch: per-sequence q, k, v and the keywords of the call."""

    q: list[np.ndarray]
    k: list[np.ndarray]
    v: list[np.ndarray]
    variant: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def random(
        cls,
        seed: int,
        lengths: list[tuple[int, int]],
        H: int,
        G: int,
        D: int,
        Dv: int,
        dtype: Any = np.float32,
        **variant: Any,
    ) -> Problem:
        rng = np.random.default_rng(seed)

        def normal(*shape: int) -> np.ndarray:
            return rng.standard_normal(shape).astype(dtype)

        return cls(
            [normal(n, H, D) for n, _ in lengths],
            [normal(T, G, D) for _, T in lengths],
            [normal(T, G, Dv) for _, T in lengths],
            variant,
        )

    @property
    def H(self) -> int:
        return self.q[0].shape[1]

    def flat(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        """q, k, v one sequence after another, with the starts of each."""
        starts = {
            name: np.cumsum([0, *(len(x) for x in parts)], dtype=np.int32)
            for name, parts in (("cu_seqlens_q", self.q), ("cu_seqlens_k", self.k))
        }
        return np.concatenate(self.q), np.concatenate(self.k), np.concatenate(self.v), starts

    def caches(self, block_size: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """k_cache, v_cache, block_tables, seq_lens: blocks in random order, all unused slots NaN, tails absurd."""
        rng = np.random.default_rng(seed)
        needed = [-(-len(k) // block_size) for k in self.k]
        num_blocks = sum(needed) + 3
        ids = rng.permutation(num_blocks)[: sum(needed)]
        tables = np.full((len(needed), max(needed) + 2), 2147480000, np.int32)
        caches = [
            np.full((num_blocks, block_size, *parts[0].shape[1:]), np.nan, parts[0].dtype) for parts in (self.k, self.v)
        ]
        for seq, count in enumerate(needed):
            tables[seq, :count], ids = ids[:count], ids[count:]
            tables[seq, count] = -1
            at = np.arange(len(self.k[seq]))
            for cache, parts in zip(caches, (self.k, self.v), strict=True):
                cache[tables[seq, at // block_size], at % block_size] = parts[seq]
        return caches[0], caches[1], tables, np.array([len(k) for k in self.k], np.int32)

    def truth(self) -> tuple[np.ndarray, np.ndarray]:
        """The oracle's out (tokens, H, Dv) and lse (H, tokens)."""
        answers = [oracle.attention(*x, **self.variant) for x in zip(self.q, self.k, self.v, strict=True)]
        return np.concatenate([out for out, _ in answers]), np.concatenate([lse for _, lse in answers], axis=1)


def run(
    algorithm: str,
    problem: Problem,
    *,
    block_size: int | None = None,
    tile: tuple[int, int] | None = None,
    sram_nbytes: int | None = None,
    **options: Any,
) -> Result:
    """Run an algorithm by name; over a paged cache where it needs one, or where `block_size` is given."""
    q, k, v, starts = problem.flat()
    common = {"tile": tile, "machine": Machine(sram_nbytes=sram_nbytes), **options, **problem.variant}
    call = getattr(attention, algorithm)
    if block_size is None:
        return call(q, k, v, **starts, **common)
    k_cache, v_cache, tables, seq_lens = problem.caches(block_size)
    return call(q, k_cache, v_cache, tables, seq_lens, cu_seqlens_q=starts["cu_seqlens_q"], **common)


ALGORITHMS: list[tuple[str, bool, dict[str, Any]]] = [
    ("standard", False, {}),
    ("flash", False, {}),
    ("flash", False, {"pack_gqa": True}),
    ("split_kv", False, {"num_splits": 3}),
    ("split_kv", False, {"num_splits": 5, "handover": "state", "pack_gqa": False}),
    ("paged_gather", True, {}),
    ("paged", True, {}),
    ("paged", True, {"pack_gqa": False}),
    ("split_kv", True, {"num_splits": 4}),
    ("split_kv", True, {"num_splits": 2, "handover": "state"}),
]
"""(name, over a paged cache, options): every way to run every algorithm."""
