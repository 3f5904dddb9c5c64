"""Bugs seen in other people's kernels, as cases for ours (masks, empty rows, addressing, heads, RoPE).

The numbers are the field's minimal inputs with the answers worked out by hand.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpu import ops
from refsim import attention

E = {"runtime": "emulator"}


def values(*numbers: float, D: int = 1) -> np.ndarray:
    """(tokens, 1, D) with each number in every column."""
    return np.repeat(np.array(numbers, np.float32)[:, None, None], D, axis=2)


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def test_rows_that_see_no_key_give_zero_and_minus_infinity() -> None:
    """flashinfer: causal bottom-right, 3 queries, 1 key: two rows are empty."""
    out, lse = part(ops.flash(zeros(3, 1, 8), zeros(1, 1, 8), values(7), causal=True, **E))
    np.testing.assert_array_equal(out.ravel(), [0, 0, 7])
    np.testing.assert_array_equal(np.isneginf(lse[0]), [True, True, False])


def part(result: Any) -> tuple[np.ndarray, np.ndarray]:
    return result.out, result.lse


@pytest.mark.parametrize("op", ["flash", "standard"])
def test_causal_is_bottom_right_unless_asked(op: str) -> None:
    """SDPA and FlashAttention differ when lengths differ."""
    run = getattr(ops, op)
    q, k, v = zeros(2, 1, 8), zeros(5, 1, 8), values(0, 1, 2, 3, 4)
    np.testing.assert_allclose(run(q, k, v, causal=True, **E).out.ravel(), [1.5, 2.0])
    np.testing.assert_allclose(run(q, k, v, causal=True, align="top-left", **E).out.ravel(), [0, 0.5])
    out, lse = part(run(zeros(5, 1, 8), zeros(2, 1, 8), values(10, 20), causal=True, **E))
    np.testing.assert_allclose(out.ravel(), [0, 0, 0, 10, 15])
    assert np.isneginf(lse[0, :3]).all()


def test_a_window_counts_the_keys_before_and_after_the_query_s_own() -> None:
    """A window of 2 in all is left=1; left=2 keeps three."""
    q, k, v = zeros(4, 1, 8), zeros(4, 1, 8), values(0, 1, 2, 3)
    assert ops.flash(q, k, v, causal=True, window=(1, 0), **E).out[3, 0, 0] == 2.5
    assert ops.flash(q, k, v, causal=True, window=(2, 0), **E).out[3, 0, 0] == 2.0


def test_no_keys_and_no_queries() -> None:
    """Empty shapes reached a scheduler's arithmetic: batch 1 with 2 queries and no key; then no query at all."""
    out, lse = part(ops.flash(zeros(2, 1, 8), zeros(0, 1, 8), zeros(0, 1, 8), **E))
    assert not out.any()
    assert np.isneginf(lse).all()
    out, lse = part(ops.flash(zeros(0, 1, 8), zeros(3, 1, 8), zeros(3, 1, 8), **E))
    assert (out.shape, lse.shape) == ((0, 1, 8), (1, 0))


@pytest.mark.parametrize("op", ["paged", "paged_gather"])
def test_padded_rows_of_a_batch_read_no_table(op: str) -> None:
    """Graph padding: seq_lens [4, 0] with a table of -1 in the padded row."""
    cache = zeros(1, 4, 1, 8)
    run = getattr(ops, op)
    result = run(zeros(2, 1, 8), cache, cache + 1, np.array([[0], [-1]]), np.array([4, 0]), **E)
    np.testing.assert_array_equal(result.out[:, 0, 0], [1, 0])
    assert np.isneginf(result.lse[0, 1])


def test_stale_slots_of_the_last_page_are_never_read() -> None:
    """Recycled memory holds NaN: page of 4, 5 keys, slots 5 to 7 NaN."""
    k, v = zeros(2, 4, 1, 8), np.ones((2, 4, 1, 8), np.float32)
    k[1, 1:], v[1, 1:] = np.nan, np.nan
    out, lse = part(ops.paged(zeros(1, 1, 8), k, v, np.array([[0, 1]]), np.array([5]), **E))
    np.testing.assert_array_equal(out, 1.0)
    np.testing.assert_allclose(lse, np.log(5), rtol=1e-6)


