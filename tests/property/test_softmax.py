"""Online softmax: however keys are split, ordered and merged, the answer is that of one softmax over all of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsim import softmax

seeds = st.integers(0, 2**32 - 1)
rows, head_dims, counts = st.integers(1, 4), st.integers(1, 5), st.integers(0, 24)
magnitudes = st.sampled_from([1e-3, 1.0, 30.0, 1e4])


def problem(rng, r, T, Dv, magnitude, hidden=0.2):
    """Scores (r, T), some hidden, and values (T, Dv)."""
    s = magnitude * rng.standard_normal((r, T))
    s[rng.random((r, T)) < hidden] = -np.inf
    return s, rng.standard_normal((T, Dv))


def direct(s, v):
    """One softmax a row over the keys it sees, with Python loops around NumPy's own log-sum-exp."""
    out, lse = np.zeros((len(s), v.shape[1])), np.full(len(s), -np.inf)
    for i, row in enumerate(s):
        seen = row > -np.inf
        if seen.any():
            lse[i] = np.logaddexp.reduce(row[seen])
            out[i] = np.exp(row[seen] - lse[i]) @ v[seen]
    return out, lse


def chunks(rng, T):
    """The keys in any order, cut anywhere; chunks may be empty."""
    cuts = np.sort(rng.integers(0, T + 1, size=rng.integers(0, 6)))
    return np.split(rng.permutation(T), cuts)


def merged(rng, parts, merge):
    """Merge two of the parts, any two, until one is left: a random tree."""
    parts = list(parts)
    while len(parts) > 1:
        a, b = (parts.pop(rng.integers(len(parts))) for _ in range(2))
        parts.append(merge(a, b))
    return parts[0]


def absorbed(s, v, order):
    return softmax.absorb(softmax.empty(len(s), head_dim=v.shape[1]), s[:, order], v[order])


def close(got, want, magnitude=1.0):
    """Equal to float64 rounding: scores of size x carry an error of about x * 1e-16 into the exponent."""
    np.testing.assert_allclose(got[0], want[0], rtol=0, atol=1e-13 * max(1, magnitude))
    np.testing.assert_allclose(got[1], want[1], rtol=1e-13, atol=1e-13 * max(1, magnitude))


@given(seeds, rows, counts, head_dims, magnitudes)
def test_blocks_in_any_order_give_the_softmax_of_all(seed, r, T, Dv, magnitude):
    rng = np.random.default_rng(seed)
    s, v = problem(rng, r, T, Dv, magnitude)
    state = softmax.empty(r, head_dim=Dv)
    for order in chunks(rng, T):
        state = softmax.absorb(state, s[:, order], v[order])
    close(softmax.finish(state), direct(s, v), magnitude)


@given(seeds, rows, counts, head_dims, magnitudes)
def test_any_tree_of_merged_states_gives_the_softmax_of_all(seed, r, T, Dv, magnitude):
    rng = np.random.default_rng(seed)
    s, v = problem(rng, r, T, Dv, magnitude)
    states = [absorbed(s, v, order) for order in chunks(rng, T)]
    close(softmax.finish(merged(rng, states, softmax.merge_states)), direct(s, v), magnitude)


@given(seeds, rows, counts, head_dims, magnitudes)
def test_any_tree_of_lse_merges_gives_the_softmax_of_all(seed, r, T, Dv, magnitude):
    rng = np.random.default_rng(seed)
    s, v = problem(rng, r, T, Dv, magnitude)
    partials = []
    for order in chunks(rng, T):
        out, lse = softmax.finish(absorbed(s, v, order))
        partials.append((out[None], lse[:, None]))  # the rows stand for heads of one token
    out, lse = merged(rng, partials, lambda a, b: softmax.merge(*a, *b))
    close((out[0], lse[:, 0]), direct(s, v), magnitude)
    out, lse = softmax.reduce(np.stack([o for o, _ in partials]), np.stack([x for _, x in partials]))
    close((out[0], lse[:, 0]), direct(s, v), magnitude)


@given(seeds, rows, head_dims, magnitudes)
def test_merging_states_is_commutative_associative_and_has_an_identity(seed, r, Dv, magnitude):
    rng = np.random.default_rng(seed)
    s, v = problem(rng, r, 9, Dv, magnitude, hidden=0.5)
    a, b, c = (absorbed(s, v, order) for order in np.split(np.arange(9), 3))
    merge, nothing = softmax.merge_states, softmax.empty(r, head_dim=Dv)
    for x, y in zip(merge(a, b), merge(b, a), strict=True):
        np.testing.assert_array_equal(x, y)
    for x, y in zip(merge(merge(a, b), c), merge(a, merge(b, c)), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-13)
    for one in (merge(a, nothing), merge(nothing, a)):
        for x, y in zip(one, a, strict=True):
            np.testing.assert_array_equal(x, y)


