"""The manager's books: the texts' examples, field bugs, and what a failed call leaves behind."""

import copy
import pickle

import numpy as np
import pytest

from refsim.kvcache import BlockManager, BlockPool, DuplicateSequence, OutOfBlocks, UnknownSequence, story


def books(manager: BlockManager) -> bytes:
    """Everything the manager knows, to compare before and after."""
    return pickle.dumps(
        (
            manager.pool.refs,
            manager.pool.free_ids(),
            {s: (manager.table(s).tolist(), manager.length(s)) for s in manager.sequences},
            manager.stats(),
        )
    )


def test_table_example_of_the_text() -> None:
    m = BlockManager(8, 16, free_order=[0, 3, 5, 1, 2, 4, 6, 7])
    m.allocate(1, 48)
    m.adopt(2, m.table(1)[:2], 32)
    m.allocate(3, 32)
    assert [m.table(r).tolist() for r in (1, 2, 3)] == [[0, 3, 5], [0, 3], [1, 2]]
    assert m.pool.refs == [2, 1, 1, 2, 0, 1, 0, 0]
    m.free(1)  # others hold P0 and P3: only P5 comes back
    assert m.pool.refs == [1, 1, 1, 1, 0, 0, 0, 0]
    m.free(2)
    m.free(3)
    assert m.pool.free == 8
    m.check_invariants()


def test_published_walk_through_of_decoding() -> None:
    # PagedAttention, figures 6 and 7: a prompt of 7 in blocks of 4 takes 7 and 1; the fill goes 3 -> 4; then block 3.
    m = BlockManager(9, 4, free_order=[7, 1, 5, 2, 3, 0, 4, 6, 8])
    m.allocate("A", 7)
    m.allocate("B", 8)
    assert (m.table("A").tolist(), m.table("B").tolist()) == ([7, 1], [5, 2])
    m.append("A")
    assert m.table("A").tolist() == [7, 1]
    m.append("A")
    assert m.table("A").tolist() == [7, 1, 3]


def test_published_walk_through_of_copy_on_write() -> None:
    # PagedAttention, figure 8: two samples share blocks 7 and 1; the first to write copies 1 to 3, count 2 -> 1.
    m = BlockManager(9, 4, free_order=[7, 1, 3, 0, 2, 4, 5, 6, 8], record=True)
    m.allocate("A1", 7)
    m.fork("A1", "A2")
    assert [m.pool.refs[b] for b in (7, 1)] == [2, 2]
    m.append("A1")
    assert m.table("A1").tolist() == [7, 3]
    assert [m.pool.refs[b] for b in (7, 1, 3)] == [2, 1, 1]
    m.append("A2")  # the only holder left writes in place
    assert m.table("A2").tolist() == [7, 1]
    assert [(e.kind, e.blocks, e.onto) for e in m.events or [] if e.kind == "copy"] == [("copy", (1,), (3,))]


def test_a_full_tail_is_never_copied() -> None:
    m = BlockManager(8, 4)
    m.allocate("a", 8)
    m.fork("a", "b")
    m.append("b")
    assert m.table("b").tolist() == [0, 1, 2]
    assert m.table("a").tolist() == [0, 1]


def test_reference_counts_count_tables_not_entries() -> None:
    # vllm 1556: a table [b0, b1, b0], forked, and both freed.
    m = BlockManager(4, 2)
    m.allocate("a", 4)
    b0, b1 = m.table("a").tolist()
    m.adopt("ring", [b0, b1, b0], 6)
    m.free("a")
    m.fork("ring", "twin")
    assert [m.pool.refs[b] for b in (b0, b1)] == [2, 2]
    m.free("ring")
    m.free("twin")
    assert m.pool.free == 4
    m.check_invariants()


@pytest.mark.parametrize("tables", [1, 2])
@pytest.mark.parametrize("tokens", [6, 5, 8])
def test_who_is_shared_by_hand_copies_before_it_writes_on(tables: int, tokens: int) -> None:
    # 8 tokens: the second says that the block is full, so that it is no tail of its own.
    m = BlockManager(16, 4, tables=tables)
    m.allocate("a", 6)
    held = [m.table("a", t).tolist() for t in range(tables)]
    m.adopt("b", held, tokens)
    m.check_invariants()
    m.append("a")
    for t in range(tables):
        assert m.table("a", t)[0] == held[t][0]
        assert m.table("a", t)[1] != held[t][1], "a writes into what b reads"
        assert m.table("b", t).tolist() == held[t]
    m.check_invariants()


