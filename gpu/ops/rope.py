"""`gpu.ops.rope`: rotary position embedding as a CUDA kernel."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpu.ops.arrays import like, to_host
from gpu.ops.attention import choose, inputs
from gpu.ops.launch import Launch, Prepared
from gpu.ops.modules import check_storage, macros, module
from gpu.ops.operation import operation
from gpu.runtime import Runtime
from refsim.model.rope import Style
from refsim.model.rope_kernel import Rotated, check_rope


@operation
def rope(
    x: Any, positions: Any, inv_freq: Any, style: Style = "half", *, attention_factor: float = 1.0,
    runtime: str | Runtime = "auto", counted: bool = False,
) -> Prepared[Rotated]:  # fmt: skip
    """`refsim.model.rope_kernel.rope` on a GPU, or on the emulator: (out, ledger) for x (tokens, heads, d).

    >>> x = np.array([[[1.0, 2.0, 3.0, 4.0]]], np.float32)
    >>> rope(x, [1], [1.0, 0.01], "interleaved", runtime="emulator").out.round(4)
    array([[[-1.1426,  1.9221,  2.9599,  4.0298]]], dtype=float32)
    """
    where, given = choose(runtime, x), x
    (x,) = inputs(where, x=x)
    at, frequencies = check_rope(x, to_host(positions), to_host(inv_freq), style)
    check_storage(x.dtype)
    x = where.asarray(x)
    tokens, heads, d = x.shape
    out = where.empty(x.shape, x.dtype)
    args = {"x": x, "positions": where.asarray(at), "inv_freq": where.asarray(frequencies), "out": out}
    compiled = module(where, "rope.cu", macros(x.dtype, aligned=False, counted=counted, HEAD_DIM=d))
    rest = np.int32(heads), np.int32(style == "interleaved"), np.float64(attention_factor)
    launch = Launch("rope", compiled, (tokens if heads else 0, 1, 1), (*args.values(), *rest), tuple(args))
    return Prepared([launch], lambda ledger: Rotated(like(given, out, where), ledger), where)