def test_padding_ids_never_stand_for_page_0() -> None:
    """Table [3, -1] with 4 keys in a page of 4: page 0 is all NaN and must not matter."""
    cache = np.full((4, 4, 1, 8), np.nan, np.float32)
    cache[3] = 2
    assert (ops.paged(zeros(1, 1, 8), cache, cache.copy(), np.array([[3, -1]]), np.array([4]), **E).out == 2).all()


def test_short_sequences_are_not_scaled_down_by_their_tile() -> None:
    """16 keys in a tile of 128: keys past the end must not count in the denominator."""
    out, _ = part(ops.flash(zeros(1, 1, 8), zeros(16, 1, 8), zeros(16, 1, 8) + 1, tile=(16, 128), **E))
    np.testing.assert_allclose(out, 1.0)


@pytest.mark.parametrize(("keys", "splits"), [(5, 4), (1, 8), (17, 3), (0, 2)])
def test_splits_that_get_no_key_vanish(keys: int, splits: int) -> None:
    """A ceil split of 5 keys in 4 gives a range that starts past its end."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((n, 1, 8), dtype=np.float32) for n in (1, keys, keys))
    for handover in ("lse", "state"):
        out, lse = part(ops.split_kv(q, k, v, num_splits=splits, handover=handover, **E))  # type: ignore[arg-type]
        expected = attention.flash(q, k, v)
        np.testing.assert_allclose(out, expected.out, atol=1e-6)
        np.testing.assert_allclose(lse, expected.lse, atol=1e-6)


def test_merging_two_empty_states_and_nan_of_no_weight() -> None:
    """exp(-inf - -inf) is NaN, and so is 0 times NaN."""
    empty, nothing = np.full((1, 1), -np.inf, np.float32), values(0, D=8)
    out, lse = part(ops.merge(nothing, empty, nothing, empty, **E))
    assert not out.any()
    assert np.isneginf(lse).all()
    out, lse = part(ops.merge(nothing * np.nan, empty, values(5, D=8), zeros(1, 1) + 2, **E))
    np.testing.assert_array_equal((out[0, 0, 0], lse[0, 0]), (5, 2))


def test_merging_natural_logs() -> None:
    """LSEs 4 and 2 of values 1 and 0: 1 / (1 + e^-2), and not 1 / (1 + 2^-2)... which base-2 LSEs would give."""
    out, _ = part(ops.merge(values(1, D=8), zeros(1, 1) + 4, values(0, D=8), zeros(1, 1) + 2, **E))
    np.testing.assert_allclose(out, 0.8808, atol=1e-4)


def test_plus_infinity_is_no_lse() -> None:
    """FlashAttention-2 reports +inf for an empty row; it must not win a merge."""
    with pytest.raises(ValueError, match=r"\+inf can't be merged"):
        ops.merge(values(0), zeros(1, 1) + np.inf, values(2), zeros(1, 1) + 1, **E)


def test_heads_are_grouped_not_interleaved() -> None:
    """8 query heads over 2 KV heads read KV heads [0,0,0,0,1,1,1,1]."""
    v = np.array([0.0, 1.0], np.float32).reshape(1, 2, 1)
    for packed in (False, True):
        out = ops.flash(zeros(1, 8, 8), zeros(1, 2, 8), v, pack_gqa=packed, **E).out
        np.testing.assert_array_equal(out.ravel(), [0, 0, 0, 0, 1, 1, 1, 1])


def test_an_interleaved_pool_is_read_by_its_strides() -> None:
    """pool [[K0,V0],[K1,V1]] = [[1,10],[2,20]]: K of page 1 is 2, not 10."""
    pool = np.repeat(np.array([[1, 10], [2, 20]], np.float32)[:, :, None, None, None], 8, axis=-1)  # page, K or V, ...
    k, v = pool[:, 0], pool[:, 1]
    prepared = ops.paged.prepare(zeros(1, 1, 8) + 1, k, v, np.array([[1]]), np.array([1]), scale=1.0, **E)
    result = prepared.result()
    np.testing.assert_array_equal(result.out, 20)
    np.testing.assert_array_equal(result.lse, 2 * 8)


def test_views_of_wider_buffers_are_read_by_their_strides() -> None:
    """K as a view of rows of 24: prefix and suffix strides differed, and 128 keys became garbage."""
    rng = np.random.default_rng(0)
    wide = rng.standard_normal((20, 2, 24), dtype=np.float32)
    q, k, v = wide[:3, :, 1:9], wide[:, :, :8], wide[:, :, 12:20]
    result = ops.flash(q, k, v, **E)
    expected = attention.flash(*(np.ascontiguousarray(x) for x in (q, k, v)))
    np.testing.assert_allclose(result.out, expected.out, atol=1e-6)


def test_big_pools_are_addressed_in_64_bits() -> None:
    """2**31 elements into a pool: offsets in 32 bits would wrap. The pool is a view; one page is all that exists."""
    page = np.ones((1, 1, 1, 8), np.float32)
    strided = np.lib.stride_tricks.as_strided(page, (2, 1, 1, 8), (0, 32, 32, 4))
    prepared = ops.paged.prepare(zeros(1, 1, 8), strided, strided.copy(), np.array([[1]]), np.array([1]), **E)
    call = prepared.launches[0].args[0]
    assert call.dtype["k_block"].itemsize == call.dtype["v_block"].itemsize == call.dtype["tokens"].itemsize == 8
    np.testing.assert_array_equal(prepared.result().out, 1)


def test_a_table_too_short_for_its_length_is_refused() -> None:
    """1 column of 256 with a length of 257 read past the table; 256 alone is fine."""
    cache, q = zeros(1, 256, 1, 8), zeros(1, 1, 8)
    with pytest.raises(ValueError, match="needs 2 table entries; block_tables has 1 columns"):
        ops.paged(q, cache, cache, np.array([[0]]), np.array([257]), **E)
    assert ops.paged(q, cache, cache, np.array([[0]]), np.array([256]), **E).out.shape == (1, 1, 8)


def test_one_length_a_sequence() -> None:
    """A scalar length with paging was expanded to the number of pages."""
    cache = zeros(8, 4, 1, 8)
    result = ops.paged(zeros(1, 1, 8), cache, cache + 1, np.array([[0, 1]]), 5, **E)  # type: ignore[arg-type]
    np.testing.assert_allclose(result.lse, np.log(5), rtol=1e-6)


def test_more_rows_than_slots() -> None:
    """4 key rows and a slot mapping of 2 is exactly 2 writes."""
    k, cache = np.ones((4, 1, 8), np.float32), zeros(2, 2, 1, 8)
    other = cache.copy()
    ledger = ops.append(k, k, np.array([1, 2]), cache, other, **E)
    assert ledger.total(tensor="k_cache", direction="write") == 2 * 8 * 4
    np.testing.assert_array_equal(cache.sum(axis=-1).ravel(), [0, 8, 8, 0])
    with pytest.raises(ValueError, match="Was it made with another block size"):
        ops.append(k, k, np.array([75849]), cache, other, **E)


@pytest.mark.parametrize(
    ("style", "expected"),
    [("half", [-1.9841, 1.9599, 2.4624, 4.0198]), ("interleaved", [-1.1426, 1.9221, 2.9599, 4.0298])],
)
def test_rope_pairs_as_it_is_told(style: Any, expected: list[float]) -> None:
    x = np.array([[[1, 2, 3, 4]]], np.float32)
    np.testing.assert_allclose(ops.rope(x, [1], [1.0, 0.01], style, **E).out.ravel(), expected, atol=1e-4)
