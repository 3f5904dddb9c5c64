"""The oracle: attention in float64, row by row, with no tiles and no cleverness. Everything else is judged by it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from refsim.variant import Align, Variant, check_qkv

if TYPE_CHECKING:
    from jaxtyping import Float


def attention(
    q: Float[np.ndarray, "n H D"],
    k: Float[np.ndarray, "T G D"],
    v: Float[np.ndarray, "T G Dv"],
    *,
    scale: float | None = None,
    causal: bool = False,
    align: Align = "bottom-right",
    window: tuple[int | None, int | None] | None = None,
    softcap: float | None = None,
    alibi_slopes: Any = None,
    sinks: Any = None,
) -> tuple[Float[np.ndarray, "n H Dv"], Float[np.ndarray, "H n"]]:
    """softmax(scale q k^T) v and its log-sum-exp (natural log), both float64, any floating inputs.

    Query head h reads KV head h // (H/G). Keys that a row doesn't see are not read, so NaN there can't matter.
    A row that sees no key gives out 0 and lse -inf. A sink adds exp(sink) to the denominator and so counts in lse.

    Raises ValueError or TypeError for shapes and keywords that don't fit together.

    Source: "Attention Is All You Need", equation 1; the (out, lse) pair as in "FlashAttention", algorithm 1.

    >>> out, lse = attention(np.zeros((2, 1, 4)), np.zeros((5, 1, 4)), np.arange(5.0).reshape(5, 1, 1), causal=True)
    >>> out.ravel(), np.exp(lse).round(6)
    (array([1.5, 2. ]), array([[4., 5.]]))
    """
    n, H, D, T, G, Dv = check_qkv(q, k, v)
    variant = Variant.of(
        H,
        D,
        scale=scale,
        causal=causal,
        align=align,
        window=window,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        sinks=sinks,
    )
    band = variant.band(n, T)
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    out, lse = np.zeros((n, H, Dv)), np.full((H, n), -np.inf)
    for i in range(n):
        keys = np.arange(band.first(i), band.stop(i))
        s = variant.scale * np.einsum("grd,tgd->grt", q[i].reshape(G, H // G, D), k[keys]).reshape(H, len(keys))
        if variant.softcap is not None:
            s = variant.softcap * np.tanh(s / variant.softcap)
        if variant.alibi_slopes is not None:
            s = s - variant.alibi_slopes[:, None] * np.abs(i + band.offset - keys)
        logits = s if variant.sinks is None else np.concatenate([s, variant.sinks[:, None]], axis=1)
        if logits.shape[1] == 0:
            continue
        m = logits.max(axis=1, keepdims=True)
        l = np.exp(logits - m).sum(axis=1)
        p = np.exp(s - m) / l[:, None]
        out[i] = np.einsum("grt,tgd->grd", p.reshape(G, H // G, len(keys)), v[keys]).reshape(H, Dv)
        lse[:, i] = m[:, 0] + np.log(l)
    return out, lse


def paged(
    q: Float[np.ndarray, "tokens H D"],
    k_cache: Float[np.ndarray, "num_blocks block_size G D"],
    v_cache: Float[np.ndarray, "num_blocks block_size G Dv"],
    block_tables: Any,
    seq_lens: Any,
    *,
    cu_seqlens_q: Any = None,
    **variant: Any,
) -> tuple[Float[np.ndarray, "tokens H Dv"], Float[np.ndarray, "H tokens"]]:
    """`attention` of each sequence over the keys that its block table names; one query a sequence by default.

    >>> cache = np.arange(4.0).reshape(4, 1, 1, 1)  # four blocks of one slot
    >>> out, _ = paged(np.zeros((1, 1, 1)), cache, cache, [[3, 1, -1]], [2])
    >>> out.item()  # the mean of blocks 3 and 1
    2.0
    """
    block_size = k_cache.shape[1]
    starts = np.arange(len(seq_lens) + 1) if cu_seqlens_q is None else np.asarray(cu_seqlens_q)
    out, lse = np.zeros((q.shape[0], q.shape[1], v_cache.shape[3])), np.full((q.shape[1], q.shape[0]), -np.inf)
    for seq, T in enumerate(seq_lens):
        rows = slice(starts[seq], starts[seq + 1])
        at = np.arange(T)
        blocks, slots = np.asarray(block_tables[seq], np.int64)[at // block_size], at % block_size
        if (blocks < 0).any():
            raise IndexError(
                f"sequence {seq} has {T} tokens and reads a table entry of {blocks.min()}, which is no block"
            )
        out[rows], lse[:, rows] = attention(q[rows], k_cache[blocks, slots], v_cache[blocks, slots], **variant)
    return out, lse
