"""Five mistakes that texts on attention make, each computed beside the right answer. Notebooks and the tour show them.

Nothing here is used by an algorithm: the right versions call the algorithms, the wrong ones do what the texts say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from refsim import softmax
from refsim.numerics import carrier, dtype_of, largest, round_to

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


@dataclass(frozen=True)
class HandoverSaving:
    """What (LSE, O) saves over (m, l, acc), as a share: of the scalars, and of all bytes that splits hand over.

    `state_nbytes` and `lse_nbytes` are counted: what the splits wrote to HBM for the reduction.
    """

    of_scalars: float
    of_traffic: float
    state_nbytes: int
    lse_nbytes: int


def saving_of_the_lse_handover(head_dim_v: int = 128, *, num_splits: int = 4) -> HandoverSaving:
    """E3: "the LSE halves the traffic". It halves the scalars; the vector beside them dwarfs both.

    Split-KV runs both ways on one query and its ledger is read: Dv + 2 numbers a split and row against Dv + 1.

    Source: the LSE reduction text.

    >>> saving = saving_of_the_lse_handover(128)
    >>> saving.of_scalars, round(1 / saving.of_traffic)
    (0.5, 130)
    """
    from refsim.attention import split_kv

    rng = np.random.default_rng(0)
    q, k = rng.standard_normal((1, 1, 8)), rng.standard_normal((4 * num_splits, 1, 8))
    v = rng.standard_normal((4 * num_splits, 1, head_dim_v))

    def handed_over(how: str) -> tuple[int, int]:
        ledger = split_kv(q, k, v, num_splits=num_splits, handover=how).ledger
        written = {
            t: ledger.total(tensor=t, direction="write") for t in ("o_partial", "lse_partial", "m_partial", "l_partial")
        }
        return sum(written.values()), sum(written.values()) - written["o_partial"]

    (state, state_scalars), (lse, lse_scalars) = handed_over("state"), handed_over("lse")
    return HandoverSaving(1 - lse_scalars / state_scalars, 1 - lse / state, state, lse)


@dataclass(frozen=True)
class OverflowRow:
    """One number type facing one large score whose value is 1: three ways to the answer, each rounded to the type.

    naive_sum is e^score and naive its answer; (m, l) and `lse` are what the two safe ways keep.
    """

    dtype: str
    largest: float
    naive_sum: float
    naive: float
    m: float
    l: float
    by_state: float
    lse: float
    by_lse: float


def overflow_table(
    score: float = 120.0, dtypes: tuple[str, ...] = ("float16", "bfloat16", "float32", "float64")
) -> list[OverflowRow]:
    """E4: "the LSE is what prevents overflow". Subtracting the maximum does: (m, l) is as safe, in every type.

    What the LSE buys is one scalar less and a merge that needs no m. And e^120 overflows float32 too, not just the
    16-bit types; float64 holds it, up to a score of 709.

    Raises ValueError for a score that a type can't hold at all, TypeError for an unknown type.

    Source: the LSE reduction text, for a score of 120.

    >>> [(row.dtype, row.naive, row.by_state, row.lse) for row in overflow_table()][2:]
    [('float32', nan, 1.0, 120.0), ('float64', 1.0, 1.0, 120.0)]
    """
    rows = []
    for name in dtypes:
        dtype = dtype_of(name)
        with np.errstate(over="ignore"):
            s = round_to(np.array([score], carrier(dtype)), dtype)
        if not np.isfinite(s.item()):
            raise ValueError(f"{name} holds no score of {score:g}, up to {largest(dtype):g}: nothing can be kept of it")
        with np.errstate(over="ignore", invalid="ignore"):
            naive_sum = round_to(np.exp(s), dtype)
            naive = naive_sum * 1.0 / naive_sum
        m = s
        l = round_to(np.exp(s - m), dtype)
        lse = round_to(m + np.log(l), dtype)
        rows.append(
            OverflowRow(
                dtype=name,
                largest=largest(dtype),
                naive_sum=naive_sum.item(),
                naive=naive.item(),
                m=m.item(),
                l=l.item(),
                by_state=(np.exp(m - m) * 1.0 / l).item(),
                lse=lse.item(),
                by_lse=np.exp(s - lse).item(),
            )
        )
    return rows


@dataclass(frozen=True)
class Bandwidths:
    """HBM bytes a second: what the text gives for both, and what each of the two A100s has."""

    claimed: float
    a100_40: float
    a100_80: float


def bandwidth_of_an_a100() -> Bandwidths:
    """E5: "2 TB/s for HBM of 40 to 80 GB". Only the 80 GB card comes near; the 40 GB one has a quarter less.

    Source: the attention-stack text; the devices' figures and their sources are in refsim/cost/devices.toml.

    >>> a100 = bandwidth_of_an_a100()
    >>> a100.a100_40 / 1e12, a100.a100_80 / 1e12
    (1.555, 2.039)
    """
    from refsim.cost import devices

    return Bandwidths(2e12, devices.get("A100-40").hbm_bytes_per_s, devices.get("A100-80").hbm_bytes_per_s)
