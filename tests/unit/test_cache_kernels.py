"""Append, block copy, merge and RoPE on the machine: values against plain NumPy, ledgers against arithmetic."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refsim import numerics, softmax
from refsim.attention.merge import merge
from refsim.cost import closed_form_cache
from refsim.kvcache.kernels import append, copy_blocks
from refsim.machine import Machine
from refsim.model import rope as rope_values
from refsim.model.rope_kernel import rope

DTYPES = [np.dtype(t) for t in (np.float64, np.float32, np.float16, ml_dtypes.bfloat16)]
small = st.integers(0, 5)


def normal(rng: np.random.Generator, *shape: int, dtype: Any = np.float32) -> np.ndarray:
    return rng.standard_normal(shape).astype(dtype)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_append_writes_the_named_slots_and_nothing_else(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    blocks, B, G, D, Dv = (data.draw(st.integers(1, 4)) for _ in range(5))
    dtype = data.draw(st.sampled_from(DTYPES))
    n = data.draw(st.integers(0, blocks * B))
    slots = rng.permutation(blocks * B)[:n]
    slots[rng.random(n) < 0.3] = -1
    k, v = normal(rng, n + 2, G, D, dtype=dtype), normal(rng, n + 2, G, Dv, dtype=dtype)
    k[n:], v[n:] = np.nan, np.nan  # rows of padding that must not be read
    k_cache, v_cache = np.full((blocks, B, G, D), 7, dtype), np.full((blocks, B, G, Dv), 7, dtype)
    expected_k, expected_v = k_cache.copy(), v_cache.copy()
    for row, slot in enumerate(slots.tolist()):
        if slot >= 0:
            expected_k[slot // B, slot % B], expected_v[slot // B, slot % B] = k[row], v[row]
    ledger = append(k, v, slots, k_cache, v_cache)
    np.testing.assert_array_equal(k_cache, expected_k)
    np.testing.assert_array_equal(v_cache, expected_v)
    assert ledger == closed_form_cache.append(n, int((slots < 0).sum()), G, D, Dv, dtype)


def test_append_as_vllm_pads_it() -> None:
    """The field's bug: 4 key rows and a slot mapping of 2 (padding of a captured graph) is exactly 2 writes."""
    k, cache = np.ones((4, 1, 8), np.float32), np.zeros((2, 2, 1, 8), np.float32)
    ledger = append(k, k, np.array([1, 2]), cache, cache.copy())
    assert ledger.total(tensor="k_cache", direction="write") == 2 * 8 * 4
    assert ledger.total(tensor="k", direction="read") == 2 * 8 * 4
    assert ledger.total(tensor="slot_mapping") == 2 * 8
    assert cache.sum() == 16


@pytest.mark.parametrize(
    ("slots", "message"),
    [
        ([75849], "Was it made with another block size"),
        ([-2], "to skip a row"),
        ([1, 1], "names a slot twice"),
        ([0, 1, 2], "names 3 slots, and there are 2 rows"),
    ],
)
def test_append_refuses_slots_and_writes_nothing(slots: list[int], message: str) -> None:
    k, cache = np.ones((2, 1, 8), np.float32), np.zeros((2, 2, 1, 8), np.float32)
    with pytest.raises(ValueError, match=message):
        append(k, k, slots, cache, cache.copy())
    assert not cache.any()


@pytest.mark.parametrize(
    ("v", "v_cache", "error"),
    [
        (np.full((1, 1, 8), "x"), np.zeros((2, 2, 1, 8), np.float32), TypeError),
        (np.ones((1, 1, 8)), np.zeros((2, 2, 1, 8), np.int32), TypeError),
        (np.ones((1, 1, 8)), np.broadcast_to(np.float32(0), (2, 2, 1, 8)), ValueError),  # read-only
    ],
)
def test_what_fails_for_v_is_not_written_for_k(v: Any, v_cache: Any, error: type[Exception]) -> None:
    cache = np.zeros((2, 2, 1, 8), np.float32)
    with pytest.raises(error):
        append(np.ones((1, 1, 8)), v, [0], cache, v_cache)
    assert not cache.any()
    cache[0] = 1
    if v_cache.dtype != np.float32 or not v_cache.flags.writeable:
        with pytest.raises(error):
            copy_blocks(cache, v_cache, [[0, 1]])
        assert not cache[1].any()


