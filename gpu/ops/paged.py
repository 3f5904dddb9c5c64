"""`gpu.ops.paged` and `gpu.ops.paged_gather`: attention over a paged cache as CUDA kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from gpu.ops.arrays import to_host
from gpu.ops.attention import Tensors, choose, choose_tile, inputs, sram_limit
from gpu.ops.call import call_struct, grid, most_tiles
from gpu.ops.launch import Launch, Prepared
from gpu.runtime import Runtime
from refsim.attention import Plan, Result
from refsim.attention.inputs import Metadata, one_layer, paged_plan
from refsim.machine import Machine
from refsim.numerics import Precision

MOST_BLOCK_SIZE = 2**20


def paged(
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
    form: str = "auto",
    runtime: str | Runtime = "auto",
    **variant: Any,
) -> Result:
    """`refsim.attention.paged` (stage B) on a GPU, or on the emulator; arguments, answer and errors are the same.

    Caches may be views with strides of their own (interleaved K and V, heads before slots), contiguous along the last
    axis. form, runtime, machine and the ledger: as in `gpu.ops.flash`.

    >>> import numpy as np
    >>> cache = np.ones((4, 16, 1, 32), np.float32)
    >>> result = paged(np.ones((1, 1, 32), np.float32), cache, cache, [[3, 1]], [17], runtime="emulator")
    >>> result.ledger.total(tensor="block_tables")
    8
    """
    return prepare_paged(
        q,
        k_cache,
        v_cache,
        block_tables,
        seq_lens,
        cu_seqlens_q=cu_seqlens_q,
        layer=layer,
        tile=tile,
        machine=machine,
        precision=precision,
        pack_gqa=pack_gqa,
        form=form,
        runtime=runtime,
        **variant,
    ).result()


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
    **variant: Any,
) -> Result:
    """`refsim.attention.paged_gather` (stage A): copy the blocks together, then `flash` over the copy."""
    return prepare_paged_gather(
        q,
        k_cache,
        v_cache,
        block_tables,
        seq_lens,
        cu_seqlens_q=cu_seqlens_q,
        layer=layer,
        tile=tile,
        machine=machine,
        precision=precision,
        pack_gqa=pack_gqa,
        runtime=runtime,
        **variant,
    ).result()


def paged_tensors(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    block_tables: Any,
    seq_lens: Any,
    cu_seqlens_q: Any,
    layer: int | None,
    tile: Any,
    precision: Precision | None,
    pack_gqa: bool,
    form: str,
    runtime: str | Runtime,
    variant: dict[str, Any],
) -> tuple[Tensors, bool]:
    """Check a call over a paged cache, put its tensors where kernels reach them, and say if tensor cores run it."""
    where, given = choose(runtime, q, k_cache, v_cache), q
    q, k_cache, v_cache = inputs(where, q=q, k_cache=k_cache, v_cache=v_cache)
    k_cache, v_cache = one_layer("k_cache", k_cache, layer), one_layer("v_cache", v_cache, layer)
    tables, lengths, starts = to_host(block_tables), to_host(seq_lens), to_host(cu_seqlens_q)

    def plan_for(tile: Any) -> tuple[Plan, Metadata]:
        return paged_plan(q, k_cache, v_cache, tables, lengths, tile, None, precision, starts, pack_gqa, variant)

    plan, ints, tensor_cores = choose_tile(form, tile, plan_for, q, k_cache, v_cache, rows=64)
    if plan.block_size is not None and plan.block_size > MOST_BLOCK_SIZE:
        raise ValueError(
            f"the kernels find a key's slot in blocks of at most {MOST_BLOCK_SIZE} tokens, got {plan.block_size}"
        )
    return Tensors.of(where, plan, given, q, k_cache, v_cache, ints), tensor_cores


def max_blocks(tensors: Tensors) -> int:
    """Columns of the block table."""
    return int(tensors.ints["block_tables"].shape[1])


def prepare_paged(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    block_tables: Any,
    seq_lens: Any,
    *,
    cu_seqlens_q: Any = None,
    layer: int | None = None,
    tile: Any = None,
    machine: Machine | None = None,
    precision: Precision | None = None,
    pack_gqa: bool = True,
    form: str = "auto",
    runtime: str | Runtime = "auto",
    counted: bool = False,
    **variant: Any,
) -> Prepared:
    """Everything `paged` does before its launch."""
    tensors, tensor_cores = paged_tensors(
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
        form,
        runtime,
        variant,
    )
    plan = tensors.plan
    call = call_struct(plan, tensors.q, tensors.k, tensors.v, max_blocks=max_blocks(tensors))
    args = tensors.named(
        *("q", "k_cache", "v_cache", "block_tables", "seq_lens", "cu_seqlens_q", "alibi_slopes", "sinks", "out", "lse")
    )
    programs = grid(plan, most_tiles(plan, plan.tile_tokens))
    name = "paged_mma" if tensor_cores else "paged"
    launch = tensors.launch(
        f"{name}.cu",
        "paged",
        programs,
        call,
        args,
        limit=sram_limit(machine),
        counted=counted,
        function=name,
        tensor_cores=tensor_cores,
    )
    return Prepared([launch], tensors.answer, tensors.runtime, plan)


def prepare_paged_gather(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    block_tables: Any,
    seq_lens: Any,
    *,
    cu_seqlens_q: Any = None,
    layer: int | None = None,
    tile: Any = None,
    machine: Machine | None = None,
    precision: Precision | None = None,
    pack_gqa: bool = True,
    runtime: str | Runtime = "auto",
    counted: bool = False,
    **variant: Any,
) -> Prepared:
    """Everything `paged_gather` does before its launches, the room for the copy included."""
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
        limit=sram_limit(machine),
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
        "gather.cu", "gather", (len(plan.sequences) * parts, plan.G, 1), call, args, shared=0, counted=counted
    )


def _parts(plan: Plan, sequence: int) -> int:
    """Blocks, or even parts of a block, that a sequence's queries see any key of."""
    seq = plan.sequences[sequence]
    if seq.n == 0:
        return 0
    first, stop = plan.key_span(seq, range(seq.n))
    return -(-(stop - first // plan.unit * plan.unit) // plan.unit) if first < stop else 0
