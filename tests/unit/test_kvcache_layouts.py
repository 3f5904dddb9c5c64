"""Converters of layouts and index formats, against indices worked out by hand."""

import ml_dtypes
import numpy as np
import pytest

from refsim.kvcache import BlockManager, PagedKV, index_formats, layouts


def fingerprint(blocks: int, size: int, heads: int, dim: int, dtype=np.float16) -> np.ndarray:
    """Each element a number of its own, so that a wrong index shows."""
    return np.arange(blocks * size * heads * dim).reshape(blocks, size, heads, dim).astype(dtype)


@pytest.mark.parametrize("name", ["nhd", "hnd", "x-packed", "interleaved", "stacked"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, ml_dtypes.bfloat16])
def test_there_and_back(name, dtype) -> None:
    k, v = fingerprint(3, 4, 2, 8, dtype), -fingerprint(3, 4, 2, 8, dtype)
    back_k, back_v = layouts.from_layout(name, *layouts.to_layout(name, k, v))
    assert (back_k == k).all()
    assert (back_v == v).all()
    assert back_k.dtype == dtype


def test_each_layout_puts_an_element_where_its_owner_looks() -> None:
    k = fingerprint(3, 4, 2, 16)
    v = -k
    b, s, h, d = 2, 3, 1, 13
    want = k[b, s, h, d]
    hnd, _ = layouts.to_layout("hnd", k, v)
    assert hnd[b, h, s, d] == want
    packed, packed_v = layouts.to_layout("x-packed", k, v)
    assert packed.shape == (3, 2, 2, 4, 8)  # x is 8 elements of 2 bytes
    assert packed[b, h, d // 8, s, d % 8] == want
    assert packed_v[b, h, d, s] == -want
    (inter,) = layouts.to_layout("interleaved", k, v)
    assert inter[b, 0, s, h, d] == want
    assert inter[b, 1, s, h, d] == -want
    (stacked,) = layouts.to_layout("stacked", k, v)
    assert stacked[1, b, s, h, d] == -want
    tokens, _ = layouts.to_layout("token-pool", k, v)
    assert tokens[b * 4 + s, h, d] == want


def test_an_interleaved_pool_keeps_its_own_stride() -> None:
    # aiter 3498: [[K0,V0],[K1,V1]] read with half the stride gives K = [1, 10].
    pool = np.array([[1.0, 10.0], [2.0, 20.0]]).reshape(2, 2, 1, 1, 1)
    k, v = layouts.from_layout("interleaved", pool)
    assert k.ravel().tolist() == [1, 2]
    assert v.ravel().tolist() == [10, 20]
    assert k.strides[0] == 2 * pool.itemsize


def test_the_packs_are_16_bytes_whatever_the_type() -> None:
    assert layouts.to_layout("x-packed", fingerprint(1, 2, 1, 8, np.float32), fingerprint(1, 2, 1, 8))[0].shape[-1] == 4
    with pytest.raises(ValueError, match="doesn't divide"):
        layouts.to_layout("x-packed", fingerprint(1, 2, 1, 6), fingerprint(1, 2, 1, 6))


def test_latent_layouts() -> None:
    rng = np.random.default_rng(3)
    k = rng.standard_normal((2, 4, 1, 576)).astype(np.float32)
    latent, rotary = layouts.to_layout("mla", k, k[..., :512])
    assert (latent.shape, rotary.shape) == ((2, 4, 512), (2, 4, 64))
    back_k, back_v = layouts.from_layout("mla", latent, rotary)
    assert (back_k == k).all()
    assert (back_v == k[..., :512]).all()
    (fused,) = layouts.to_layout("mla-fused", k, k[..., :512])
    assert (layouts.from_layout("mla-fused", fused)[1] == k[..., :512]).all()
    with pytest.raises(ValueError, match="first 512"):
        layouts.to_layout("mla", k, k[..., 1:513])


@pytest.mark.parametrize("name", ["mla", "mla-fused"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "e4m3"])
def test_a_latent_pool_with_unused_slots_is_converted(name, dtype) -> None:
    kv = PagedKV(BlockManager(2, 2), 1, 1, 576, dtype, v_head_dim=512)  # every slot holds NaN
    k, v = layouts.from_layout(name, *layouts.to_layout(name, *kv.pools()))
    assert np.array_equal(k, kv.pools()[0], equal_nan=True)
    assert v.shape == (2, 2, 1, 512)


def test_fp8_latent_takes_656_bytes_and_rounds_as_its_types_do() -> None:
    rng = np.random.default_rng(4)
    k = (rng.standard_normal((2, 3, 1, 576)) * 10).astype(np.float32)
    k[0, 0, 0, :128] = 0  # a tile without a scale of its own
    packed = layouts.quantise_latent(k)
    assert packed.shape == (2, 3, 656)
    back = layouts.dequantise_latent(packed)
    assert (back[..., 512:] == k[..., 512:].astype(ml_dtypes.bfloat16).astype(np.float32)).all()
    tiles, got = (a[..., :512].reshape(2, 3, 4, 128) for a in (k, back))
    largest = np.abs(tiles).max(axis=-1, keepdims=True)
    # e4m3 has three mantissa bits: half a unit is 1/16 of the value; below its normal range, 2**-10 of the scale.
    assert (np.abs(got - tiles) <= np.maximum(np.abs(tiles) / 16, largest / 448 * 2.0**-10) * 1.001).all()
    assert (back[0, 0, 0, :128] == 0).all()


@pytest.mark.parametrize(
    "call",
    [
        lambda: layouts.from_layout("nope", np.zeros(1)),
        lambda: layouts.from_layout("hnd", np.zeros((1, 2, 3))),
        lambda: layouts.to_layout("hnd", np.zeros((1, 2, 3)), np.zeros((1, 2, 3))),
        lambda: layouts.to_layout("nhd", np.zeros((1, 2, 3, 4)), np.zeros((1, 3, 3, 4))),
        lambda: layouts.dequantise_latent(np.zeros((1, 1, 655), np.uint8)),
        lambda: layouts.quantise_latent(np.zeros((1, 1, 1, 512))),
        # One taken for the other: the first two blocks would pass for K and V.
        lambda: layouts.from_layout("stacked", np.zeros((5, 2, 4, 1, 8))),
        lambda: layouts.from_layout("interleaved", np.zeros((2, 5, 4, 1, 8))),
        lambda: layouts.to_layout("interleaved", np.zeros((5, 4, 1, 8)), np.zeros((5, 4, 1, 4))),
        lambda: layouts.from_layout("mla", np.zeros((5, 4, 64)), np.zeros((5, 4, 512))),
        lambda: layouts.from_layout("mla", np.zeros((5, 4, 512)), np.zeros((3, 4, 64))),
        lambda: layouts.from_layout("mla-fused", np.zeros((5, 4, 2, 576))),
        lambda: layouts.from_layout("mla-fused", np.zeros((5, 4, 1, 512))),
    ],
)
def test_wrong_layouts_are_refused(call) -> None:
    with pytest.raises(ValueError, match=r"expected|must be one of"):
        call()


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("nhd", [(5, 4, 2, 8), (4, 4, 2, 8)]),
        ("hnd", [(5, 2, 4, 8), (5, 4, 2, 8)]),
        ("x-packed", [(5, 2, 2, 4, 4), (3, 2, 8, 4)]),
        ("token-pool", [(20, 2, 8), (20, 1, 8)]),
    ],
)
def test_k_and_v_of_different_slots_are_refused(name, shapes) -> None:
    with pytest.raises(ValueError, match="not of the same slots"):
        layouts.from_layout(name, *map(np.zeros, shapes))


