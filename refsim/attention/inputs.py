"""From arrays to a `Call`: every check of an attention call's inputs, before anything runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from refsim.attention.call import Call, ContiguousKeys
from refsim.attention.paged_keys import PagedKeys
from refsim.attention.plan import Plan
from refsim.checks import check_array, integers, whole_number
from refsim.machine import Machine
from refsim.machine.machine import machine_of
from refsim.numerics import Precision, name_of
from refsim.variant import check_heads, check_qkv


@dataclass(frozen=True)
class Metadata:
    """The integers of a call, checked, in the type that kernels read them: None where the call has no such tensor."""

    cu_seqlens_q: np.ndarray | None = None
    cu_seqlens_k: np.ndarray | None = None
    block_tables: np.ndarray | None = None
    seq_lens: np.ndarray | None = None


def contiguous_call(
    q: Any,
    k: Any,
    v: Any,
    tile: tuple[int, int] | None,
    machine: Machine | None,
    precision: Precision | None,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    packed: bool,
    variant: dict[str, Any],
) -> Call:
    """Check q (n, H, D), k (T, G, D), v (T, G, Dv) and lay them out on the machine."""
    machine = machine_of(machine)
    plan, ints = contiguous_plan(
        q, k, v, tile, machine.sram_nbytes, precision, cu_seqlens_q, cu_seqlens_k, packed, variant
    )
    q, k, v = (np.asarray(x) for x in (q, k, v))
    starts_k = ints.cu_seqlens_k
    keys = ContiguousKeys(machine, k, v, [0] if starts_k is None else starts_k.tolist(), starts_k)
    return Call(plan, machine, keys, q, cu_seqlens_q=ints.cu_seqlens_q)


def contiguous_plan(
    q: Any,
    k: Any,
    v: Any,
    tile: tuple[int, int] | None,
    sram_nbytes: int | None,
    precision: Precision | None,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    packed: bool,
    variant: dict[str, Any],
) -> tuple[Plan, Metadata]:
    """Check a call over contiguous keys without touching the values of q, k and v, which may lie on a GPU."""
    n, H, D, T, G, Dv = check_qkv(q, k, v)
    storage = _storage(precision, q)
    if (cu_seqlens_q is None) != (cu_seqlens_k is None):
        raise ValueError("a ragged batch needs both cu_seqlens_q and cu_seqlens_k; only one was given")
    starts_q = starts_k = None
    lengths: list[Any] = [(n, T)]
    if cu_seqlens_q is not None:
        starts_q, starts_k = _starts("cu_seqlens_q", cu_seqlens_q, n), _starts("cu_seqlens_k", cu_seqlens_k, T)
        if len(starts_q) != len(starts_k):
            raise ValueError(f"cu_seqlens_q names {len(starts_q) - 1} sequences and cu_seqlens_k {len(starts_k) - 1}")
        lengths = list(zip(np.diff(starts_q).tolist(), np.diff(starts_k).tolist(), strict=True))
    plan = Plan.of(
        lengths,
        H,
        G,
        D,
        Dv,
        precision=precision or Precision.of(storage),
        tile=tile,
        sram_nbytes=sram_nbytes,
        packed=packed,
        **variant,
    )
    return plan, Metadata(cu_seqlens_q=starts_q, cu_seqlens_k=starts_k)


def paged_call(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    block_tables: Any,
    seq_lens: Any,
    tile: tuple[int, int] | None,
    machine: Machine | None,
    precision: Precision | None,
    cu_seqlens_q: Any,
    layer: int | None,
    packed: bool,
    variant: dict[str, Any],
) -> Call:
    """Check q (tokens, H, D), caches (num_blocks, block_size, G, D), tables and lengths, and lay them out."""
    machine = machine_of(machine)
    k_cache, v_cache = one_layer("k_cache", k_cache, layer), one_layer("v_cache", v_cache, layer)
    plan, ints = paged_plan(
        q,
        k_cache,
        v_cache,
        block_tables,
        seq_lens,
        tile,
        machine.sram_nbytes,
        precision,
        cu_seqlens_q,
        packed,
        variant,
    )
    assert ints.block_tables is not None
    assert ints.seq_lens is not None
    keys = PagedKeys(machine, np.asarray(k_cache), np.asarray(v_cache), ints.block_tables, ints.seq_lens)
    return Call(plan, machine, keys, np.asarray(q), cu_seqlens_q=ints.cu_seqlens_q)


def paged_plan(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    block_tables: Any,
    seq_lens: Any,
    tile: tuple[int, int] | None,
    sram_nbytes: int | None,
    precision: Precision | None,
    cu_seqlens_q: Any,
    packed: bool,
    variant: dict[str, Any],
) -> tuple[Plan, Metadata]:
    """Check a call over a paged cache, of `one_layer`, without touching the values of q and the caches."""
    storage = _storage(precision, q)
    if len(q.shape) != 3:
        raise ValueError(f"q must have 3 axes (tokens, heads, head_dim), got shape {tuple(q.shape)}")
    if k_cache.shape[:3] != v_cache.shape[:3]:
        raise ValueError(
            f"k_cache and v_cache must agree in blocks, slots and heads, got {k_cache.shape} and {v_cache.shape}"
        )
    tokens, H, D = q.shape
    num_blocks, block_size, G, Dk = k_cache.shape
    check_heads(H, G, D, Dk)
    if block_size < 1:
        raise ValueError(f"a block must hold at least one token; k_cache has shape {k_cache.shape}")
    tables = integers("block_tables", block_tables, 2, wrong=TypeError)  # what isn't read may be anything
    lens = np.full(len(tables), seq_lens) if np.ndim(seq_lens) == 0 else seq_lens
    lens = integers("seq_lens", lens, 1, np.int32, wrong=TypeError)
    if len(tables) != len(lens):
        raise ValueError(f"block_tables has {len(tables)} rows and seq_lens {len(lens)} lengths; one each a sequence")
    if (lens < 0).any():
        raise ValueError(f"seq_lens can't be negative, got {lens.tolist()}")
    starts = None if cu_seqlens_q is None else _starts("cu_seqlens_q", cu_seqlens_q, tokens)
    queries = np.ones(len(lens), np.int64) if starts is None else np.diff(starts)
    if len(queries) != len(lens):
        raise ValueError(f"cu_seqlens_q names {len(queries)} sequences and seq_lens {len(lens)}")
    if queries.sum() != tokens:
        raise ValueError(
            f"q has {tokens} tokens for {len(lens)} sequences; without cu_seqlens_q there must be one a sequence"
        )
    plan = Plan.of(
        list(zip(queries.tolist(), lens.tolist(), strict=True)),
        H,
        G,
        D,
        v_cache.shape[3],
        precision=precision or Precision.of(storage),
        tile=tile,
        sram_nbytes=sram_nbytes,
        packed=packed,
        block_size=block_size,
        **variant,
    )
    _check_tables(plan, tables, num_blocks)
    return plan, Metadata(cu_seqlens_q=starts, block_tables=tables.astype(np.int32), seq_lens=lens)


def _check_tables(plan: Plan, tables: np.ndarray, num_blocks: int) -> None:
    """Every entry that would be read must name a block; what lies beyond is padding and may be anything."""
    B = plan.block_size or 1
    for seq in plan.sequences:
        if seq.n == 0:
            continue
        first, stop = plan.key_span(seq, range(seq.n))
        if -(-stop // B) > tables.shape[1]:
            raise ValueError(
                f"sequence {seq.index} has {seq.T} tokens in blocks of {B} and needs {-(-stop // B)} table entries; "
                f"block_tables has {tables.shape[1]} columns"
            )
        read = tables[seq.index, first // B : -(-stop // B)]
        wrong = np.flatnonzero((read < 0) | (read >= num_blocks))
        if len(wrong):
            at = first // B + int(wrong[0])
            blocks = f"blocks 0 to {num_blocks - 1}" if num_blocks else "no blocks"
            raise ValueError(
                f"block_tables[{seq.index}, {at}] is {tables[seq.index, at]}, and the cache has {blocks}; "
                f"sequence {seq.index} with {seq.T} tokens reads that entry"
            )


def _storage(precision: Precision | None, q: Any) -> np.dtype:
    """The type of q, which `precision` must store."""
    storage = check_array("q", q)
    if isinstance(precision, Precision) and precision.storage != storage:
        raise TypeError(
            f"q is {name_of(storage)} and precision.storage {name_of(precision.storage)}: tensors lie in HBM as they "
            f"are given. Convert q, k and v with astype, or begin with Precision.of({name_of(storage)!r}, ...)"
        )
    return storage


def one_layer(name: str, cache: Any, layer: int | None) -> Any:
    """The cache of one layer, (num_blocks, block_size, G, D)."""
    check_array(name, cache)
    ndim = len(cache.shape)
    layer = None if layer is None else whole_number("layer", layer, wrong=TypeError)
    if layer is not None and ndim == 5:
        if not 0 <= layer < cache.shape[0]:
            raise IndexError(f"layer {layer} of {name} was asked for; it has layers 0 to {cache.shape[0] - 1}")
        return cache[layer]
    if ndim != 4 or layer is not None:
        raise ValueError(
            f"{name} must be (num_blocks, block_size, num_kv_heads, head_dim), or have layers in front and `layer` "
            f"given; got shape {tuple(cache.shape)} with layer={layer}"
        )
    return cache


def _starts(name: str, values: Any, total: int) -> np.ndarray:
    starts = integers(name, values, 1, np.int32, wrong=TypeError)
    if len(starts) == 0 or starts[0] != 0 or starts[-1] != total or (np.diff(starts) < 0).any():
        raise ValueError(f"{name} must rise from 0 to the number of tokens, {total}; got {starts.tolist()}")
    return starts
