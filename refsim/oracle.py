"""The oracle: attention in float64, row by row, with no tiles and no cleverness. Everything else is judged by it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from refsim.checks import check_array
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

    seq_lens: (S,), or one number for all. Only the table entries of keys that some query sees are read.

    Raises what `attention` does, ValueError for lengths and starts that don't fit, IndexError for a table entry that
    is read and names no block.

    >>> cache = np.arange(4.0).reshape(4, 1, 1, 1)  # four blocks of one slot
    >>> out, _ = paged(np.zeros((1, 1, 1)), cache, cache, [[3, 1, -1]], [2])
    >>> out.item()  # the mean of blocks 3 and 1
    2.0
    """
    for name, x, ndim in (("q", q, 3), ("k_cache", k_cache, 4), ("v_cache", v_cache, 4)):
        check_array(name, x)
        if len(x.shape) != ndim:
            raise ValueError(f"{name} must have {ndim} axes, got shape {tuple(x.shape)}")
    if k_cache.shape[:3] != v_cache.shape[:3]:
        raise ValueError(f"k_cache and v_cache must agree but for head_dim, got {k_cache.shape} and {v_cache.shape}")
    tokens, H, D = q.shape
    num_blocks, block_size, G, _ = k_cache.shape
    lens = [seq_lens] * len(block_tables) if np.ndim(seq_lens) == 0 else list(seq_lens)
    starts = list(range(len(lens) + 1)) if cu_seqlens_q is None else [int(start) for start in cu_seqlens_q]
    if not len(lens) == len(block_tables) == len(starts) - 1 or starts[-1] != tokens or min(lens, default=0) < 0:
        raise ValueError(
            f"{len(block_tables)} block tables, lengths {lens} and query starts {starts} don't fit {tokens} queries"
        )
    out, lse = np.zeros((tokens, H, v_cache.shape[3])), np.full((H, tokens), -np.inf)
    for seq, T in enumerate(lens):
        rows = slice(starts[seq], starts[seq + 1])
        n = rows.stop - rows.start
        band = Variant.of(H, D, **variant).band(n, T)
        k, v = (np.full((T, G, cache.shape[3]), np.nan) for cache in (k_cache, v_cache))
        seen = np.arange(band.first(0), band.stop(n - 1)) if n else np.arange(0)
        blocks = _blocks(seq, T, block_tables[seq], seen // block_size, num_blocks)
        k[seen], v[seen] = (cache[blocks, seen % block_size] for cache in (k_cache, v_cache))
        out[rows], lse[:, rows] = attention(q[rows], k, v, **variant)
    return out, lse


def _blocks(seq: int, T: int, table: Any, columns: np.ndarray, num_blocks: int) -> np.ndarray:
    """The entries of a table at some columns, each checked to name a block."""
    read = np.asarray(table)[columns[columns < len(table)]]
    wrong = read[(read < 0) | (read >= num_blocks)]
    if wrong.size:
        raise IndexError(
            f"sequence {seq} has {T} tokens and reads a table entry of {wrong[0]}, which is no block; "
            f"the cache has {num_blocks}"
        )
    if len(read) < len(columns):
        raise IndexError(f"sequence {seq} has {T} tokens and its table only {len(table)} entries")
    return read.astype(np.int64)
