"""`gpu.ops.split_kv`: split-KV attention as two CUDA kernels, over contiguous keys or a paged cache."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpu.ops.arrays import to_host
from gpu.ops.attention import Tensors, choose, choose_tile, inputs, shared_limit
from gpu.ops.call import call_struct, grid, most_tiles
from gpu.ops.launch import Launch, Prepared
from gpu.ops.operation import operation
from gpu.ops.paged import max_blocks, paged_tensors
from gpu.runtime import Runtime
from refsim.attention import Plan, Result
from refsim.attention.inputs import Metadata, contiguous_plan
from refsim.attention.split_kv import Handover, check_split
from refsim.machine import Machine
from refsim.numerics import Precision

BLOCKS_PER_MULTIPROCESSOR = 4  # programs that share one at the default tile


def multiprocessors(runtime: Runtime) -> int:
    """Of the device; the emulator counts as a small one."""
    return int(getattr(runtime, "multiprocessors", 2))


def choose_splits(plan: Plan, multiprocessors: int) -> int:
    """Splits that give every multiprocessor its share of programs, but no split less than two key tiles.

    >>> one = Plan.of([(1, 8192)], H=32, G=8, D=128, packed=True, block_size=16, tile=(64, 64))
    >>> many = Plan.of([(1, 8192)] * 64, H=32, G=8, D=128, packed=True, block_size=16, tile=(64, 64))
    >>> choose_splits(one, 132), choose_splits(many, 132)
    (64, 2)
    """
    programs = max(1, sum(-(-seq.n // plan.tile_tokens) for seq in plan.sequences) * plan.programs)
    longest = max((seq.T for seq in plan.sequences), default=0)
    wanted = -(-multiprocessors * BLOCKS_PER_MULTIPROCESSOR // programs)
    return max(1, min(wanted, longest // (2 * plan.Bc)))


@operation
def split_kv(
    q: Any,
    k: Any,
    v: Any,
    block_tables: Any = None,
    seq_lens: Any = None,
    *,
    num_splits: int | None = 4,
    handover: Handover = "lse",
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    layer: int | None = None,
    tile: tuple[int, int] | None = None,
    machine: Machine | None = None,
    precision: Precision | None = None,
    pack_gqa: bool = True,
    runtime: str | Runtime = "auto",
    counted: bool = False,
    **variant: Any,
) -> Prepared[Result]:
    """`refsim.attention.split_kv` on a GPU, or on the emulator; arguments, answer and errors are the same.

    num_splits: None for as many as are worth it on this device, by `choose_splits`.
    runtime, machine and the ledger: as in `gpu.ops.flash`.

    >>> x = np.random.default_rng(0).standard_normal((100, 1, 32), dtype=np.float32)
    >>> split_kv(x[:1], x, x, num_splits=3, runtime="emulator").ledger.total(tensor="lse_partial", direction="write")
    12
    """
    check_split(1 if num_splits is None else num_splits, handover, block_tables, seq_lens, cu_seqlens_k, layer)
    if block_tables is not None:
        tensors, _ = paged_tensors(
            q,
            k,
            v,
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
    else:
        tensors = _contiguous(q, k, v, cu_seqlens_q, cu_seqlens_k, tile, precision, pack_gqa, runtime, machine, variant)
    plan, where = tensors.plan, tensors.runtime
    splits = choose_splits(plan, multiprocessors(where)) if num_splits is None else int(num_splits)
    paged = plan.block_size is not None
    call = call_struct(
        plan, tensors.q, tensors.k, tensors.v, max_blocks=max_blocks(tensors) if paged else 0, num_splits=splits
    )
    scalars = ("lse_partial",) if handover == "lse" else ("m_partial", "l_partial")
    partials: dict[str, Any] = {"o_partial": where.empty((splits, plan.tokens, plan.H, plan.Dv), np.float32)}
    for name in ("lse_partial", "m_partial", "l_partial"):
        partials[name] = where.empty((splits, plan.H, plan.tokens), np.float32) if name in scalars else None
    keys = (
        ("k_cache", "v_cache", "block_tables", "seq_lens", "cu_seqlens_q")
        if paged
        else (*("k", "v"), "cu_seqlens_q", "cu_seqlens_k")
    )
    args = tensors.named("q", *keys, "alibi_slopes") | partials
    tiles = most_tiles(plan, plan.tile_tokens)
    name = "split_kv_paged" if paged else "split_kv"
    fold = tensors.launch(
        f"{name}.cu",
        "split_kv",
        grid(plan, tiles, splits),
        call,
        args,
        limit=shared_limit(tensors.runtime, machine),
        counted=counted,
        function=name,
    )
    return Prepared([fold, _reduce(tensors, call, partials, splits, machine, counted)], tensors.answer, where, plan)


def _contiguous(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    tile: Any,
    precision: Precision | None,
    pack_gqa: bool,
    runtime: str | Runtime,
    machine: Machine | None,
    variant: dict[str, Any],
) -> Tensors:
    where, given = choose(runtime, q, k, v), q
    q, k, v = inputs(where, q=q, k=k, v=v)
    starts = to_host(cu_seqlens_q), to_host(cu_seqlens_k)

    def plan_for(tile: Any) -> tuple[Plan, Metadata]:
        return contiguous_plan(q, k, v, tile, None, precision, *starts, pack_gqa, variant)

    plan, ints, _ = choose_tile("scalar", tile, plan_for, q, k, v, limit=shared_limit(where, machine))
    return Tensors.of(where, plan, given, q, k, v, ints)


def _reduce(
    tensors: Tensors, call: Any, partials: dict[str, Any], splits: int, machine: Machine | None, counted: bool
) -> Launch:
    plan = tensors.plan
    lengths = tensors.named("cu_seqlens_q", "cu_seqlens_k", "seq_lens", "sinks")
    args = lengths | partials | tensors.named("out", "lse")
    shared = (splits * plan.Br + plan.rho) * 4
    programs = grid(plan, most_tiles(plan, plan.tile_tokens))
    return tensors.launch(
        "reduce.cu",
        "reduce",
        programs,
        call,
        args,
        shared=shared,
        limit=shared_limit(tensors.runtime, machine),
        counted=counted,
    )