@given(seeds, st.integers(1, 3), st.integers(1, 3), head_dims)
def test_merging_by_lse_is_commutative_associative_and_has_an_identity(seed, n, H, Dv):
    rng = np.random.default_rng(seed)
    outs, lses = rng.standard_normal((3, n, H, Dv)), 5 * rng.standard_normal((3, H, n))
    lses[rng.random(lses.shape) < 0.3] = -np.inf
    outs[np.isneginf(lses).swapaxes(1, 2)] = 0
    a, b, c = zip(outs, lses, strict=True)
    nothing = np.zeros((n, H, Dv)), np.full((H, n), -np.inf)
    merge = softmax.merge

    def same(x, y):
        np.testing.assert_allclose(x[0], y[0], atol=1e-14)
        np.testing.assert_allclose(x[1], y[1], atol=1e-14)

    same(merge(*a, *b), merge(*b, *a))
    same(merge(*merge(*a, *b), *c), merge(*a, *merge(*b, *c)))
    same(merge(*a, *nothing), a)
    same(merge(*nothing, *a), a)


def test_two_empty_states_merge_to_the_empty_state():
    nothing = softmax.empty(2, head_dim=3)
    m, l, o = softmax.merge_states(nothing, nothing)
    assert np.isneginf(m).all()
    assert not l.any()
    assert not o.any()
    out, lse = softmax.finish(softmax.merge_states(nothing, nothing))
    assert not out.any()
    assert np.isneginf(lse).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_two_empty_partials_merge_to_zero_and_minus_infinity(dtype):
    out, lse = np.zeros((1, 2, 3), dtype), np.full((2, 1), -np.inf, dtype)
    got, got_lse = softmax.merge(out, lse, out, lse)
    np.testing.assert_array_equal(got, out)
    np.testing.assert_array_equal(got_lse, lse)
    assert got.dtype == got_lse.dtype == dtype


def test_a_block_of_hidden_keys_changes_nothing():
    before = absorbed(np.array([[1.0, 2.0]]), np.array([[3.0], [4.0]]), [0, 1])
    after = softmax.absorb(before, np.full((1, 3), -np.inf), np.ones((3, 1)))
    for x, y in zip(after, before, strict=True):
        np.testing.assert_array_equal(x, y)


def test_absorbing_leaves_its_arguments_alone():
    state, s, v = softmax.empty(1, head_dim=1), np.array([[1.0, 2.0]]), np.array([[3.0], [4.0]])
    after = softmax.absorb(state, s, v)
    np.testing.assert_array_equal(s, [[1.0, 2.0]])
    assert np.isneginf(state.m).all()
    assert not state.o.any()
    kept = after.o.copy()
    softmax.finish(after)
    np.testing.assert_array_equal(after.o, kept)


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_a_weight_of_zero_never_touches_its_value(poison):
    v = np.array([[poison], [5.0]])
    close(softmax.finish(absorbed(np.array([[-np.inf, 2.0]]), v, [0, 1])), (np.array([[5.0]]), np.array([2.0])))


def test_a_partial_with_no_key_may_hold_nan():
    nan, five = np.full((1, 1, 1), np.nan), np.full((1, 1, 1), 5.0)
    for a, b in [((nan, [[-np.inf]]), (five, [[2.0]])), ((five, [[2.0]]), (nan, [[-np.inf]]))]:
        out, lse = softmax.merge(a[0], np.array(a[1]), b[0], np.array(b[1]))
        assert (out.item(), lse.item()) == (5.0, 2.0)
    empty = softmax.State(np.array([-np.inf]), np.array([0.0]), np.array([[np.nan]]))
    real = softmax.State(np.array([2.0]), np.array([1.0]), np.array([[5.0]]))
    assert softmax.merge_states(empty, real).o.item() == 5.0


def test_an_lse_of_plus_infinity_is_refused_and_whose_it_is_named():
    prefix, suffix = (np.zeros((1, 1, 1)), np.array([[np.inf]])), (np.full((1, 1, 1), 2.0), np.array([[1.0]]))
    with pytest.raises(ValueError, match=r"FlashAttention-2.*report \+inf for a row that saw no key.*np\.where"):
        softmax.merge(*prefix, *suffix)
    mended = np.where(np.isposinf(prefix[1]), -np.inf, prefix[1])
    out, lse = softmax.merge(prefix[0], mended, *suffix)
    assert (out.item(), lse.item()) == (2.0, 1.0)


def test_an_lse_of_nan_is_refused():
    with pytest.raises(ValueError, match="NaN"):
        softmax.reduce(np.zeros((1, 1, 1, 1)), np.full((1, 1, 1), np.nan))


