"""What the oracle means, case by case: figures worked on paper, and the conventions that peers disagree on."""

import ml_dtypes
import numpy as np
import pytest

from refsim import oracle
from refsim.numerics import DTYPES


def values(*numbers):
    return np.array(numbers, np.float64).reshape(-1, 1, 1)


def flat(n, T, v, **variant):
    """Queries of zero, so that a row's answer is the mean of the values it sees; one head."""
    out, lse = oracle.attention(np.zeros((n, 1, 1)), np.zeros((T, 1, 1)), v, **variant)
    return out.ravel(), lse.ravel()


def test_two_keys_on_paper():
    """Scores 1 and 0, values 1 and 0: the answer is e / (e + 1)."""
    q, k, v = values(1), values(1, 0), values(1, 0)
    out, lse = oracle.attention(q, k, v, scale=1.0)
    assert out.item() == pytest.approx(np.e / (np.e + 1), rel=1e-15)
    assert lse.item() == pytest.approx(np.log(np.e + 1), rel=1e-15)


def test_the_default_scale_is_one_over_the_root_of_head_dim():
    q, k = np.ones((1, 1, 16)), np.array([np.ones(16), np.zeros(16)]).reshape(2, 1, 16)
    _, lse = oracle.attention(q, k, values(0, 0))
    assert lse.item() == pytest.approx(np.log(np.exp(16 / 4) + 1), rel=1e-15)


@pytest.mark.parametrize(("align", "want"), [("bottom-right", [1.5, 2.0]), ("top-left", [0.0, 0.5])])
def test_causal_alignment_with_more_keys_than_queries(align, want):
    out, _ = flat(2, 5, values(0, 1, 2, 3, 4), causal=True, align=align)
    np.testing.assert_allclose(out, want)


def test_causal_alignment_with_more_queries_than_keys():
    out, lse = flat(5, 2, values(10, 20), causal=True)
    np.testing.assert_allclose(out, [0, 0, 0, 10, 15])
    np.testing.assert_allclose(lse, [-np.inf, -np.inf, -np.inf, 0, np.log(2)])


def test_rows_before_the_first_key_are_empty_and_not_nan():
    out, lse = flat(3, 1, values(7), causal=True)
    np.testing.assert_array_equal(out, [0, 0, 7])
    np.testing.assert_array_equal(lse, [-np.inf, -np.inf, 0])


@pytest.mark.parametrize(
    ("window", "last_row"),
    [((1, 0), 2.5), ((2, 0), 2.0), ((0, 0), 3.0), ((None, 0), 1.5), ((-1, -1), 1.5), (None, 1.5)],
)
def test_a_window_counts_keys_before_the_own_one(window, last_row):
    """left=1 keeps two keys: a model's "window of 2"."""
    out, _ = flat(4, 4, values(0, 1, 2, 3), window=window)
    assert out[-1] == pytest.approx(last_row)


def test_a_window_looks_right_unless_causal():
    np.testing.assert_allclose(flat(4, 4, values(0, 1, 2, 3), window=(0, 1))[0], [0.5, 1.5, 2.5, 3.0])
    np.testing.assert_allclose(flat(4, 4, values(0, 1, 2, 3), window=(0, 1), causal=True)[0], [0, 1, 2, 3])


def test_query_heads_share_kv_heads_in_runs():
    """8 query heads over 2: the first four read KV head 0, h // (H / G)."""
    v = np.array([0.0, 1.0]).reshape(1, 2, 1)
    out, _ = oracle.attention(np.zeros((1, 8, 1)), np.zeros((1, 2, 1)), v)
    np.testing.assert_array_equal(out.ravel(), [0, 0, 0, 0, 1, 1, 1, 1])


def test_short_sequences_are_not_diluted():
    """16 valid keys of value 1 give 1, whatever tile a kernel would pad them to."""
    out, lse = flat(1, 16, np.ones((16, 1, 1)))
    assert out.item() == 1.0
    assert lse.item() == pytest.approx(np.log(16))


