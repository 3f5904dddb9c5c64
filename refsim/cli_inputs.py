"""What `refsim step` and `refsim traffic` run on: a shape from the command line, and random inputs of that shape."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from refsim import attention
from refsim.kvcache import BlockManager, blocks_for
from refsim.numerics import DTYPES

if TYPE_CHECKING:
    from refsim.machine import Algorithm, Machine

CONTIGUOUS = ("standard", "flash")
PAGED = ("paged_gather", "paged", "split_kv")
ALGORITHMS = (*CONTIGUOUS, *PAGED)


@dataclass(frozen=True)
class Shape:
    """An attention call by its sizes: `lengths` holds (queries, keys) of each sequence."""

    lengths: tuple[tuple[int, int], ...]
    heads: int
    kv_heads: int
    head_dim: int
    dtype: str = "float32"
    tile: tuple[int, int] | None = None
    block_size: int = 16
    num_splits: int = 4
    mask: dict[str, Any] = field(default_factory=dict)

    @property
    def starts(self) -> tuple[np.ndarray, np.ndarray]:
        """cu_seqlens_q and cu_seqlens_k."""
        queries, keys = zip(*self.lengths, strict=True)
        return np.cumsum([0, *queries]).astype(np.int32), np.cumsum([0, *keys]).astype(np.int32)


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
        # Of paged caches the usual call is a decode step, one query a sequence, which needs no starts.
        if any(n != 1 for n, _ in shape.lengths) if name in PAGED else len(shape.lengths) > 1:
            keywords["cu_seqlens_q"] = starts_q
        if name == "split_kv":
            keywords["num_splits"] = shape.num_splits
        if name in CONTIGUOUS:
            if len(shape.lengths) > 1:
                keywords["cu_seqlens_k"] = starts_k
            return getattr(attention, name), [self.q, self.k, self.v], keywords
        lens = np.array([keys for _, keys in shape.lengths], np.int32)
        return getattr(attention, name), [self.q, self.k_cache, self.v_cache, self.block_tables, lens], keywords


def make_inputs(shape: Shape, seed: int) -> Inputs:
    """Draw inputs for a shape. Unused slots of the cache hold NaN.

    Raises ValueError for sizes below 1.
    """
    rng, dtype, B = np.random.default_rng(seed), DTYPES[shape.dtype], shape.block_size
    for name in ("heads", "kv_heads", "head_dim", "block_size", "num_splits"):
        if getattr(shape, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be 1 or more, got {getattr(shape, name)}")
    if any(n < 0 or T < 0 for n, T in shape.lengths):
        raise ValueError(f"queries and keys can't be negative, got {shape.lengths}")
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


def parse_algorithm(given: str) -> str:
    """The algorithm's name in Python; dashes are as good as underscores.

    >>> parse_algorithm("split-kv")
    'split_kv'
    """
    name = given.replace("-", "_")
    if name not in ALGORITHMS:
        raise ValueError(f"there is no algorithm {given!r}; choose one of {', '.join(ALGORITHMS)}")
    return name


def parse_tile(given: str | None) -> tuple[int, int] | None:
    """A tile "ROWSxKEYS".

    >>> parse_tile("128x64")
    (128, 64)
    """
    if given is None:
        return None
    if not (match := re.fullmatch(r"([1-9]\d*)[xX,]([1-9]\d*)", given)):
        raise ValueError(f"--tile must be ROWSxKEYS, both 1 or more, such as 128x64; got {given!r}")
    return int(match[1]), int(match[2])


def parse_dtype(given: str) -> str:
    """A type that kernels store, by its short name.

    >>> parse_dtype("bfloat16")
    'bfloat16'
    """
    if given not in DTYPES:
        raise ValueError(f"--dtype must be one of {', '.join(DTYPES)}; got {given!r}")
    return given


def parse_mask(causal: bool, window: int | None) -> dict[str, Any]:
    """The mask's keywords. `window` counts the keys a query sees, its own position among them, as model configs do.

    >>> parse_mask(True, 4)
    {'causal': True, 'window': (3, None)}
    """
    if window is not None and window < 1:
        raise ValueError(f"--window counts the query's own position, so it is at least 1; got {window}")
    return {"causal": causal} | ({} if window is None else {"window": (window - 1, None)})
