"""From hidden states to heads and back: projection, head split, and which KV head a query head reads.

Q = X Wq, K = X Wk, V = X Wv, cut in heads of D numbers; attention runs in each head; the results are laid side by side
and projected by Wo (Vaswani et al. 2017, "Attention is all you need", section 3.2.2). With fewer KV heads than query
heads (GQA, MQA), a group of *neighbouring* query heads shares one KV head.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float, Int64


def group_size(num_heads: int, num_kv_heads: int) -> int:
    """Query heads that share one KV head. Raises ValueError unless num_kv_heads divides num_heads."""
    if num_heads < 1 or num_kv_heads < 1 or num_heads % num_kv_heads:
        raise ValueError(
            f"query heads must be a multiple of KV heads: got {num_heads} query heads and {num_kv_heads} KV heads"
        )
    return num_heads // num_kv_heads


def kv_head_of(num_heads: int, num_kv_heads: int) -> Int64[np.ndarray, "heads"]:
    """The KV head each query head reads: h // (H/G). One head a group is MHA, one KV head in all is MQA.

    Neither h // G nor h % G: both give numbers in range, so nothing crashes and every head reads the wrong keys.

    >>> kv_head_of(8, 2)
    array([0, 0, 0, 0, 1, 1, 1, 1])
    """
    return np.arange(num_heads) // group_size(num_heads, num_kv_heads)


def split_heads(x: Float[np.ndarray, "tokens heads*d"], num_heads: int) -> Float[np.ndarray, "tokens heads d"]:
    """Cut each row in heads: head h takes numbers h*d to (h+1)*d. A view; raises ValueError where it does not divide.

    >>> split_heads(np.arange(6).reshape(1, 6), 2)
    array([[[0, 1, 2],
            [3, 4, 5]]])
    """
    tokens, width = x.shape
    if num_heads < 1 or width % num_heads:
        raise ValueError(f"{width} numbers a token cannot be cut in {num_heads} heads of equal size")
    return x.reshape(tokens, num_heads, width // num_heads)


def merge_heads(x: Float[np.ndarray, "tokens heads d"]) -> Float[np.ndarray, "tokens heads*d"]:
    """Lay the heads side by side again; the inverse of `split_heads`."""
    tokens, heads, d = x.shape
    return x.reshape(tokens, heads * d)


def multi_head_attention(
    x: Float[np.ndarray, "tokens dim"],
    wq: Float[np.ndarray, "dim heads*d"],
    wk: Float[np.ndarray, "dim kv_heads*d"],
    wv: Float[np.ndarray, "dim kv_heads*dv"],
    wo: Float[np.ndarray, "heads*dv dim"],
    num_heads: int,
    num_kv_heads: int,
    attention: Callable[..., Any],
    **keywords: Any,
) -> Float[np.ndarray, "tokens dim"]:
    """The whole layer of the paper, with no cache and no positions: project, split, attend, merge, project.

    `attention(q, k, v, **keywords)` returns (out, lse), as `oracle.attention` does, or has an `out`.

    >>> from refsim import oracle
    >>> one = np.eye(2)
    >>> multi_head_attention(np.ones((3, 2)), one, one, one, one, 2, 2, oracle.attention)
    array([[1., 1.],
           [1., 1.],
           [1., 1.]])
    """
    group_size(num_heads, num_kv_heads)
    q, k, v = split_heads(x @ wq, num_heads), split_heads(x @ wk, num_kv_heads), split_heads(x @ wv, num_kv_heads)
    result = attention(q, k, v, **keywords)
    out = result[0] if isinstance(result, tuple) else result.out
    return merge_heads(out) @ wo
