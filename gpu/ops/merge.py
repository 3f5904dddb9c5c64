"""`gpu.ops.merge`: attention over two sets of keys from the attention over each, as a CUDA kernel."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpu.ops.arrays import like, to_host
from gpu.ops.attention import choose, inputs
from gpu.ops.cache import check_one_type
from gpu.ops.launch import Launch, Prepared
from gpu.ops.modules import macros, module
from gpu.ops.operation import operation
from gpu.runtime import Runtime
from refsim.attention import Result
from refsim.attention.merge import ROWS, check_merge
from refsim.softmax import check_lse


@operation
def merge(
    out_a: Any, lse_a: Any, out_b: Any, lse_b: Any, *, runtime: str | Runtime = "auto", counted: bool = False
) -> Prepared[Result]:
    """`refsim.attention.merge.merge` on a GPU, or on the emulator. LSEs are float32 natural logs, -inf for empty.

    LSEs are looked at on the host first, since +inf or NaN would spoil the answer without a word.

    >>> one, two = np.ones((1, 1, 1), np.float32), np.full((1, 1), 2.0, np.float32)
    >>> merge(one, 2 * two, 0 * one, two, runtime="emulator").out.item().__round__(4)
    0.8808
    """
    where, given = choose(runtime, out_a, lse_a, out_b, lse_b), out_a
    out_a, lse_a, out_b, lse_b = (
        where.asarray(x) for x in inputs(where, out_a=out_a, lse_a=lse_a, out_b=out_b, lse_b=lse_b)
    )
    check_merge(out_a, lse_a, out_b, lse_b)
    check_one_type(out_a=out_a, out_b=out_b)
    if lse_a.dtype != np.float32:
        raise TypeError(f"the kernel reads LSEs of float32, got {lse_a.dtype}")
    for lse in (lse_a, lse_b):
        host = to_host(lse)
        assert host is not None
        check_lse(host)
    n, H, Dv = out_a.shape
    out, lse = where.empty((n, H, Dv), out_a.dtype), where.empty((H, n), np.float32)
    args = {"out_a": out_a, "lse_a": lse_a, "out_b": out_b, "lse_b": lse_b, "out": out, "lse": lse}
    compiled = module(where, "merge.cu", macros(out_a.dtype, aligned=False, counted=counted, V_HEAD_DIM=Dv, ROWS=ROWS))
    launch = Launch("merge", compiled, (-(-n // ROWS), H, 1), (*args.values(), np.int64(n), np.int32(H)), tuple(args))
    return Prepared([launch], lambda ledger: Result(like(given, out, where), like(given, lse, where), ledger), where)
