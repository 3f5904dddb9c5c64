"""The oracle against a second float64 attention, written here with full matrices and a mask asked key by key."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from refsim import oracle


def sees(i, j, n, T, causal, align, window):
    """Does query i of n see key j of T?"""
    here = i + T - n if align == "bottom-right" else i
    left, right = window or (None, None)
    return (
        (not causal or j <= here)
        and (left in (None, -1) or here - j <= left)
        and (right in (None, -1) or j - here <= right)
    )


def full_matrices(q, k, v, *, scale, causal, align, window, softcap, alibi_slopes, sinks):
    """Repeat the KV heads, make S whole, mask it, take exponentials of it as they are (inputs are small)."""
    (n, H, D), (T, G, _) = q.shape, k.shape
    k, v = (np.repeat(x, H // G, axis=1) for x in (k, v))
    s = np.einsum("nhd,thd->hnt", q, k) * (D**-0.5 if scale is None else scale)
    if softcap:
        s = np.tanh(s / softcap) * softcap
    queries, keys = np.arange(n), np.arange(T)
    if alibi_slopes is not None:
        here = queries + (T - n if align == "bottom-right" else 0)
        s = s - np.asarray(alibi_slopes)[:, None, None] * abs(here[:, None] - keys)
    visible = np.array([[sees(i, j, n, T, causal, align, window) for j in keys] for i in queries], bool).reshape(n, T)
    e = np.where(visible, np.exp(s), 0)
    total = e.sum(axis=2) + (0 if sinks is None else np.exp(np.asarray(sinks))[:, None])
    out = np.einsum("hnt,thd->nhd", e, v) / np.where(total == 0, 1, total).T[:, :, None]
    with np.errstate(divide="ignore"):
        return out, np.log(total)


sides = st.sampled_from([None, -1, 0, 1, 2, 5])


@st.composite
def calls(draw):
    G = draw(st.integers(1, 3))
    H = G * draw(st.integers(1, 4))
    n, T = draw(st.integers(0, 7)), draw(st.integers(0, 9))
    D, Dv = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    variant = {
        "scale": draw(st.sampled_from([None, 0.3, -1.0, 0.0])),
        "causal": draw(st.booleans()),
        "align": draw(st.sampled_from(["bottom-right", "top-left"])),
        "window": draw(st.none() | st.tuples(sides, sides)),
        "softcap": draw(st.sampled_from([None, 0, 2.0])),
        "alibi_slopes": draw(st.sampled_from([None, rng.random(H)])),
        "sinks": draw(st.sampled_from([None, rng.standard_normal(H)])),
    }
    return (*(rng.standard_normal(shape) for shape in ((n, H, D), (T, G, D), (T, G, Dv))), variant)


@given(calls())
def test_the_oracle_equals_full_matrices(call):
    q, k, v, variant = call
    out, lse = oracle.attention(q, k, v, **variant)
    want, want_lse = full_matrices(q, k, v, **variant)
    assert out.dtype == lse.dtype == np.float64
    np.testing.assert_allclose(out, want, atol=1e-12)
    np.testing.assert_allclose(lse, want_lse, atol=1e-12)


@given(calls(), st.integers(0, 2**32 - 1))
def test_keys_that_nobody_sees_may_hold_nan(call, seed):
    q, k, v, variant = call
    n, T = len(q), len(k)
    mask = {name: variant[name] for name in ("causal", "align", "window")}
    unseen = [j for j in range(T) if not any(sees(i, j, n, T, **mask) for i in range(n))]
    want = oracle.attention(q, k, v, **variant)
    k[unseen] = v[unseen] = np.nan
    for got, same in zip(oracle.attention(q, k, v, **variant), want, strict=True):
        np.testing.assert_array_equal(got, same)


@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.lists(st.integers(0, 9), min_size=1, max_size=3))
def test_paged_is_attention_over_the_slots_that_the_tables_name(seed, block_size, lengths):
    rng = np.random.default_rng(seed)
    blocks = [-(-T // block_size) for T in lengths]
    num_blocks = sum(blocks) + 2
    k, v = rng.standard_normal((2, num_blocks, block_size, 2, 3))
    order = rng.permutation(num_blocks).tolist()
    tables = np.full((len(lengths), max(blocks) + 1), 2147480000)  # padding that no cache has
    q_lens = rng.integers(0, 3, len(lengths))
    q = rng.standard_normal((q_lens.sum(), 4, 3))
    cu = np.cumsum([0, *q_lens])
    out, lse = np.zeros((len(q), 4, 3)), np.zeros((4, len(q)))
    for i, T in enumerate(lengths):
        mine = [order.pop() for _ in range(blocks[i])]
        tables[i, : blocks[i]] = mine
        rows = [(mine[t // block_size], t % block_size) for t in range(T)]
        keys, values = (np.array([x[at] for at in rows]).reshape(T, 2, 3) for x in (k, v))
        at = slice(cu[i], cu[i + 1])
        out[at], lse[:, at] = oracle.attention(q[at], keys, values, causal=True)
    got, got_lse = oracle.paged(q, k, v, tables, lengths, cu_seqlens_q=cu, causal=True)
    np.testing.assert_array_equal(got, out)
    np.testing.assert_array_equal(got_lse, lse)
