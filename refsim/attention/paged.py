"""Attention over a paged cache: stage A copies the blocks together first, stage B walks the table in place."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from refsim.attention.call import Result
from refsim.attention.fold import attend
from refsim.attention.gather import gather_keys
from refsim.attention.inputs import paged_call
from refsim.machine import Machine, Step, Watch, algorithm
from refsim.numerics import Precision


@algorithm
def paged(
    watch: Watch,
    q: Any,
    k_cache: Any,
    v_cache: Any,
    block_tables: Any,
    seq_lens: Any,
    *,
    cu_seqlens_q: Any = None,
    layer: int | None = None,
    tile: tuple[int, int] | None = None,
    machine: Machine | None = None,
    precision: Precision | None = None,
    pack_gqa: bool = True,
    **variant: Any,
) -> Generator[Step | None, None, Result]:
    """Stage B: walk the block table and fold each tile of blocks into the running state, with no copy.

    q (tokens, H, D): one query a sequence, or prefill chunks and mixed batches with cu_seqlens_q (S + 1,).
    k_cache (num_blocks, block_size, G, D), v_cache (..., Dv); with `layer`, a layer axis in front.
    block_tables (S, max_blocks) int32: only the entries that seq_lens and the mask reach are read.
    seq_lens (S,) int32, or one number for all sequences.
    pack_gqa: the query heads of a KV head share a program, so that K and V are read once; False shows the price.
    variant: scale, causal, align, window, softcap, alibi_slopes, sinks, as in `oracle.attention`.
    tile, machine, precision: as in `flash`; key tiles are whole blocks, or even parts of one.

    Raises ValueError, TypeError or IndexError for inputs that don't fit together, SramOverflow for a tile that
    doesn't fit.

    Source: "Efficient Memory Management for Large Language Model Serving with PagedAttention", section 4.1.

    >>> import numpy as np
    >>> cache = np.arange(4, dtype=np.float32).reshape(4, 1, 1, 1)  # four blocks of one slot
    >>> paged(np.zeros((1, 1, 1), np.float32), cache, cache, [[3, 1, -1]], [2]).out.item()
    2.0
    """
    call = paged_call(
        q, k_cache, v_cache, block_tables, seq_lens, tile, machine, precision, cu_seqlens_q, layer, pack_gqa, variant
    )
    yield from attend(watch, call, "paged")
    return call.result()


@algorithm
def paged_gather(
    watch: Watch,
    q: Any,
    k_cache: Any,
    v_cache: Any,
    block_tables: Any,
    seq_lens: Any,
    *,
    cu_seqlens_q: Any = None,
    layer: int | None = None,
    tile: tuple[int, int] | None = None,
    machine: Machine | None = None,
    precision: Precision | None = None,
    pack_gqa: bool = True,
    **variant: Any,
) -> Generator[Step | None, None, Result]:
    """Stage A: copy the blocks of each sequence to contiguous K and V through HBM, then attend to the copy.

    Arguments, answer and errors are those of `paged`; the ledger shows what the copy cost (kernel "gather").

    >>> import numpy as np
    >>> cache = np.arange(4, dtype=np.float32).reshape(4, 1, 1, 1)
    >>> sorted(paged_gather(np.zeros((1, 1, 1), np.float32), cache, cache, [[3, 1]], [2]).ledger.work)
    ['flash', 'gather']
    """
    call = paged_call(
        q, k_cache, v_cache, block_tables, seq_lens, tile, machine, precision, cu_seqlens_q, layer, pack_gqa, variant
    )
    yield from gather_keys(watch, call)
    yield from attend(watch, call, "flash")
    return call.result()