def test_csr_round_trip_with_an_empty_sequence() -> None:
    # flashinfer 353: an empty request in a batch. 9 pages of 16 with one token in the last are 129 tokens.
    tables, lens = index_formats.from_csr([0, 0, 9], np.arange(20, 29), [0, 1], 16)
    assert lens.tolist() == [0, 129]
    assert tables.tolist() == [[-1] * 9, list(range(20, 29))]
    csr = index_formats.to_csr(tables, lens, 16)
    assert csr.indptr.tolist() == [0, 0, 9]
    assert csr.indices.tolist() == list(range(20, 29))
    assert csr.last_page_len.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (([0, 1], [5], [17], 16), r"last_page_len\[0\] is 17"),  # flashinfer 320
        (([0, 1], [5], [0], 16), r"last_page_len\[0\] is 0"),
        (([0, 2], [5], [1], 16), "indptr"),
        (([0, 2, 1], [5], [1, 1], 16), "indptr"),
        (([], [], [], 16), "indptr"),
        (([0, 1], [5], [1, 1], 16), "last_page_len has shape"),
        (([0, 1], [2**32], [1], 16), r"indices\[0\] is 4294967296"),  # as int32 it would be page 0
        (([0, 2], [3, -3], [1], 16), r"indices\[1\] is -3"),
        (([0, 1], [5.7], [1], 16), "indices must be integers with 1 axis, got float64"),
        (([0, 1], [[5]], [1], 16), r"indices must be integers with 1 axis, got int64 of shape \(1, 1\)"),
        (([0, 1], [5], [1.5], 16), "last_page_len must be integers"),
        (([0, 1], [5], [1], 0), "page_size must be a whole number from 1, got 0"),
        (([0, 1], [5], [1], 2.0), r"page_size must be a whole number from 1, got 2\.0"),
    ],
)
def test_wrong_csr_is_refused(args, message) -> None:
    with pytest.raises(ValueError, match=message):
        index_formats.from_csr(*args)


