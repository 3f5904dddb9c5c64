"""FlashAttention: query tiles outside, key tiles inside; S and P never leave the chip."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from refsim.attention.call import Result
from refsim.attention.fold import attend
from refsim.attention.inputs import contiguous_call
from refsim.machine import Machine, Step, Watch, algorithm
from refsim.numerics import Precision


@algorithm
def flash(
    watch: Watch,
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
    **variant: Any,
) -> Generator[Step | None, None, Result]:
    """FlashAttention forward, in FlashAttention-2's order. q (n, H, D), k (T, G, D), v (T, G, Dv) -> Result.

    tile: (Br, Bc) query rows and keys a program holds at once; by default the largest that fits the machine.
    cu_seqlens_q, cu_seqlens_k: starts of the sequences of a ragged batch, (S + 1,) int32 each.
    machine: whose memory on chip limits the tile, and whose ledger counts this call, too; by default a new one. Calls
    may run side by side on one machine, and each result has its own ledger.
    precision: the types of matrix inputs, sums and P; by default the inputs' own, with sums in float32 or wider.
    pack_gqa: one program for the query heads of a KV head, which then loads K and V once for all of them.
    variant: scale, causal, align, window, softcap, alibi_slopes, sinks, as in `oracle.attention`.

    Raises ValueError or TypeError for inputs that don't fit together, SramOverflow for a tile that doesn't fit.

    Source: "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning", algorithm 1.

    >>> import numpy as np
    >>> x = np.random.default_rng(0).standard_normal((100, 2, 64), dtype=np.float32)
    >>> flash(x, x, x, causal=True).out.shape, len(list(flash.steps(x, x, x, tile=(64, 64))))
    ((100, 2, 64), 6)
    """
    call = contiguous_call(q, k, v, tile, machine, precision, cu_seqlens_q, cu_seqlens_k, pack_gqa, variant)
    yield from attend(watch, call, "flash")
    return call.result()