def test_no_keys_and_no_queries():
    out, lse = flat(2, 0, np.zeros((0, 1, 1)))
    np.testing.assert_array_equal(out, [0, 0])
    assert np.isneginf(lse).all()
    out, lse = oracle.attention(np.zeros((0, 2, 3)), np.zeros((4, 1, 3)), np.zeros((4, 1, 5)))
    assert (out.shape, lse.shape) == ((0, 2, 5), (2, 0))


def test_a_sink_takes_weight_and_gives_no_value():
    out, lse = flat(1, 1, values(6), sinks=[np.log(2.0)])
    assert out.item() == pytest.approx(2.0)  # 1 part of 3
    assert lse.item() == pytest.approx(np.log(3))
    out, lse = flat(1, 0, np.zeros((0, 1, 1)), sinks=[0.5])
    assert (out.item(), lse.item()) == (0.0, 0.5)


def test_softcap_and_alibi_on_paper():
    q, k, v = values(1), values(100, 0), values(1, 0)
    _, lse = oracle.attention(q, k, v, scale=1.0, softcap=2.0)
    assert lse.item() == pytest.approx(np.log(np.exp(2.0) + 1))
    _, lse = flat(1, 2, v, alibi_slopes=[0.5])  # the query sits on key 1, one away from key 0
    assert lse.item() == pytest.approx(np.log(np.exp(-0.5) + 1))


def test_scores_beyond_every_exponential():
    out, lse = oracle.attention(values(1), values(1000, 999), values(1, 0), scale=1.0)
    assert out.item() == pytest.approx(1 / (1 + np.exp(-1.0)))
    assert lse.item() == pytest.approx(1000 + np.log1p(np.exp(-1.0)))


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_any_floating_inputs_are_computed_in_float64(dtype):
    x = np.full((2, 1, 4), 0.5, dtype)
    out, lse = oracle.attention(x, x, x)
    assert out.dtype == lse.dtype == np.float64
    np.testing.assert_allclose(out, 0.5)
    np.testing.assert_allclose(lse, 0.5 + np.log(2))  # scores are 4 * 0.25 / 2


SHAPES = {"q": (2, 4, 8), "k": (3, 2, 8), "v": (3, 2, 6)}


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"q": np.zeros((2, 4))}, ValueError, r"q must have 3 axes .*got shape \(2, 4\)"),
        ({"q": np.zeros((2, 4, 7))}, ValueError, "one head_dim, got 7 and 8"),
        ({"k": np.zeros((3, 3, 8)), "v": np.zeros((3, 3, 6))}, ValueError, "4 query heads can't share 3 KV heads"),
        ({"q": np.zeros((2, 0, 8))}, ValueError, "0 query heads can't share 2 KV heads"),
        ({"v": np.zeros((2, 2, 6))}, ValueError, "k and v must agree"),
        ({"q": np.zeros((2, 4, 0)), "k": np.zeros((3, 2, 0))}, ValueError, "head_dim is 0"),
        ({"q": [[[1.0]]]}, TypeError, "q must be an array, got list"),
        ({"k": np.zeros((3, 2, 8), int)}, TypeError, "k: .*not a floating type"),
        ({"v": np.zeros((3, 2, 6), complex)}, TypeError, "v: .*not a floating type"),
        ({"scale": np.inf}, ValueError, "scale must be a finite number"),
        ({"scale": 1j}, ValueError, "scale must be a finite number"),
        ({"causal": "no"}, TypeError, "causal must be True or False, got 'no'"),
        ({"q": np.zeros((2, 4, 8), ">f8")}, TypeError, "q: .*bytes in the other order"),
        ({"align": "left"}, ValueError, "align must be one of bottom-right, top-left, got 'left'"),
        ({"softcap": -1.0}, ValueError, "softcap must be a positive number"),
        ({"window": 4}, ValueError, r"window must be \(keys before, keys after\)"),
        ({"window": (-2, 0)}, ValueError, "keys before must be a whole number from -1, or None"),
        ({"window": (0, 0.5)}, ValueError, "keys after must be a whole number"),
        ({"window": (np.inf, 0)}, ValueError, "keys before must be a whole number"),
        ({"window": (np.nan, 0)}, ValueError, "keys before must be a whole number"),
        ({"alibi_slopes": [1.0]}, ValueError, r"alibi_slopes must hold one number a query head, shape \(4,\)"),
        ({"sinks": [0.0, np.nan, 0.0, 0.0]}, ValueError, "sinks must be finite"),
    ],
)
def test_what_does_not_fit_is_refused(changed, error, message):
    arguments = {name: np.zeros(shape) for name, shape in SHAPES.items()} | changed
    with pytest.raises(error, match=message):
        oracle.attention(**arguments)


