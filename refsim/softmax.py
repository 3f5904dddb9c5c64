"""Online softmax: a state (m, l, o) that takes scores a block at a time, and partial results that merge.

For the keys seen so far, m is the largest score, l the sum of e^(s - m) and o the sum of e^(s - m) v; the answer is
o / l. Partial answers merge by their log-sum-exp (LSE, natural log). The empty set is the identity of every operation
here: m = -inf, l = 0, o = 0, or out 0 with lse -inf.

No branch is needed for empty sets. Where a row has seen no key, scores are shifted by the lowest finite number in
place of -inf: e^(-inf - lowest) is 0, and (-inf) - (-inf), which is NaN, never arises.

Sources: "Online normalizer calculation for softmax" (the state), "FlashAttention" (with the values), "Flash-Decoding
for long-context inference" (merging by LSE).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from refsim.checks import check_array
from refsim.numerics import carrier, dtype_of, name_of

if TYPE_CHECKING:
    from jaxtyping import Float


class State(NamedTuple):
    """m (..., r), l (..., r) and o (..., r, Dv) of r rows: arrays, or tiles on a machine."""

    m: Any
    l: Any
    o: Any


def empty(*rows: int, head_dim: int, dtype: Any = np.float64) -> State:
    """The state that has seen no key. Raises TypeError for a type that has no -inf to say so.

    >>> empty(2, head_dim=1).m
    array([-inf, -inf])
    """
    dtype = dtype_of(dtype)
    m = np.full(rows, -np.inf, dtype)
    if np.isnan(m).any():
        raise TypeError(f"{name_of(dtype)} has no -inf, which is the largest score of no keys; use a wider type")
    return State(m, np.zeros(rows, dtype), np.zeros((*rows, head_dim), dtype))


def absorb(state: State, s: Float[np.ndarray, "*b r c"], v: Float[np.ndarray, "*b c Dv"]) -> State:
    """The state after c more keys with scores s and values v. Hidden keys have score -inf.

    A weight of zero never touches its value, so a hidden key's value may be NaN. Raises ValueError for shapes that
    don't fit together.

    >>> state = absorb(empty(1, head_dim=1), np.array([[0.0, 0.0]]), np.array([[1.0], [3.0]]))
    >>> finish(state)[0]
    array([[2.]])
    """
    after, s, v = State(*(np.array(part) for part in state)), np.asarray(s), np.asarray(v)
    if s.ndim < 2 or v.ndim < 2 or s.shape[:-1] != after.m.shape or v.shape[-2:] != (s.shape[-1], after.o.shape[-1]):
        raise ValueError(
            f"a state of rows {after.m.shape} and head_dim {after.o.shape[-1]} takes scores (*rows, keys) and values "
            f"(keys, head_dim), got {s.shape} and {v.shape}"
        )
    if s.shape[-1] == 0:
        return after
    absorb_in_place(after, np.array(s, after.m.dtype), v, mma=_select_matmul)
    return after


def absorb_in_place(
    state: State,
    s: Any,
    v: Any,
    *,
    mma: Callable[[Any, Any, Any], None],
    to_p: Callable[[Any], Any] = lambda p: p,
) -> None:
    """`absorb` on arrays or tiles, in place: `s` becomes P, and nothing larger than a row statistic is made.

    mma(p, v, o) does o += p v. to_p rounds P to the type in which it enters that product; l sums the unrounded P.
    """
    fade = weigh_in_place(state.m, state.l, s)
    np.multiply(state.o, fade[..., None], out=state.o)
    mma(to_p(s), v, state.o)


def weigh_in_place(m: Any, l: Any, s: Any) -> Any:
    """The scores s (..., r, c) become their weights P = e^(s - m), and m and l (..., r) take them in.

    Returns e^(m before - m after), by which sums of older weights fade.
    """
    m_new = np.maximum(m, s.max(axis=-1))
    shift = np.maximum(m_new, _lowest(s))
    np.subtract(s, shift[..., None], out=s)
    np.exp(s, out=s)
    fade = np.exp(m - shift)
    np.multiply(l, fade, out=l)
    np.add(l, s.sum(axis=-1), out=l)
    np.positive(m_new, out=m)
    return fade


def merge_states(a: State, b: State) -> State:
    """The state that has seen the keys of both. Associative and commutative; the empty state is its identity.

    >>> merge_states(empty(1, head_dim=1), empty(1, head_dim=1)).m
    array([-inf])
    """
    m = np.maximum(a.m, b.m)
    shift = np.maximum(m, _lowest(m))
    w_a, w_b = np.exp(a.m - shift), np.exp(b.m - shift)
    return State(m, w_a * a.l + w_b * b.l, _weigh(w_a, a.o) + _weigh(w_b, b.o))


def finish(state: State) -> tuple[Any, Any]:
    """(out, lse) of a state: o / l and m + ln l; an empty row gives 0 and -inf.

    >>> finish(empty(1, head_dim=1))
    (array([[0.]]), array([-inf]))
    """
    return finish_in_place(State(state.m, state.l, np.array(state.o)))


def finish_in_place(state: State) -> tuple[Any, Any]:
    """`finish` on arrays or tiles; `o` becomes out."""
    some, lse = divisor_and_lse(state.m, state.l)
    np.divide(state.o, some[..., None], out=state.o)
    return state.o, lse


def divisor_and_lse(m: Any, l: Any) -> tuple[Any, Any]:
    """What a finished row divides by, and its LSE m + ln l. Where l is 0, so is what is divided: any number does."""
    some = np.maximum(l, np.finfo(_dtype(l)).tiny)
    return some, m + np.log(some)


def merge(
    out_a: Float[np.ndarray, "n H Dv"],
    lse_a: Float[np.ndarray, "H n"],
    out_b: Float[np.ndarray, "n H Dv"],
    lse_b: Float[np.ndarray, "H n"],
) -> tuple[Float[np.ndarray, "n H Dv"], Float[np.ndarray, "H n"]]:
    """Attention over two sets of keys from the attention over each. LSEs are natural logs.

    Raises ValueError for an LSE of +inf or NaN, and for shapes that don't match.

    >>> out, lse = merge(np.ones((1, 1, 1)), np.array([[4.0]]), np.zeros((1, 1, 1)), np.array([[2.0]]))
    >>> out.item().__round__(4)
    0.8808
    """
    for name, a, b in (("outputs", out_a, out_b), ("LSEs", lse_a, lse_b)):
        if np.shape(a) != np.shape(b):
            raise ValueError(f"the two {name} must have one shape, got {np.shape(a)} and {np.shape(b)}")
        try:
            np.result_type(np.asarray(a), np.asarray(b))
        except TypeError:
            raise TypeError(
                f"the two {name} have no type in common, {np.asarray(a).dtype} and {np.asarray(b).dtype}; "
                "convert one with astype"
            ) from None
    return reduce(np.stack([out_a, out_b]), np.stack([lse_a, lse_b]))


def reduce(
    outs: Float[np.ndarray, "splits n H Dv"], lses: Float[np.ndarray, "splits H n"]
) -> tuple[Float[np.ndarray, "n H Dv"], Float[np.ndarray, "H n"]]:
    """The LSE reduction: lse = ln sum e^lse_i, out = sum e^(lse_i - lse) out_i, over axis 0.

    Partials of weight zero (lse -inf) are left out before any product, so their values may be NaN. Computed in
    float32, or float64 where an input has it; out keeps its type.

    Raises ValueError for an LSE of +inf or NaN, and for shapes that don't match; TypeError for numbers that aren't
    floating.
    """
    outs, lses = np.asarray(outs), np.asarray(lses)
    if outs.ndim != 4 or lses.shape != (outs.shape[0], outs.shape[2], outs.shape[1]):
        raise ValueError(
            "expected outs (splits, tokens, heads, Dv) and lses (splits, heads, tokens), "
            f"got {outs.shape} and {lses.shape}"
        )
    for name, x in (("outs", outs), ("lses", lses)):
        check_array(name, x)
    check_lse(lses)
    if len(outs) == 0:
        return np.zeros(outs.shape[1:], outs.dtype), np.full(lses.shape[1:], -np.inf, lses.dtype)
    wide = np.result_type(carrier(outs.dtype), carrier(lses.dtype))
    scores = lses.astype(wide)
    m = scores.max(axis=0)
    shift = np.maximum(m, _lowest(m))
    weights = np.exp(scores - shift)
    l = weights.sum(axis=0)
    some, lse = divisor_and_lse(m, l)
    shares = (weights / some).swapaxes(1, 2)  # (splits, n, H), as outs
    out = _weigh(shares, outs.astype(wide)).sum(axis=0)
    return out.astype(outs.dtype), lse.astype(lses.dtype)


def check_lse(lse: np.ndarray) -> None:
    """Refuse an LSE that can't be one, and say whose convention it is."""
    if np.isposinf(lse).any():
        raise ValueError(
            "an LSE of +inf can't be merged: it would outweigh every real key. FlashAttention-2, FlashMLA and aiter "
            "report +inf for a row that saw no key; refsim, FlashAttention-3 and flashinfer report -inf. "
            "Convert it first: np.where(np.isposinf(lse), -np.inf, lse)"
        )
    if np.isnan(lse).any():
        raise ValueError("an LSE is NaN; a partial result was read before it was written, or its keys hold NaN")


def _select_matmul(p: np.ndarray, v: np.ndarray, o: np.ndarray) -> None:
    v = np.asarray(v, o.dtype)
    o += p @ v if np.isfinite(v).all() else _weigh(p, v[..., None, :, :]).sum(axis=-2)


def _weigh(weights: np.ndarray, values: np.ndarray) -> np.ndarray:
    """weights * values, where a weight of zero gives zero whatever the value."""
    weights = weights[..., None]
    product = np.zeros(np.broadcast_shapes(weights.shape, values.shape), np.result_type(weights, values))
    return np.multiply(weights, values, out=product, where=weights != 0)


def _lowest(x: Any) -> float:
    return np.finfo(_dtype(x)).min


def _dtype(x: Any) -> np.dtype:
    return carrier(x.dtype)
