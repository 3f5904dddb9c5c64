"""`gpu.ops.paged_gather`: stage A as CUDA kernels, a copy of the blocks and then `flash` over it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from gpu.ops.attention import Tensors, shared_limit
from gpu.ops.call import call_struct, grid, most_tiles
from gpu.ops.launch import Launch, Prepared
from gpu.ops.operation import operation
from gpu.ops.paged import max_blocks, paged_tensors
from gpu.runtime import Runtime
from refsim.attention import Plan, Result
from refsim.machine import Machine
from refsim.numerics import Precision


@operation
def paged_gather(
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
    runtime: str | Runtime = "auto",
    counted: bool = False,
    **variant: Any,
) -> Prepared[Result]:
    """`refsim.attention.paged_gather` (stage A): copy the blocks together, then `flash` over the copy."""
    paged, _ = paged_tensors(
        q,
        k_cache,
        v_cache,
        block_tables,
        seq_lens,
        cu_seqlens_q,
        layer,
        tile,
        precision,
        pack_gqa,
        "scalar",
        runtime,
        machine,
        variant,
    )
    plan, where = paged.plan, paged.runtime
    starts = np.cumsum([0, *(seq.T for seq in plan.sequences)], dtype=np.int32)
    k = where.empty((int(starts[-1]), plan.G, plan.D), plan.precision.storage)
    v = where.empty((int(starts[-1]), plan.G, plan.Dv), plan.precision.storage)
    # The second kernel's plan: the same rows and tile, over contiguous keys.
    flat = replace(plan, block_size=None)
    copied = replace(paged, plan=flat, k=k, v=v, ints=paged.ints | {"cu_seqlens_k": where.asarray(starts)})
    flash = copied.launch(
        "flash.cu",
        "flash",
        grid(flat, most_tiles(flat, flat.tile_tokens)),
        call_struct(flat, paged.q, k, v),
        copied.named("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "alibi_slopes", "sinks", "out", "lse"),
        limit=shared_limit(where, machine),
        counted=counted,
    )
    return Prepared([_gather(paged, copied, counted=counted), flash], copied.answer, where, plan)


def _gather(paged: Tensors, copied: Tensors, *, counted: bool) -> Launch:
    plan = paged.plan
    parts = max((_parts(plan, i) for i in range(len(plan.sequences))), default=0)
    call = call_struct(plan, paged.q, paged.k, paged.v, max_blocks=max_blocks(paged))
    call["query_tiles"] = parts
    args = paged.named("k_cache", "v_cache", "block_tables", "seq_lens", "cu_seqlens_q")
    args |= copied.named("cu_seqlens_k", "k", "v")
    return paged.launch(
        "gather.cu",
        "gather",
        (len(plan.sequences) * parts, plan.G, 1),
        call,
        args,
        shared=0,
        limit=shared_limit(paged.runtime, None),
        counted=counted,
    )


def _parts(plan: Plan, sequence: int) -> int:
    """Blocks, or even parts of a block, that a sequence's queries see any key of."""
    seq = plan.sequences[sequence]
    if seq.n == 0:
        return 0
    first, stop = plan.key_span(seq, range(seq.n))
    return -(-(stop - first // plan.unit * plan.unit) // plan.unit) if first < stop else 0
