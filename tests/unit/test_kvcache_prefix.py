"""The prefix cache: what may be hit, what may be evicted and in which order, against cases worked out by hand."""

import numpy as np
import pytest

from refsim.kvcache import BlockManager, Event, OutOfBlocks, story
from refsim.kvcache.chain import Chain


def manager(blocks: int = 8, size: int = 4, **more) -> BlockManager:
    return BlockManager(blocks, size, prefix_cache=True, record=True, **more)


def run(m: BlockManager, name: object, ids, **more) -> int:
    """A request that comes, computes and goes; returns its hit."""
    hit = m.allocate(name, ids, **more)
    m.commit(name)
    m.free(name)
    return hit


def test_only_full_computed_blocks_are_hit() -> None:
    m = manager()
    m.allocate("a", range(10))
    assert m.allocate("early", range(10)) == 0  # vllm 7822: nothing of "a" is computed yet
    m.free("early")
    m.commit("a", 7)
    assert m.allocate("b", range(10)) == 4
    m.commit("a")
    assert m.allocate("c", range(10)) == 8
    assert m.table("c")[:2].tolist() == m.table("a")[:2].tolist()
    m.check_invariants()


@pytest.mark.parametrize(("length", "hit"), [(32, 16), (33, 32), (31, 16), (16, 0), (17, 16), (1, 0), (0, 0)])
def test_a_hit_leaves_a_token_to_compute(length, hit) -> None:
    # vllm 11186, nano-vllm 144: a prompt of whole blocks, all cached.
    m = manager(blocks=16, size=16)
    run(m, "a", range(48))
    assert m.allocate("b", range(length)) == hit
    m.commit("b")
    assert m.allocate("c", range(48)) == 32, "the chain keeps its hashes"
    m.check_invariants()


def test_ids_after_a_different_prefix_are_no_hit() -> None:
    m = manager()
    run(m, "a", [1, 1, 1, 1, 2, 2, 2, 2, 0])
    assert run(m, "b", [9, 1, 1, 1, 2, 2, 2, 2, 0]) == 0
    assert run(m, "c", [1, 1, 1, 1, 2, 2, 2, 3, 0]) == 4


def test_equal_hashes_of_different_tokens_are_no_hit(monkeypatch) -> None:
    monkeypatch.setattr("refsim.kvcache.chain.key_of", lambda pair: 0)
    m = manager()
    run(m, "a", [1, 1, 1, 1, 0])
    assert run(m, "b", [2, 2, 2, 2, 0]) == 0
    assert run(m, "c", [1, 1, 1, 1, 0]) == 4


def test_a_block_is_no_hit_under_another_prefix_even_if_hashes_say_so(monkeypatch) -> None:
    # A key of the block's own tokens only: the second blocks agree in hash and in tokens, and differ in their parent.
    monkeypatch.setattr("refsim.kvcache.chain.key_of", lambda pair: hash(pair[1]))
    m = manager()
    run(m, "x", [1, 1, 1, 1, 5, 5, 5, 5, 0])
    run(m, "other", [2, 2, 2, 2, 0])
    assert run(m, "y", [2, 2, 2, 2, 5, 5, 5, 5, 0]) == 4
    assert run(m, "x", [1, 1, 1, 1, 5, 5, 5, 5, 0]) == 8


def test_salts_are_apart() -> None:
    m = manager()
    run(m, "a", range(9), salt=1)
    assert run(m, "b", range(9), salt=2) == 0
    assert run(m, "c", range(9), salt=1) == 8
    assert run(m, "d", range(9), salt=2) == 8


def test_least_recently_used_goes_first_and_tails_before_heads() -> None:
    m = manager(blocks=5)
    run(m, "a", [1] * 8)  # blocks 0 and 1
    run(m, "b", [2] * 8)  # blocks 2 and 3
    run(m, "a again", [1] * 8 + [0])  # all of a is used later than b
    m.allocate("c", [3] * 12)  # one free block; two to evict: b's tail, b's head
    assert [e.blocks for e in m.events or [] if e.kind == "evict"] == [(3, 2)]
    assert m.table("c").tolist() == [4, 3, 2]
    m.append("c", [3])  # a's tail
    m.free("c")
    assert run(m, "a last", [1] * 5) == 4
    m.check_invariants()


def test_a_block_in_use_is_never_evicted() -> None:
    # Avarok 373: cache 1 + sequence 1.
    m = manager(blocks=2)
    m.allocate("a", range(8))
    m.commit("a")
    assert m.pool.refs == [2, 2]
    with pytest.raises(OutOfBlocks):
        m.allocate("b", [9])
    assert m.pool.refs == [2, 2]
    m.free("a")
    assert (m.pool.refs, m.pool.free, m.stats().evictable) == ([1, 1], 0, 2)
    m.allocate("b", [9])
    assert m.stats().evictable == 1
    m.check_invariants()