@pytest.mark.parametrize("owner_stays", [True, False])
def test_a_tail_that_the_table_names_twice_is_copied_and_still_held(owner_stays: bool) -> None:
    m = BlockManager(8, 4, record=True)
    m.allocate("a", 8)
    m.adopt("ring", [0, 1, 0], 9)
    if not owner_stays:
        m.free("a")
    m.append("ring")  # written in place, it would change the table's own second token
    assert m.table("ring").tolist()[:2] == [0, 1]
    assert m.table("ring")[2] not in (0, 1)
    m.check_invariants()
    assert list(story.tell(m.events or [], 8))[-1].refs == tuple(m.pool.refs)
    for seq in m.sequences:
        m.free(seq)
    assert m.pool.free == 8


def test_layers_that_name_one_block_get_one_each_to_write_to() -> None:
    m = BlockManager(8, 4, tables=2, record=True)
    m.allocate("a", 5)
    one = m.table("a", 0).tolist()
    m.adopt("b", [one, one], 5)
    m.free("a")
    m.append("b")
    tails = [int(m.table("b", t)[-1]) for t in (0, 1)]
    assert tails[0] != tails[1]
    assert one[1] not in tails
    m.check_invariants()  # nobody holds the old tail any more
    assert list(story.tell(m.events or [], 8))[-1].refs == tuple(m.pool.refs)
    m.free("b")
    assert m.pool.free == 8


def test_the_same_block_twice_in_one_release_is_refused() -> None:
    # vllm 42571.
    pool = BlockPool(8)
    block = pool.take(1)
    with pytest.raises(ValueError, match="twice"):
        pool.release(block * 2)
    assert (pool.free, pool.refs[block[0]]) == (7, 1)
    pool.release(block)
    assert (pool.free, len(pool.free_ids())) == (8, 8)
    with pytest.raises(ValueError, match="freed twice, or never allocated"):
        pool.release(block)
    pool.check_invariants()


def test_utilisation_returns_to_zero_each_time() -> None:
    # xLLM 828.
    m = BlockManager(1, 16)
    for _ in range(5):
        m.allocate("r", 16)
        assert m.stats().used == 1
        m.free("r")
        assert (m.stats().used, m.stats().free) == (0, 1)


def test_reserved_blocks_are_never_handed_out() -> None:
    m = BlockManager(4, 1, reserved=1)
    m.allocate("a", 3)
    assert sorted(m.table("a").tolist()) == [1, 2, 3]
    with pytest.raises(OutOfBlocks):
        m.append("a")


def test_tables_are_padded_with_minus_one() -> None:
    m = BlockManager(8, 4)
    m.allocate("a", 9)
    m.allocate("b", 0)
    m.allocate("c", 4)
    tables = m.block_tables(["a", "b", "c"])
    assert tables.dtype == np.int32
    assert tables.tolist() == [[0, 1, 2], [-1, -1, -1], [3, -1, -1]]
    assert m.seq_lens(["a", "b", "c"]).tolist() == [9, 0, 4]
    assert m.block_tables([]).shape == (0, 0)


def test_tables_per_layer_take_from_one_pool() -> None:
    m = BlockManager(196, 16, tables=28)
    m.allocate("a", 100)
    assert m.pool.free == 0
    ids = np.concatenate([m.table("a", layer) for layer in range(28)])
    assert sorted(ids.tolist()) == list(range(196))
    with pytest.raises(OutOfBlocks, match="needs 28 more"):
        m.append("a", 13)
    m.append("a", 12)  # the last block of each layer has room for these
    m.check_invariants()


