"""Values in the cache: what each sequence reads back is what it wrote, and nothing unwritten is readable unnoticed."""

import ml_dtypes
import numpy as np
import pytest

from refsim import numerics
from refsim.kvcache import BlockManager, OutOfBlocks, PagedKV


def rows(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "e4m3", "e5m2", ml_dtypes.float8_e5m2])
@pytest.mark.parametrize("tokens", [1, 3, 4, 5, 11])
@pytest.mark.parametrize("tables", [1, 3])
def test_gather_returns_what_was_written(rng, dtype, tokens, tables) -> None:
    kv = PagedKV(BlockManager(12, 4, tables=tables), 3, 2, 5, dtype, v_head_dim=7)
    k, v = rows(rng, 3, tokens, 2, 5), rows(rng, 3, tokens, 2, 7)
    kv.manager.allocate("a", 0)
    kv.append("a", k, v)
    for layer in range(3):
        got_k, got_v = kv.gather("a", layer)
        stored = numerics.dtype_of(dtype)
        assert got_k.dtype == stored
        assert (got_k == k[layer].astype(stored)).all()
        assert (got_v == v[layer].astype(stored)).all()


@pytest.mark.parametrize("tables", [1, 2])
def test_a_table_walk_by_hand_finds_the_rows(rng, tables) -> None:
    kv = PagedKV(BlockManager(10, 4, tables=tables), 2, 2, 3)
    kv.manager.allocate("other", 3)
    kv.manager.allocate("a", 0)
    k = rows(rng, 2, 6, 2, 3)
    kv.append("a", k, k)
    for layer in range(2):
        table, pool = kv.block_tables(["a"], layer)[0], kv.pools(layer)[0]
        for position in range(6):
            assert (pool[table[position // 4], position % 4] == k[layer, position]).all()


def test_minus_one_and_padding_rows_are_not_written(rng) -> None:
    # vllm 13922: four rows of K, two slots; exactly two writes.
    kv = PagedKV(BlockManager(2, 4), 1, 1, 2)
    kv.manager.allocate("a", 4)
    k = rows(rng, 4, 1, 2)
    kv.write(np.array([2, 0]), k, k)
    assert (~np.isnan(kv.k)).all(axis=(-1, -2)).sum() == 2
    assert (kv.k[0, 0, 2] == k[0]).all()
    kv.write(np.array([-1, 1, -1]), k, k)
    assert (kv.k[0, 0, 1] == k[1]).all()
    assert (~np.isnan(kv.k)).all(axis=(-1, -2)).sum() == 3


def test_a_block_beyond_16_bits_is_reached() -> None:
    # aiter 3211: fingerprint page 67000 (67000 & 0xFFFF is 1464).
    kv = PagedKV(BlockManager(67001, 1, free_order=[67000, *range(67000)]), 1, 1, 1, poison=False)
    kv.manager.allocate("a", 1)
    kv.write(kv.slot_mapping("a", 0, 1), np.full((1, 1, 1), 0.75), np.full((1, 1, 1), 0.75))
    assert kv.gather("a")[0].item() == 0.75
    assert kv.k[0, 67000 & 0xFFFF].item() == 0


def test_unwritten_and_freed_slots_are_nan(rng) -> None:
    kv = PagedKV(BlockManager(4, 4), 2, 1, 2)
    assert np.isnan(kv.k).all()
    kv.manager.allocate("a", 0)
    kv.append("a", rows(rng, 2, 6, 1, 2), rows(rng, 2, 6, 1, 2))
    assert np.isnan(kv.k[:, 1, 2:]).all()
    assert not np.isnan(kv.k[:, 1, :2]).any()
    kv.manager.free("a")
    assert np.isnan(kv.k).all()
    assert np.isnan(kv.v).all()


def test_the_forked_tail_is_copied_with_its_values(rng) -> None:
    kv = PagedKV(BlockManager(6, 4), 2, 1, 3)
    k = rows(rng, 2, 6, 1, 3)
    kv.manager.allocate("a", 0)
    kv.append("a", k, -k)
    kv.manager.fork("a", "b")
    more_a, more_b = rows(rng, 2, 1, 1, 3), rows(rng, 2, 1, 1, 3)
    kv.append("b", more_b, -more_b)
    kv.append("a", more_a, -more_a)
    for seq, more in (("a", more_a), ("b", more_b)):
        for layer in range(2):
            want = np.concatenate([k[layer], more[layer]])
            assert (kv.gather(seq, layer)[0] == want).all()
            assert (kv.gather(seq, layer)[1] == -want).all()
    kv.manager.check_invariants()


def test_nobody_writes_into_what_another_reads(rng) -> None:
    kv = PagedKV(BlockManager(4, 4), 1, 1, 2)
    kv.manager.allocate("a", 3)
    kv.manager.fork("a", "b")
    before = kv.k.copy()
    with pytest.raises(ValueError, match=r"block 0 is held by 2.*append first"):
        kv.write(kv.slot_mapping("a", 0, 3), rows(rng, 3, 1, 2), rows(rng, 3, 1, 2))
    with pytest.raises(ValueError, match="block 3 is free"):
        kv.write(np.array([12]), rows(rng, 1, 1, 2), rows(rng, 1, 1, 2))
    assert np.array_equal(kv.k, before, equal_nan=True)


def test_nobody_writes_into_what_the_prefix_cache_keeps(rng) -> None:
    # Slots looked up before the sequence was freed: its blocks have one holder, and that is the cache.
    kv = PagedKV(BlockManager(4, 2, prefix_cache=True), 1, 1, 1)
    kv.manager.allocate("a", range(5))
    slots, k = kv.slot_mapping("a", 0, 5), rows(rng, 5, 1, 1)
    kv.write(slots, k, k)
    kv.manager.commit("a")
    kv.manager.free("a")
    with pytest.raises(ValueError, match=r"block \d is in the prefix cache"):
        kv.write(slots[:4], k[:4] + 1, k[:4] + 1)
    kv.manager.allocate("b", range(5))
    assert (kv.gather("b")[0][:4] == k[:4]).all()


@pytest.mark.parametrize("forked", [False, True])
@pytest.mark.parametrize("tables", [1, 2])
def test_an_interrupt_between_two_layers_takes_the_tokens_back(rng, monkeypatch, tables, forked) -> None:
    kv = PagedKV(BlockManager(12, 4, tables=tables), 2, 1, 2)
    kv.manager.allocate("a", 0)
    k = rows(rng, 2, 6, 1, 2)
    kv.append("a", k, k)
    if forked:
        kv.manager.fork("a", "b")
    write = kv.write

    def interrupted(*given, layer) -> None:
        write(*given, layer=layer)
        if layer == 0:
            raise KeyboardInterrupt

    monkeypatch.setattr(kv, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        kv.append("a", rows(rng, 2, 5, 1, 2), rows(rng, 2, 5, 1, 2))
    monkeypatch.undo()
    kv.manager.check_invariants()
    for seq in kv.manager.sequences:
        for layer in range(2):
            assert (kv.gather(seq, layer)[0] == k[layer]).all()
            tail = kv.pools(layer)[0][kv.table(seq, layer)[-1]]
            assert np.isnan(tail[2:]).all(), "tokens of one layer only are left"
    kv.append("a", k, k)
    assert (kv.gather("a", 1)[0] == np.concatenate([k[1], k[1]])).all()


def test_what_is_too_large_for_the_type_is_infinite_without_a_warning() -> None:
    kv = PagedKV(BlockManager(2, 2), 1, 1, 1, "float16")
    kv.manager.allocate("a", 0)
    kv.append("a", np.full((1, 1, 1, 1), 1e30), np.full((1, 1, 1, 1), -1e30))
    assert [x.item() for x in kv.gather("a")] == [np.inf, -np.inf]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda kv, x: kv.append("a", x(1, 2, 1, 2), x(1, 2, 1, 2)), ValueError, r"k is .*2 layers"),
        (lambda kv, x: kv.append("a", x(2, 2, 1, 3), x(2, 2, 1, 2)), ValueError, r"k is .*2\)"),
        (lambda kv, x: kv.append("a", x(2, 2, 1, 2), x(2, 1, 1, 2)), ValueError, r"v is .*at least 2"),
        (lambda kv, x: kv.append("a", x(2, 2, 1, 2), x(1, 2, 1, 2)), ValueError, "v is"),
        (lambda kv, x: kv.append("a", x(2, 1, 1, 2), x(1, 1, 2)), ValueError, "v is .*2 layers"),  # v of one layer
        (lambda kv, x: kv.append("a", x(2, 2, 1, 2), x(2, 5, 1, 2)), ValueError, "k has 2 tokens and v 5"),
        (lambda kv, x: kv.append("a", x(2, 2, 1, 2) * 1j, x(2, 2, 1, 2)), ValueError, "k is complex.*real numbers"),
        (lambda kv, x: kv.append("a", x(2, 2, 1, 2), x(2, 2, 1, 2).astype(str)), ValueError, "v is <U"),
        (lambda kv, x: kv.append("a", x(2, 2, 1, 2).astype(object), x(2, 2, 1, 2)), ValueError, "k is object"),
        (lambda kv, x: kv.write(np.array([0]), x(1, 1, 2), x(1, 1, 2) * 1j), ValueError, "v is complex"),
        (lambda kv, x: kv.write(np.array([2**64 - 1]), x(1, 1, 2), x(1, 1, 2)), ValueError, "slots 0 to 15"),
        (
            lambda kv, x: kv.write(np.array([0]), x(1, 1, 2), x(1, 1, 2), layer=1.0),
            ValueError,
            r"layer must be a whole number, got 1\.0",
        ),
        (lambda kv, x: kv.append("a", x(2, 90, 1, 2), x(2, 90, 1, 2)), OutOfBlocks, "appending 90"),
        (lambda kv, x: kv.write(np.array([0, 99]), x(2, 1, 2), x(2, 1, 2)), ValueError, r"slot_mapping\[1\] is 99"),
        (lambda kv, x: kv.write(np.array([0, 0]), x(2, 1, 2), x(2, 1, 2)), ValueError, "a slot twice"),
        (lambda kv, x: kv.write(np.array([0, 1]), x(1, 1, 2), x(2, 1, 2)), ValueError, "at least 2 rows"),
        (lambda kv, x: kv.write(np.array([0]), x(1, 1, 2), x(1, 1, 2), layer=2), ValueError, "layer is 2"),
        (lambda kv, x: kv.gather("a", 2), ValueError, "layer is 2"),
    ],
)
def test_a_failed_call_leaves_the_cache_as_it_was(rng, call, error, message) -> None:
    kv = PagedKV(BlockManager(4, 4), 2, 1, 2)
    kv.manager.allocate("a", 0)
    kv.append("a", rows(rng, 2, 3, 1, 2), rows(rng, 2, 3, 1, 2))
    k, v, stats = kv.k.copy(), kv.v.copy(), kv.manager.stats()
    with pytest.raises(error, match=message):
        call(kv, lambda *shape: rows(rng, *shape))
    assert np.array_equal(kv.k, k, equal_nan=True)
    assert np.array_equal(kv.v, v, equal_nan=True)
    assert kv.manager.stats() == stats


@pytest.mark.parametrize(
    "build",
    [
        lambda m: PagedKV(m, 0, 1, 2),
        lambda m: PagedKV(m, 1, 0, 2),
        lambda m: PagedKV(m, 1, 1, 0),
        lambda m: PagedKV(m, 1, 1, 2, np.int32),
        lambda m: PagedKV(m, 1, 1, 2, ">f4"),
        lambda m: PagedKV(m, 1, 1, 2, "half a float"),
        lambda m: PagedKV(m, 1, 1, 2.5),
        lambda m: PagedKV(m, "1", 1, 2),
        lambda m: PagedKV(m, 1, 1, 2, v_head_dim=-1),
        lambda m: PagedKV(BlockManager(4, 4, tables=3), 2, 1, 2),
    ],
)
def test_a_cache_that_cannot_work_is_refused(build) -> None:
    with pytest.raises(ValueError, match=r"expected|need|must be a whole number"):
        build(BlockManager(4, 4))


def test_a_cache_needs_a_manager() -> None:
    with pytest.raises(TypeError, match="manager is 8; expected a BlockManager"):
        PagedKV(8, 1, 1, 2)  # type: ignore[arg-type]


def test_keys_alone_can_be_cached(rng) -> None:
    kv = PagedKV(BlockManager(2, 4), 1, 1, 576, ml_dtypes.bfloat16, v_head_dim=0)
    kv.manager.allocate("a", 0)
    kv.append("a", rows(rng, 1, 3, 1, 576), np.zeros((1, 3, 1, 0)))
    assert kv.gather("a")[1].shape == (3, 1, 0)
    assert kv.nbytes == 2 * 4 * 576 * 2