def test_an_evicted_block_is_not_found_under_its_old_hash() -> None:
    # vllm 5364, nano-vllm 163: the block is another's now.
    m = manager(blocks=2)
    run(m, "x", range(8))
    m.allocate("y", [7] * 8)
    m.free("y")  # its blocks were never computed, so nothing of them is cached
    assert (m.allocate("x", range(8)), m.stats().evictable) == (0, 0)


def test_a_failed_admission_leaves_no_trace() -> None:
    m = manager(blocks=4)
    run(m, "a", range(8))
    m.allocate("b", [9] * 8)
    events, refs, stats = list(m.events or []), list(m.pool.refs), m.stats()
    # It would hit one resting block and need two more, of which there is only one.
    with pytest.raises(OutOfBlocks, match=r"needs 2 more block.* only 1"):
        m.allocate("c", [0, 1, 2, 3, 8, 8, 8, 8, 8])
    assert (m.events, m.stats()) == (events, stats)
    assert m.pool.refs == refs
    m.check_invariants()
    assert m.allocate("d", range(8)) == 4


def test_twins_end_as_one_block() -> None:
    # nano-vllm 219: two equal prompts computed in the same step.
    m = manager()
    m.allocate("a", range(9))
    m.allocate("b", range(9))
    assert m.stats().used == 6
    m.commit("a")
    m.commit("b")
    assert m.table("b").tolist() == [0, 1, 5]
    assert m.stats().used == 4
    m.free("a")
    m.check_invariants()
    m.free("b")
    assert (m.stats().evictable, m.stats().used) == (2, 0)


def test_a_twin_that_a_fork_shares_stays_out_of_the_cache() -> None:
    # Were "b" pointed at the block of "a" alone, its fork would hold a child whose parent could be evicted.
    m = manager(blocks=12)
    m.allocate("a", range(8))
    m.allocate("b", range(8))
    m.append("b", [8])
    m.fork("b", "b2")
    m.commit("a")
    m.commit("b")
    assert m.table("b").tolist() == m.table("b2").tolist()
    assert m.prefix.entries == m.table("a").tolist()
    m.free("a")
    m.allocate("flood", 4 * m.available)
    m.check_invariants()
    m.free("b2")
    m.commit("b")
    m.check_invariants()
    assert m.prefix.entries == m.table("b")[:2].tolist()


def test_pinned_prompts_stay() -> None:
    m = manager(blocks=4)
    run(m, "system", range(8))
    pin = m.pin(range(8))
    assert pin == [0, 1]
    assert m.stats().used == 2
    run(m, "flood", [5] * 8)
    run(m, "flood", [6] * 8)
    with pytest.raises(OutOfBlocks):
        m.allocate("too much", [7] * 9)
    assert m.allocate("user", [*range(8), 1]) == 8
    m.free("user")
    m.check_invariants()
    run(m, "flood", [7] * 8)
    assert m.allocate("another user", [*range(8), 1]) == 8
    m.free("another user")
    m.unpin(pin)
    m.check_invariants()
    m.allocate("flood", [8] * 16)
    assert m.pool.refs == [1, 1, 1, 1]
    with pytest.raises(ValueError, match="not all pinned"):
        m.unpin(pin)


@pytest.mark.parametrize("ids", [[0], [0, 0], [1], [-1], [99], [2, 3]])
def test_only_what_was_pinned_together_is_unpinned(ids: list[int]) -> None:
    # A head unpinned alone could be evicted before its tail; -1 would be the last block.
    m = BlockManager(4, 2, prefix_cache=True)
    m.allocate("a", range(8))
    m.commit("a")
    pinned = m.pin(range(4))
    m.pin(range(8))
    m.free("a")
    with pytest.raises(ValueError, match="give what pin returned"):
        m.unpin(ids)
    m.unpin(np.array(pinned))
    with pytest.raises(ValueError, match="once"):
        m.unpin(pinned)
    m.check_invariants()
    assert (pinned, m.available) == ([0, 1], 0)


@pytest.mark.parametrize(
    "call",
    [
        lambda: Chain([1], 0),
        lambda: Chain([1], 2.5),  # type: ignore[arg-type]
        lambda: Chain([1, 2], 1).truncate(-1),
        lambda: Chain(np.array([2**64 - 1], np.uint64), 1),  # as 64 signed bits it would equal -1
    ],
)
def test_a_chain_that_makes_no_sense_is_refused(call) -> None:
    with pytest.raises(ValueError, match=r"must be a whole number from|must fit int64"):
        call()