def test_slot_mapping_is_64_bit_and_follows_the_table() -> None:
    m = BlockManager(4, 4, free_order=[2, 0, 3, 1])
    m.allocate("a", 7)
    slots = m.slot_mapping("a", 2, 4)
    assert slots.dtype == np.int64
    assert slots.tolist() == [10, 11, 0, 1]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m: m.allocate("a", 1), DuplicateSequence, "'a' is live"),
        (lambda m: m.allocate("x", 17), OutOfBlocks, r"needs 5 more block\(s\), but only 2"),
        (lambda m: m.allocate("x", -1), ValueError, "tokens must be a whole number from 0, got -1"),
        (lambda m: m.allocate("x", [[1, 2]]), ValueError, "token ids must be integers with 1 axis"),
        (lambda m: m.append("x"), UnknownSequence, "'x' is unknown"),
        (lambda m: m.append("a", 100), OutOfBlocks, "appending 100"),
        (lambda m: m.append("b", 8), OutOfBlocks, "needs 3 more"),  # two more blocks, and a copy of the shared tail
        (lambda m: m.append("a", -1), ValueError, "tokens must be a whole number from 0, got -1"),
        (lambda m: m.fork("x", "y"), UnknownSequence, "'x'"),
        (lambda m: m.fork("a", "b"), DuplicateSequence, "'b'"),
        (lambda m: m.free("x"), UnknownSequence, "'x'"),
        (lambda m: m.adopt("x", [5], 4), ValueError, "nobody holds"),
        (lambda m: m.adopt("x", [99], 4), ValueError, "go from 0 to 5"),
        (lambda m: m.adopt("x", [0], 5), ValueError, "5 tokens take"),
        (lambda m: m.slot_mapping("a", 5, 3), ValueError, "allocate or append first"),
        (lambda m: m.table("a", 1), ValueError, "table is 1"),
        (lambda m: m.commit("a", 9), ValueError, "computed is 9"),
        (lambda m: m.commit("a", 5.0), ValueError, r"computed must be a whole number, got 5\.0"),
        (lambda m: m.allocate("x", 4, upto=2.5), ValueError, r"upto must be a whole number from 0, got 2\.5"),
        (lambda m: m.allocate("x", 4, chunk="2"), ValueError, "chunk must be a whole number from 0, got '2'"),
        (lambda m: m.allocate("x", 2.5), ValueError, "token ids must be integers with 1 axis, got float64"),
        (lambda m: m.truncate("a", 4.0), ValueError, r"num_tokens must be a whole number, got 4\.0"),
        (lambda m: m.adopt("x", [0.9], 4), ValueError, "block_ids must be integers with 2 axes, got float64"),
        (lambda m: m.adopt("x", [0], 4.0), ValueError, r"num_tokens must be a whole number, got 4\.0"),
        (lambda m: m.slot_mapping("a", 0.5, 1), ValueError, r"start must be a whole number from 0, got 0\.5"),
        (lambda m: m.table("a", 0.0), ValueError, r"table must be a whole number, got 0\.0"),
    ],
)
def test_a_failed_call_leaves_the_manager_as_it_was(call, error, message) -> None:
    m = BlockManager(6, 4)
    m.allocate("a", 6)
    m.allocate("c", 8)
    m.fork("a", "b")
    before = books(m)
    with pytest.raises(error, match=message):
        call(m)
    assert books(m) == before
    m.check_invariants()


@pytest.mark.parametrize(
    "build",
    [
        lambda: BlockManager(0, 16),
        lambda: BlockManager(4, 0),
        lambda: BlockManager(4, 16, tables=0),
        lambda: BlockManager(4, 16, reserved=4),
        lambda: BlockManager(4, 16, free_order=[0, 1, 2]),
        lambda: BlockManager(4, 16, free_order=[0, 1, 2, 2]),
        lambda: BlockManager(4, 16, tables=2, prefix_cache=True),
        lambda: BlockManager(4.0, 16),
        lambda: BlockManager(4, 2.5),
        lambda: BlockManager(4, "16"),
        lambda: BlockManager(4, 16, tables=2.0),
        lambda: BlockManager(3, 16, free_order=[0.9, 1.2, 2.5]),
    ],
)
def test_a_manager_that_cannot_work_is_refused(build) -> None:
    with pytest.raises(ValueError, match=r"num_blocks|block_size|free_order|tables"):
        build()


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int64])
def test_counts_of_any_integer_type_will_do(kind: type) -> None:
    m = BlockManager(kind(40), kind(16), tables=kind(1), reserved=kind(1))
    m.allocate("a", kind(100))
    m.append("a", kind(100))
    for _ in range(100):
        m.append("a")
    m.truncate("a", kind(90))
    m.commit("a", kind(80))
    assert m.table("a", kind(0)).size == 6
    assert m.slot_mapping("a", kind(80), kind(10)).size == 10
    m.check_invariants()


@pytest.mark.parametrize("prefix_cache", [False, True])
def test_a_copy_that_fails_leaves_the_manager_as_it_was(prefix_cache: bool) -> None:
    m = BlockManager(6, 4, prefix_cache=prefix_cache, record=True)
    m.allocate("a", range(6))
    m.fork("a", "b")

    def no_memory(sources: list[int], targets: list[int]) -> None:
        raise MemoryError

    m.subscribe(copied=no_memory, freed=lambda ids: None)
    before = books(m)
    with pytest.raises(MemoryError):
        m.append("b", range(7))
    assert books(m) == before
    m.check_invariants()
    assert list(story.tell(m.events or [], 6))[-1].refs == tuple(m.pool.refs)


def test_a_second_free_is_refused() -> None:
    m = BlockManager(2, 4)
    m.allocate("a", 5)
    m.free("a")
    with pytest.raises(UnknownSequence, match="freed already"):
        m.free("a")
    assert m.pool.free == 2


def test_invariants_notice_a_wrong_book() -> None:
    m = BlockManager(4, 4)
    m.allocate("a", 5)
    for spoil in (
        lambda b: b.pool.refs.__setitem__(0, 2),
        lambda b: b.pool.stack.pop(),
        lambda b: b._sequences["a"].rows[0].__setitem__(1, 0),
        lambda b: setattr(b._sequences["a"], "tokens", 9),
    ):
        broken = copy.deepcopy(m)
        spoil(broken)
        with pytest.raises(AssertionError):
            broken.check_invariants()
    m.check_invariants()
