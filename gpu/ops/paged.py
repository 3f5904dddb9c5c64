"""`gpu.ops.paged`: attention over a paged cache as a CUDA kernel."""

from __future__ import annotations

from typing import Any

from gpu.ops.arrays import to_host
from gpu.ops.attention import Tensors, choose, choose_tile, inputs, shared_limit
from gpu.ops.call import call_struct, grid, most_tiles
from gpu.ops.launch import Prepared
from gpu.ops.operation import operation
from gpu.runtime import Runtime
from refsim.attention import Plan, Result
from refsim.attention.inputs import Metadata, one_layer, paged_plan
from refsim.machine import Machine
from refsim.numerics import Precision

MOST_BLOCK_SIZE = 2**20


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
    machine: Machine | None,
    variant: dict[str, Any],
) -> tuple[Tensors, bool]:
    """Check a call over a paged cache, put its tensors where kernels reach them, and say if tensor cores run it."""
    where, given = choose(runtime, q, k_cache, v_cache), q
    q, k_cache, v_cache = inputs(where, q=q, k_cache=k_cache, v_cache=v_cache)
    k_cache, v_cache = one_layer("k_cache", k_cache, layer), one_layer("v_cache", v_cache, layer)
    tables, lengths, starts = to_host(block_tables), to_host(seq_lens), to_host(cu_seqlens_q)

    def plan_for(tile: Any) -> tuple[Plan, Metadata]:
        return paged_plan(q, k_cache, v_cache, tables, lengths, tile, None, precision, starts, pack_gqa, variant)

    plan, ints, tensor_cores = choose_tile(
        form, tile, plan_for, q, k_cache, v_cache, limit=shared_limit(where, machine), rows=64
    )
    if plan.block_size is not None and plan.block_size > MOST_BLOCK_SIZE:
        raise ValueError(
            f"the kernels find a key's slot in blocks of at most {MOST_BLOCK_SIZE} tokens, got {plan.block_size}"
        )
    return Tensors.of(where, plan, given, q, k_cache, v_cache, ints), tensor_cores


def max_blocks(tensors: Tensors) -> int:
    """Columns of the block table."""
    return int(tensors.ints["block_tables"].shape[1])


@operation
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
    counted: bool = False,
    **variant: Any,
) -> Prepared[Result]:
    """`refsim.attention.paged` (stage B) on a GPU, or on the emulator; arguments, answer and errors are the same.

    Caches may be views with strides of their own (interleaved K and V, heads before slots), contiguous along the last
    axis. form, runtime, machine and the ledger: as in `gpu.ops.flash`.

    >>> import numpy as np
    >>> cache = np.ones((4, 16, 1, 32), np.float32)
    >>> result = paged(np.ones((1, 1, 32), np.float32), cache, cache, [[3, 1]], [17], runtime="emulator")
    >>> result.ledger.total(tensor="block_tables")
    8
    """
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
        machine,
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
        limit=shared_limit(tensors.runtime, machine),
        counted=counted,
        function=name,
        tensor_cores=tensor_cores,
    )
    return Prepared([launch], tensors.answer, tensors.runtime, plan)
