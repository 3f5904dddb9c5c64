"""`gpu.ops.standard`: standard attention as three CUDA kernels, S and P through HBM."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpu.ops.arrays import to_host
from gpu.ops.attention import Tensors, choose, choose_tile, inputs, shared_limit
from gpu.ops.call import call_struct, grid, most_tiles
from gpu.ops.launch import Prepared
from gpu.ops.operation import operation
from gpu.runtime import Runtime
from refsim.attention import Plan, Result
from refsim.attention.inputs import Metadata, contiguous_plan
from refsim.attention.standard import SoftmaxTile
from refsim.machine import DEFAULT_SRAM_NBYTES, Machine
from refsim.numerics import Precision


@operation
def standard(
    q: Any,
    k: Any,
    v: Any,
    *,
    tile: tuple[int, int] | None = None,
    machine: Machine | None = None,
    precision: Precision | None = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    runtime: str | Runtime = "auto",
    counted: bool = False,
    **variant: Any,
) -> Prepared[Result]:
    """`refsim.attention.standard` on a GPU, or on the emulator; arguments, answer and errors are the same.

    Whole rows of S stay on chip in the softmax kernel where the machine's memory (by default the reference's) holds
    them. runtime and the ledger: as in `gpu.ops.flash`.

    >>> x = np.random.default_rng(0).standard_normal((20, 1, 32), dtype=np.float32)
    >>> standard(x, x, x, runtime="emulator").ledger.total(tensor="p", direction="write")
    1600
    """
    where, given = choose(runtime, q, k, v), q
    q, k, v = inputs(where, q=q, k=k, v=v)
    starts, limit = (to_host(cu_seqlens_q), to_host(cu_seqlens_k)), shared_limit(where, machine)

    def plan_for(tile: Any) -> tuple[Plan, Metadata]:
        return contiguous_plan(q, k, v, tile, None, precision, *starts, False, variant)

    plan, ints, _ = choose_tile("scalar", tile, plan_for, q, k, v, limit=limit)
    tensors = Tensors.of(where, plan, given, q, k, v, ints)
    call = call_struct(plan, tensors.q, tensors.k, tensors.v)
    longest_n = max((seq.n for seq in plan.sequences), default=0)
    longest_T = max((seq.T for seq in plan.sequences), default=0)
    stride = np.int64(plan.H * longest_n * longest_T)
    matrix = (len(plan.sequences), plan.H, longest_n, longest_T)
    s, p = (where.empty(matrix, plan.precision.p) for _ in range(2))
    rows, columns, shared = _softmax_tile(plan, machine, limit, longest_T)
    tiles, row_tiles = most_tiles(plan, plan.tile_tokens), most_tiles(plan, rows)
    lengths = tensors.named("cu_seqlens_q", "cu_seqlens_k")

    def launch(kernel: str, grid_tiles: int, args: dict[str, Any], shared: int | None = None) -> Any:
        return tensors.launch(
            "standard.cu", kernel, grid(plan, grid_tiles), call, args, limit=limit, shared=shared, counted=counted
        )

    score = {**tensors.named("q", "k"), **lengths, **tensors.named("alibi_slopes"), "s": s, "stride": stride}
    weigh = {**lengths, **tensors.named("sinks"), "s": s, "p": p, **tensors.named("lse"), "stride": stride}
    weigh |= {"rows": np.int32(rows), "row_tiles": np.int32(row_tiles), "columns": np.int32(columns)}
    sum_up = {"p": p, **tensors.named("v"), **lengths, **tensors.named("out"), "stride": stride}
    launches = [
        launch("scores", tiles, score),
        launch("softmax", row_tiles, weigh, shared),
        launch("output", tiles, sum_up),
    ]
    return Prepared(launches, tensors.answer, where, plan)


def _softmax_tile(plan: Plan, machine: Machine | None, limit: int, longest_T: int) -> tuple[int, int, int]:
    """Rows a program, columns that it keeps on chip (0: none, S is read twice), bytes that they take."""
    tile = SoftmaxTile.of(plan, min(DEFAULT_SRAM_NBYTES, limit) if machine is None else limit)
    columns = tile.columns if tile.columns >= longest_T else 0
    return tile.rows, columns, tile.rows * columns * 4
