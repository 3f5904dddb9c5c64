"""`gpu.ops.flash`: FlashAttention as a CUDA kernel."""

from __future__ import annotations

from typing import Any

from gpu.ops.arrays import to_host
from gpu.ops.attention import Tensors, choose, choose_tile, inputs, shared_limit
from gpu.ops.call import call_struct, grid, most_tiles
from gpu.ops.launch import Prepared
from gpu.ops.operation import operation
from gpu.runtime import Runtime
from refsim.attention import Plan, Result
from refsim.attention.inputs import Metadata, contiguous_plan
from refsim.machine import Machine
from refsim.numerics import Precision


@operation
def flash(
    q: Any,
    k: Any,
    v: Any,
    *,
    tile: tuple[int, int] | None = None,
    machine: Machine | None = None,
    precision: Precision | None = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    pack_gqa: bool = False,
    form: str = "auto",
    runtime: str | Runtime = "auto",
    counted: bool = False,
    **variant: Any,
) -> Prepared[Result]:
    """`refsim.attention.flash` on a GPU, or on the emulator. q (n, H, D), k (T, G, D), v (T, G, Dv) -> Result.

    Arguments, answer and errors are the reference's; arrays may be NumPy's, CuPy's or PyTorch's, and the answer is of
    the same kind. The ledger holds the bytes that the emulator counted; on a GPU, launches and programs only.
    machine: its on-chip limit is kept. form: "scalar", "mma" (tensor cores), or "auto" for the faster of them that can
    do the call; on tensor cores a NaN in a key that one row sees reaches the other rows of its tile.
    runtime: "auto", "cupy" or "emulator", or a Runtime of your own making.
    counted: build kernels that add up their own bytes, which `gpu.ops.counted.counted_ledger` reads.
    `flash.prepare(...)` takes the same and stops before the launch, so that it can be run (and timed) many times.

    >>> import numpy as np
    >>> x = np.random.default_rng(0).standard_normal((20, 1, 32), dtype=np.float32)
    >>> flash(x, x, x, causal=True, runtime="emulator").ledger.total(tensor="q", direction="read")
    2560
    """
    where, given = choose(runtime, q, k, v), q
    q, k, v = inputs(where, q=q, k=k, v=v)
    starts = to_host(cu_seqlens_q), to_host(cu_seqlens_k)

    def plan_for(tile: Any) -> tuple[Plan, Metadata]:
        return contiguous_plan(q, k, v, tile, None, precision, *starts, pack_gqa, variant)

    limit = shared_limit(where, machine)
    plan, ints, tensor_cores = choose_tile(form, tile, plan_for, q, k, v, limit=limit)
    tensors = Tensors.of(where, plan, given, q, k, v, ints)
    call = call_struct(plan, tensors.q, tensors.k, tensors.v)
    args = tensors.named("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "alibi_slopes", "sinks", "out", "lse")
    programs = grid(plan, most_tiles(plan, plan.tile_tokens))
    name = "flash_mma" if tensor_cores else "flash"
    launch = tensors.launch(
        f"{name}.cu",
        "flash",
        programs,
        call,
        args,
        limit=limit,
        counted=counted,
        function=name,
        tensor_cores=tensor_cores,
    )
    return Prepared([launch], tensors.answer, where, plan)