@pytest.mark.parametrize("size", [0, -4, 16.0])
def test_blocks_hold_at_least_one_token(size) -> None:
    tables, lens = np.array([[0]]), np.array([0])
    for call in (
        lambda: index_formats.to_csr(tables, lens, size),
        lambda: index_formats.to_token_list(tables, lens, size),
        lambda: index_formats.check_tables(tables, lens, size, 1),
    ):
        with pytest.raises(ValueError, match=f"block_size must be a whole number from 1, got {size}"):
            call()


def test_no_sequences_at_all() -> None:
    index_formats.check_tables(np.zeros((0, 0), int), [], 4, 1)
    assert index_formats.to_csr(np.zeros((0, 0), int), [], 4).indptr.tolist() == [0]
    assert index_formats.from_csr([0], [], [], 4)[0].shape == (0, 0)


def test_pages_are_counted_in_pages() -> None:
    # flashinfer 810: 17 tokens in pages of 16 are 2 pages.
    assert index_formats.to_csr(np.array([[4, 9]]), np.array([17]), 16).indptr.tolist() == [0, 2]


def test_token_lists_name_slots() -> None:
    indptr, indices = index_formats.to_token_list(np.array([[3, 1], [-1, -1], [0, -1]]), np.array([3, 0, 2]), 2)
    assert indptr.tolist() == [0, 3, 3, 5]
    assert indices.tolist() == [6, 7, 2, 0, 1]


def test_longest_query_is_a_difference() -> None:
    assert index_formats.max_query_len([0, 3, 5]) == 3  # flashinfer 1930
    assert index_formats.max_query_len([0]) == 0


def test_only_entries_that_would_be_read_are_checked() -> None:
    ok = index_formats.check_tables
    ok(np.array([[0], [-1]]), np.array([4, 0]), 4, 1)  # vllm 35969: a padded row reads no table
    ok(np.array([[3, 2147480000]]), np.array([4]), 4, 4)  # an absurd tail
    ok(np.array([[0]]), np.array([256]), 256, 1)


@pytest.mark.parametrize(
    ("tables", "lens", "message"),
    [
        ([[0]], [257], "holds at most 256"),  # flash-attention 2711
        ([[-1]], [1], r"block_tables\[0, 0\] is -1"),
        ([[0], [4]], [256, 1], r"block_tables\[1, 0\] is 4"),
        ([[0]], [-1], r"seq_lens\[0\] is -1"),
        ([[0], [0], [0]], [3, -1, -5], r"seq_lens\[1\] is -1"),  # the first of them, not the least
        ([[0]], [2**63 + 1], r"seq_lens\[0\] is 9223372036854775809"),  # in 64 signed bits it is negative
        ([[2**64 - 1]], [1], r"block_tables\[0, 0\] is 18446744073709551615"),
        ([[0]], 5, "seq_lens must be integers with 1 axis"),  # flash-attention 1795: a scalar length
        ([[0]], [1, 1], "1 rows and seq_lens 2 lengths"),
        ([[0.0]], [1], "block_tables must be integers with 2 axes"),
    ],
)
def test_wrong_tables_are_refused(tables, lens, message) -> None:
    with pytest.raises(ValueError, match=message):
        index_formats.check_tables(np.array(tables), np.array(lens), 256, 4)