def test_a_bad_chunk_holds_no_hits() -> None:
    m = BlockManager(8, 4, prefix_cache=True)
    m.allocate("a", range(9))
    m.commit("a")
    with pytest.raises(ValueError, match=r"chunk must be a whole number from 0, got 0\.5"):
        m.allocate("b", range(9), chunk=0.5)  # type: ignore[arg-type]
    m.check_invariants()


def test_a_chain_serves_one_live_sequence_at_a_time() -> None:
    # Two would extend it with tokens of their own, and commit each other's.
    m = BlockManager(16, 2, prefix_cache=True)
    chain = Chain([1, 2, 3], 2)
    m.allocate("a", chain)
    with pytest.raises(ValueError, match=r"give chain\.copy\(\)"):
        m.allocate("b", chain)
    m.allocate("b", chain.copy())
    m.append("a", [4])
    m.append("b", [9])
    m.fork("a", "c")
    m.free("a")
    m.allocate("a", chain)  # as after a preemption
    ids = {seq: known.ids.tolist() for seq in m.sequences if (known := m.chain(seq)) is not None}
    assert ids == {"b": [1, 2, 3, 9], "c": [1, 2, 3, 4], "a": [1, 2, 3, 4]}
    m.check_invariants()


def test_used_count_returns_to_zero_each_time() -> None:
    # xLLM 828, with the cache on.
    m = manager(blocks=1)
    for _ in range(4):
        run(m, "r", [1, 2, 3, 4])
        assert (m.stats().used, m.stats().evictable) == (0, 1)


def test_an_incomplete_block_is_no_entry() -> None:
    # sglang 35270: page 4, three tokens inserted and looked up.
    m = manager()
    run(m, "a", [1, 2, 3])
    assert m.stats().evictable == 0
    assert m.allocate("b", [1, 2, 3]) == 0


def test_decoded_tokens_are_cached_when_their_ids_are_given() -> None:
    m = manager()
    m.allocate("a", [1, 2, 3])
    m.append("a", [4])
    m.append("a", [5])
    m.commit("a")
    assert m.allocate("b", [1, 2, 3, 4, 5]) == 4
    m.append("b")  # an id that is not told: nothing after it can be hashed
    m.append("b", 6)
    m.commit("b")
    assert (m.stats().evictable, m.prefix.entries) == (0, [0])
    with pytest.raises(ValueError, match="known for 5"):
        m.append("b", [1])


def test_chunks_take_blocks_as_they_come() -> None:
    m = manager()
    run(m, "a", range(5))
    assert m.allocate("b", range(14), chunk=4) == 4
    assert (m.length("b"), m.table("b").size) == (8, 2)
    m.append("b", 6)
    m.commit("b")
    assert (m.length("b"), len(m.prefix.entries)) == (14, 3)
    m.check_invariants()


def test_the_whole_must_fit_even_if_a_chunk_is_taken() -> None:
    m = manager(blocks=3)
    run(m, "a", range(8))
    with pytest.raises(OutOfBlocks, match=r"13 tokens needs 2 more block.* only 1"):
        m.allocate("b", range(13), chunk=4, whole_must_fit=True)
    assert m.allocate("b", range(12), chunk=1, whole_must_fit=True) == 8
    assert m.table("b").size == 3
    m.check_invariants()


def test_a_chain_may_know_the_future() -> None:
    m = manager()
    run(m, "a", range(16))
    future = Chain(np.arange(16), 4)
    assert m.allocate("b", future, upto=9) == 8
    assert m.length("b") == 9
    m.append("b", 3)
    m.commit("b")
    assert m.table("b").tolist()[:3] == m.pin(range(12))
    with pytest.raises(ValueError, match="upto is 17"):
        m.allocate("c", future.copy(), upto=17)
    m.check_invariants()


def test_events_tell_the_life_in_order() -> None:
    m = manager(blocks=3)
    m.allocate("a", range(6))
    m.commit("a")
    m.fork("a", "b")
    m.append("b", [9])
    m.free("a")
    m.free("b")
    m.allocate("c", range(5))
    m.free("c")
    m.allocate("d", [9] * 12)
    kinds = [(e.kind, e.seq_id) for e in m.events or []]
    assert kinds == [
        ("allocate", "a"),
        ("cache", "a"),
        ("share", "b"),
        ("allocate", "b"),
        ("copy", "b"),
        ("drop", "a"),
        ("free", "a"),
        ("drop", "b"),
        ("free", "b"),
        ("hit", "c"),
        ("allocate", "c"),
        ("drop", "c"),
        ("free", "c"),
        ("evict", None),
        ("free", None),
        ("allocate", "d"),
    ]