def test_inputs_are_left_alone():
    q = np.ones((2, 1, 4), ml_dtypes.bfloat16)
    before = q.copy()
    oracle.attention(q, q, q, causal=True, softcap=1.0)
    assert (q == before).all()


def test_a_table_entry_that_is_no_block_is_never_read_from_the_end():
    cache = np.ones((2, 1, 1, 1))
    with pytest.raises(IndexError, match="sequence 0 has 2 tokens and reads a table entry of -1"):
        oracle.paged(np.zeros((1, 1, 1)), cache, cache, [[0, -1]], [2])


def test_a_paged_cache_reads_only_the_entries_that_some_query_sees():
    cache = np.arange(4.0).reshape(4, 1, 1, 1)
    out, _ = oracle.paged(np.zeros((1, 1, 1)), cache, cache, [[-1, 9, 2, 3]], 4, window=(1, 0))
    assert out.item() == 2.5
    out, lse = oracle.paged(np.zeros((1, 1, 1)), cache, cache, [[-1], [3]], [1, 1], cu_seqlens_q=[0, 0, 1])
    assert (out.item(), lse.item()) == (3.0, 0.0)


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"block_tables": [[0, 2]]}, IndexError, "reads a table entry of 2, which is no block; the cache has 2"),
        ({"block_tables": [[0]]}, IndexError, "sequence 0 has 2 tokens and its table only 1 entries"),
        ({"seq_lens": [-1]}, ValueError, r"lengths \[-1\] and query starts \[0, 1\] don't fit 1 queries"),
        ({"seq_lens": [1, 1]}, ValueError, r"1 block tables, lengths \[1, 1\]"),
        ({"cu_seqlens_q": [0, 2]}, ValueError, r"query starts \[0, 2\] don't fit 1 queries"),
        ({"k_cache": np.ones((2, 1, 1))}, ValueError, r"k_cache must have 4 axes, got shape \(2, 1, 1\)"),
        ({"v_cache": np.ones((3, 1, 1, 1))}, ValueError, "must agree but for head_dim"),
        ({"q": [[[0.0]]]}, TypeError, "q must be an array, got list"),
    ],
)
def test_a_paged_call_that_does_not_fit_is_refused(changed, error, message):
    cache = np.ones((2, 1, 1, 1))
    call = {"q": cache[:1, 0], "k_cache": cache, "v_cache": cache, "block_tables": [[0, 1]], "seq_lens": [2]} | changed
    with pytest.raises(error, match=message):
        oracle.paged(**call)


def test_a_window_longer_than_any_sequence_is_none():
    for side in (2**31 - 1, 2**63 - 1, 10**30, 1e300):
        np.testing.assert_allclose(flat(2, 4, values(0, 1, 2, 3), window=(1, side))[0], [2, 2.5])
        np.testing.assert_allclose(flat(2, 4, values(0, 1, 2, 3), window=(side, 0))[0], [1, 1.5])