def test_lses_in_base_two_merge_to_a_known_wrong_value():
    """Natural LSEs 4 and 2 weigh as e^2 to 1; the same LSEs in base 2, taken for natural, as e^(2/ln 2) to 1."""
    one, zero = np.ones((1, 1, 1)), np.zeros((1, 1, 1))
    out, lse = softmax.merge(one, np.array([[4.0]]), zero, np.array([[2.0]]))
    assert out.item() == pytest.approx(0.8808, abs=5e-5)
    assert lse.item() == pytest.approx(np.log(np.exp(4) + np.exp(2)))
    wrong, _ = softmax.merge(one, np.array([[5.7708]]), zero, np.array([[2.8854]]))
    assert wrong.item() == pytest.approx(0.9471, abs=5e-5)


def test_scores_that_overflow_every_exponential_do_no_harm():
    """e^120 overflows float32 (and 16-bit types); nothing here computes it."""
    s, v = np.array([[120.0, 118.0]], np.float32), np.array([[1.0], [0.0]], np.float32)
    state = softmax.absorb(softmax.empty(1, head_dim=1, dtype=np.float32), s, v)
    out, lse = softmax.finish(state)
    assert out.item() == pytest.approx(1 / (1 + np.exp(-2.0)), rel=1e-6)
    assert lse.item() == pytest.approx(120 + np.log1p(np.exp(-2.0)), rel=1e-6)


def test_no_partials_at_all_are_the_empty_answer():
    out, lse = softmax.reduce(np.zeros((0, 2, 3, 4)), np.zeros((0, 3, 2)))
    np.testing.assert_array_equal(out, np.zeros((2, 3, 4)))
    np.testing.assert_array_equal(lse, np.full((3, 2), -np.inf))


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((2, 1, 3), (3, 2), (2, 1, 4), (3, 2)), r"outputs must have one shape, got \(2, 1, 3\) and \(2, 1, 4\)"),
        (((2, 1, 3), (1, 2), (2, 1, 3), (2, 1)), r"LSEs must have one shape, got \(1, 2\) and \(2, 1\)"),
        (((2, 1, 3), (2, 1), (2, 1, 3), (2, 1)), r"lses \(splits, heads, tokens\), got .*\(2, 2, 1\)"),
    ],
)
def test_shapes_that_do_not_match_are_refused(shapes, message):
    with pytest.raises(ValueError, match=message):
        softmax.merge(*(np.zeros(shape) for shape in shapes))


def test_narrow_outputs_are_reduced_in_float32_and_keep_their_type():
    import ml_dtypes

    outs = np.array([1.0, 0.0], ml_dtypes.bfloat16).reshape(2, 1, 1, 1)
    out, lse = softmax.reduce(outs, np.zeros((2, 1, 1), np.float32))
    assert out.dtype == ml_dtypes.bfloat16
    assert float(out.item()) == 0.5
    assert lse.dtype == np.float32


def test_a_state_in_a_type_without_infinity_is_refused():
    with pytest.raises(TypeError, match="e4m3 has no -inf"):
        softmax.empty(2, head_dim=1, dtype="e4m3")
    with pytest.raises(TypeError, match="not a floating type"):
        softmax.empty(2, head_dim=1, dtype=int)
    assert np.isneginf(softmax.empty(2, head_dim=1, dtype="e5m2").m.astype(float)).all()


@pytest.mark.parametrize(
    ("s", "v"), [((2, 4), (5, 3)), ((2, 4), (4, 9)), ((5, 4), (4, 3)), ((1, 4), (4, 3)), ((4,), (4, 3)), ((2, 4), (4,))]
)
def test_scores_and_values_that_do_not_fit_the_state_are_refused(s, v):
    state = softmax.empty(2, head_dim=3)
    with pytest.raises(ValueError, match=r"a state of rows \(2,\) and head_dim 3 takes scores .* got \("):
        softmax.absorb(state, np.zeros(s), np.zeros(v))


def test_lists_and_whole_numbers_are_absorbed_as_numbers():
    state = softmax.absorb(softmax.empty(1, head_dim=1), [[0, 0]], [[1], [3]])
    assert softmax.finish(state)[0].item() == 2.0


def test_partials_of_types_that_nothing_holds_are_refused_by_name():
    import ml_dtypes

    out, lse = np.zeros((1, 1, 1), np.float16), np.zeros((1, 1))
    with pytest.raises(TypeError, match=r"the two outputs have no type in common, float16 and bfloat16"):
        softmax.merge(out, lse, out.astype(ml_dtypes.bfloat16), lse)
    with pytest.raises(TypeError, match=r"outs: .*int64.* is not a floating type"):
        softmax.merge(out.astype(np.int64), lse, out.astype(np.int64), lse)
    with pytest.raises(TypeError, match=r"lses: .*int64.* is not a floating type"):
        softmax.merge(out, lse.astype(np.int64), out, lse.astype(np.int64))