def test_a_record_with_gaps_is_not_told() -> None:
    with pytest.raises(ValueError, match="the record has gaps"):
        list(story.tell([Event("allocate", 1, (0,)), Event("allocate", 2, (0,))], 1))


def test_keys_of_a_growing_chain_equal_those_of_the_whole() -> None:
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 50000, 1000)
    whole = Chain(ids, 16, salt=3)
    grown = Chain(ids[:5], 16, salt=3)
    for start in range(5, 1000, 37):
        grown.extend(ids[start : start + 37])
        grown.keys()
    twin = grown.copy()
    twin.extend([1] * 16)
    assert whole.keys() == grown.keys() == twin.keys()[:62]
    assert len(set(whole.keys())) == 62
    assert (grown.ids == ids).all()


def test_invariants_notice_a_wrong_cache() -> None:
    import copy

    def spoil_entry(broken: BlockManager, block: int, field: int, value: object) -> None:
        entry = list(broken.prefix._entry[block])
        entry[field] = value
        broken.prefix._entry[block] = tuple(entry)

    m = manager()
    m.allocate("a", range(12))
    m.commit("a")
    for spoil in (
        lambda b: spoil_entry(b, 1, 1, bytes(32)),  # its ids
        lambda b: b.prefix._by_key.popitem(),
        lambda b: b.prefix._resting.update({0: None}),
        lambda b: spoil_entry(b, 2, 2, 0),  # its parent
        lambda b: b.prefix.pins.__setitem__(5, 1),
    ):
        broken = copy.deepcopy(m)
        spoil(broken)
        with pytest.raises(AssertionError):
            broken.check_invariants()
    m.check_invariants()


def test_evicted_blocks_come_back_from_the_host() -> None:
    m = manager(blocks=4, host_blocks=2)
    run(m, "a", range(13))  # three blocks are cached; the flood evicts them, the tail first, and the host keeps two
    run(m, "flood", 16)
    assert (len(m.prefix.host), m.prefix.host.stored) == (2, 3)
    assert m.allocate("b", range(13)) == 8
    assert (m.prefix.host.loaded, len(m.prefix.host)) == (2, 0)
    assert [e.blocks for e in m.events or [] if e.kind == "load"] == [tuple(m.table("b")[:2].tolist())]
    m.check_invariants()
    with pytest.raises(ValueError, match="capacity must be a whole number from 1"):
        manager(host_blocks=-1)
    with pytest.raises(ValueError, match="needs prefix_cache"):
        BlockManager(4, 4, host_blocks=2)


def test_a_block_is_no_twin_under_another_prefix_even_if_hashes_say_so(monkeypatch) -> None:
    monkeypatch.setattr("refsim.kvcache.chain.key_of", lambda pair: hash(pair[1]))
    m = manager()
    m.allocate("a", [1, 1, 1, 1, 2, 2, 2, 2])
    m.allocate("b", [9, 9, 9, 9, 2, 2, 2, 2])
    m.commit("a")
    m.commit("b")
    assert m.table("b").tolist() == [2, 3]
    assert m.prefix.entries == [0, 1, 2]


def test_the_host_gives_nothing_whose_key_the_gpu_holds_for_another(monkeypatch) -> None:
    monkeypatch.setattr("refsim.kvcache.chain.key_of", lambda pair: pair[1][0])  # the first id's low byte
    m = manager(blocks=4, host_blocks=8)
    run(m, "x", [1, 0, 0, 0, 2, 0, 0, 0, 9])
    run(m, "flood", 16)
    run(m, "z", [2, 7, 7, 7, 5])
    assert m.allocate("x", [1, 0, 0, 0, 2, 0, 0, 0, 9]) == 4
    m.check_invariants()


def test_pinning_without_a_cache_is_refused() -> None:
    m = BlockManager(4, 4)
    with pytest.raises(ValueError, match="prefix_cache=True"):
        m.pin([1, 2, 3, 4])


def test_sharing_by_hand_and_a_foreign_chain_are_refused() -> None:
    m = manager()
    m.allocate("a", range(5))
    with pytest.raises(ValueError, match="by hand"):
        m.adopt("b", [0], 4)
    with pytest.raises(ValueError, match="blocks of 16"):
        m.allocate("c", Chain([1], 16))