@pytest.mark.parametrize("dtype", ["e4m3", "e5m2"])
def test_8_bit_caches(dtype: str) -> None:
    rng, stored = np.random.default_rng(5), numerics.dtype_of(dtype)
    k, cache = normal(rng, 3, 2, 4), np.zeros((3, 2, 2, 4), stored)
    ledger = append(k, k, [5, -1, 0], cache, cache.copy())
    assert ledger == closed_form_cache.append(3, 1, 2, 4, 4, stored, new_dtype=np.float32)
    assert (cache[2, 1] == k[0].astype(stored)).all()
    assert (cache[0, 0] == k[2].astype(stored)).all()
    copy_blocks(cache, cache.copy(), [[2, 1]])
    assert (cache[1] == cache[2]).all()


def test_append_refuses_rows_of_another_shape() -> None:
    cache = np.zeros((2, 2, 1, 8), np.float32)
    with pytest.raises(ValueError, match=r"v is \(1, 1, 4\); expected \(rows, 1, 8\)"):
        append(np.ones((1, 1, 8)), np.ones((1, 1, 4)), [0], cache, cache.copy())
    with pytest.raises(ValueError, match="agree in all but head_dim"):
        append(np.ones((1, 1, 8)), np.ones((1, 1, 8)), [0], cache, cache[:1])


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_blocks_are_copied_whole(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    blocks, B, G, D, Dv = (data.draw(st.integers(1, 6)) for _ in range(5))
    dtype = data.draw(st.sampled_from(DTYPES))
    ids = rng.permutation(blocks)
    pairs = np.stack([rng.choice(ids[: blocks // 2], blocks // 2), ids[blocks // 2 : 2 * (blocks // 2)]], axis=1)
    k_cache, v_cache = normal(rng, blocks, B, G, D, dtype=dtype), normal(rng, blocks, B, G, Dv, dtype=dtype)
    expected_k, expected_v = k_cache.copy(), v_cache.copy()
    for source, target in pairs:
        expected_k[target], expected_v[target] = expected_k[source], expected_v[source]
    ledger = copy_blocks(k_cache, v_cache, pairs)
    np.testing.assert_array_equal(k_cache, expected_k)
    np.testing.assert_array_equal(v_cache, expected_v)
    assert ledger == closed_form_cache.copy_blocks(len(pairs), B, G, D, Dv, dtype)


@pytest.mark.parametrize("pairs", [[[0, 1], [2, 1]], [[0, 1], [1, 2]], [[1, 1]]])
def test_copies_that_depend_on_their_order_are_refused(pairs: list[list[int]]) -> None:
    cache = np.ones((3, 1, 1, 1))
    with pytest.raises(ValueError, match="run in no order"):
        copy_blocks(cache, cache.copy(), pairs)


def test_copy_refuses_other_pairs() -> None:
    cache = np.ones((3, 1, 1, 1))
    with pytest.raises(ValueError, match="names blocks 0 to 3; there are 3"):
        copy_blocks(cache, cache.copy(), [[0, 3]])
    with pytest.raises(ValueError, match="block_mapping must be integers with 2 axes"):
        copy_blocks(cache, cache.copy(), [[0.0, 1.0]])


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 40), st.integers(1, 3), st.integers(0, 5), st.sampled_from(DTYPES), st.integers(0, 99))
def test_merge_is_softmax_merge_at_the_closed_form_s_price(n: int, H: int, Dv: int, dtype: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    outs = [normal(rng, n, H, Dv, dtype=dtype) for _ in range(2)]
    lses = [normal(rng, H, n) * 30 for _ in range(2)]
    for out, lse in zip(outs, lses, strict=True):
        lse[rng.random((H, n)) < 0.3] = -np.inf
        out[np.isneginf(lse).T] = np.nan  # a partial answer of weight zero
    result = merge(outs[0], lses[0], outs[1], lses[1])
    out, lse = softmax.merge(outs[0], lses[0], outs[1], lses[1])
    assert result.out.dtype == dtype
    tolerance = 4 * max(ml_dtypes.finfo(dtype).eps, 2**-23)
    np.testing.assert_allclose(result.out.astype(float), out.astype(float), rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(result.lse, lse, rtol=1e-6)
    if n:
        assert result.ledger == closed_form_cache.merge(n, H, Dv, dtype)


def test_two_empty_sets_merge_to_the_empty_set() -> None:
    """The field's bug: exp(-inf - -inf) is NaN."""
    zeros, empty = np.zeros((1, 1, 2), np.float32), np.full((1, 1), -np.inf, np.float32)
    result = merge(zeros, empty, zeros, empty)
    assert not result.out.any()
    assert np.isneginf(result.lse).all()


def test_merge_refuses_what_is_no_lse() -> None:
    zeros, ones = np.zeros((1, 1, 2), np.float32), np.ones((1, 1), np.float32)
    with pytest.raises(ValueError, match=r"\+inf can't be merged"):
        merge(zeros, ones * np.inf, zeros, ones)
    with pytest.raises(ValueError, match="two LSEs must have one shape"):
        merge(zeros, ones, zeros, np.ones((1, 2), np.float32))
    with pytest.raises(ValueError, match="two outputs must have one type"):
        merge(zeros, ones, zeros.astype(np.float16), ones)
    with pytest.raises(ValueError, match="expected out"):
        merge(zeros, np.ones((2, 1)), zeros, np.ones((2, 1)))


@settings(max_examples=30, deadline=None)
@given(
    st.integers(0, 6), st.integers(1, 3), st.integers(1, 5), st.sampled_from(DTYPES),
    st.sampled_from(["half", "interleaved"]), st.integers(0, 99),
)  # fmt: skip
def test_rope_turns_as_rope_apply(tokens: int, heads: int, pairs: int, dtype: Any, style: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, at = normal(rng, tokens, heads, 2 * pairs, dtype=dtype), rng.integers(0, 100_000, tokens)
    frequencies = rope_values.inv_freq(2 * pairs, 10_000.0)
    out, ledger = rope(x, at, frequencies, style, attention_factor=1.25)
    expected = rope_values.apply(x, at, frequencies, style, attention_factor=1.25)
    tolerance = 2 * max(ml_dtypes.finfo(dtype).eps, 2**-23)
    np.testing.assert_allclose(out.astype(float), expected.astype(float), rtol=0, atol=tolerance * 6)
    assert ledger == closed_form_cache.rope(tokens, heads, 2 * pairs, dtype)


def test_rope_refuses_what_does_not_fit() -> None:
    x, frequencies = np.ones((2, 1, 4)), np.ones(2)
    with pytest.raises(ValueError, match="for each of its d/2 pairs"):
        rope(x, [0, 1], np.ones(3))
    with pytest.raises(ValueError, match="one whole position a token"):
        rope(x, [0.5, 1.0], frequencies)
    with pytest.raises(ValueError, match="style must be one of"):
        rope(x, [0, 1], frequencies, "neox")  # type: ignore[arg-type]


def test_their_steps_can_be_walked() -> None:
    cache = np.zeros((2, 2, 1, 8), np.float32)
    machine = Machine()
    (step,) = append.steps(np.ones((1, 1, 8)), np.ones((1, 1, 8)), [2], cache, cache.copy(), machine=machine)
    assert (step.name, dict(step.index)) == ("write", {"rows": 1, "skipped": 0})
    assert step.delta.hbm_nbytes == machine.ledger().hbm_nbytes
    assert [
        s.name for s in merge.steps(np.ones((20, 1, 2)), np.ones((1, 20)), np.ones((20, 1, 2)), np.ones((1, 20)))
    ] == ["merge"] * 2
