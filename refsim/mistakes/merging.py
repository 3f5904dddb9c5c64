"""E1 and E2: formulas that merge blocks or splits, and what they leave out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from refsim import softmax

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class Compared:
    """What a text's formula gives, and what is right: numbers or arrays of one shape."""

    wrong: Any
    right: Any


def merge_without_the_blocks_factor(s: Float[np.ndarray, " T"], v: Float[np.ndarray, "T Dv"], block: int) -> Compared:
    """E1: fold blocks with P taken against each block's own maximum, and add `P V` as it is.

    The text's update is O = (l e^(m - m') O + P V) / l' with P = e^(s - m_block). `P V` lacks the factor
    e^(m_block - m'), so it is right only where the new block holds the largest score so far. Both give (Dv,).

    Raises ValueError for shapes that don't fit or a block below 1.

    Source: the attention-stack text, the merge formula; "FlashAttention", algorithm 1, line 12 has the factor.

    >>> v = np.array([[0.0], [1.0]])
    >>> rising = merge_without_the_blocks_factor(np.array([0.0, 1.0]), v, block=1)
    >>> falling = merge_without_the_blocks_factor(np.array([1.0, 0.0]), v, block=1)
    >>> bool(np.isclose(rising.wrong, rising.right)), falling.wrong.round(3), falling.right.round(3)
    (True, array([0.731]), array([0.269]))
    """
    s, v = np.asarray(s, np.float64), np.asarray(v, np.float64)
    if s.ndim != 1 or v.ndim != 2 or len(s) != len(v) or len(s) == 0 or block < 1:
        raise ValueError(
            f"expected scores (T,), values (T, Dv), T and block of 1 or more; got {s.shape}, {v.shape}, {block}"
        )
    m, l, o = -np.inf, 0.0, np.zeros(v.shape[1])
    state = softmax.empty(1, head_dim=v.shape[1])
    for first in range(0, len(s), block):
        part, values = s[first : first + block], v[first : first + block]
        state = softmax.absorb(state, part[None], values)
        m_block = part.max()
        p = np.exp(part - m_block)
        m_new = max(m, m_block)
        l_new = np.exp(m - m_new) * l + np.exp(m_block - m_new) * p.sum()
        o = (l * np.exp(m - m_new) * o + p @ values) / l_new
        m, l = m_new, l_new
    return Compared(wrong=o, right=softmax.finish(state)[0][0])


@dataclass(frozen=True)
class ListingCompared:
    """The answer (Dv,) of a listing with one of two things left out, with both put in, and what is right."""

    without_scale: np.ndarray
    without_l: np.ndarray
    completed: np.ndarray
    right: np.ndarray


def listing_without_scale_and_l(
    q: Float[np.ndarray, " D"], k: Float[np.ndarray, "T D"], v: Float[np.ndarray, "T Dv"], block: int
) -> ListingCompared:
    """E1 again: the tiled listing takes P against the new maximum, which is right, and leaves two other things out.

    Its scores lack 1/sqrt(D), and it divides by an l' that it never computes: l' = e^(m - m') l + rowsum(P). Whoever
    fills the second gap with the block's own sum, l' = rowsum(P), adds equal blocks up where their mean is wanted.

    Raises ValueError for shapes that don't fit or a block below 1.

    Source: the attention-stack text, the FlashAttention listing; "FlashAttention-2", algorithm 1, lines 8 to 10.

    >>> q, k, v = np.zeros(4), np.zeros((2, 4)), np.array([[0.0], [1.0]])   # two equal keys: the mean of 0 and 1
    >>> listing = listing_without_scale_and_l(q, k, v, block=1)
    >>> listing.without_l, listing.completed, listing.right
    (array([1.]), array([0.5]), array([0.5]))
    """
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    if q.ndim != 1 or v.ndim != 2 or k.shape != (len(v), len(q)) or k.size == 0 or block < 1:
        raise ValueError(
            f"expected q (D,), k (T, D), v (T, Dv), D, T and block of 1 or more; got {q.shape}, {k.shape}, {v.shape}, "
            f"{block}"
        )

    def fold(s: np.ndarray, carry_l: bool) -> np.ndarray:
        m, l, o = -np.inf, 0.0, np.zeros(v.shape[1])
        for first in range(0, len(s), block):
            part, values = s[first : first + block], v[first : first + block]
            m_new = max(m, part.max())
            p = np.exp(part - m_new)
            l_new = (np.exp(m - m_new) * l if carry_l else 0.0) + p.sum()
            o = (np.exp(m - m_new) * l * o + p @ values) / l_new
            m, l = m_new, l_new
        return o

    s = k @ q
    scaled = s * len(q) ** -0.5
    state = softmax.absorb(softmax.empty(1, head_dim=v.shape[1]), scaled[None], v)
    return ListingCompared(
        without_scale=fold(s, carry_l=True),
        without_l=fold(scaled, carry_l=False),
        completed=fold(scaled, carry_l=True),
        right=softmax.finish(state)[0][0],
    )


def largest_lse_as_the_global_one(outs: Float[np.ndarray, "splits Dv"], lses: Float[np.ndarray, " splits"]) -> Compared:
    """E2: weigh partial answers by e^(LSE_i - max LSE) and forget to divide by the sum of the weights.

    The maximum is only a shift against overflow; the global LSE is ln sum e^LSE_i. Both give (Dv,).

    Raises ValueError for shapes that don't fit, and where no split has keys.

    Source: the LSE reduction text; "Flash-Decoding for long-context inference" has the sum.

    >>> two_equal_halves = largest_lse_as_the_global_one(np.ones((2, 1)), np.zeros(2))
    >>> two_equal_halves.wrong, two_equal_halves.right
    (array([2.]), array([1.]))
    """
    outs, lses = np.asarray(outs, np.float64), np.asarray(lses, np.float64)
    if outs.ndim != 2 or lses.shape != outs.shape[:1] or lses.size == 0 or not np.isfinite(lses).any():
        raise ValueError(
            f"expected answers (splits, Dv) and an LSE for each, one of them at least of a split that has keys; got "
            f"{outs.shape} and {lses}"
        )
    wrong = np.exp(lses - lses.max()) @ outs
    right, _ = softmax.reduce(outs[:, None, None], lses[:, None, None])
    return Compared(wrong=wrong, right=right[0, 0])
