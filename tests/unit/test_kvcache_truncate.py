"""Taking tokens back: which blocks are dropped, who is still protected, and a decoder's failed step undone by it."""

import numpy as np
import pytest

from refsim import attention, model
from refsim.kvcache import BlockManager, PagedKV, UnknownSequence
from refsim.kvcache.chain import Chain


def test_whole_blocks_past_the_end_are_dropped_the_tail_first() -> None:
    m = BlockManager(8, 4, record=True)
    m.allocate("a", 15)
    m.truncate("a", 8)  # an end on a block's edge
    assert (m.table("a").tolist(), m.length("a"), m.pool.free_ids()[:2]) == ([0, 1], 8, [2, 3])
    assert [(e.kind, e.blocks) for e in m.events or []][-2:] == [("drop", (3, 2)), ("free", (3, 2))]
    m.truncate("a", 8)
    m.truncate("a", 0)
    assert (m.table("a").tolist(), m.pool.free) == ([], 8)
    m.append("a", 5)
    assert m.length("a") == 5
    m.check_invariants()


@pytest.mark.parametrize("left", [-1, 7])
def test_only_tokens_that_are_there_can_be_kept(left) -> None:
    m = BlockManager(4, 4)
    m.allocate("a", 6)
    with pytest.raises(ValueError, match=f"num_tokens is {left}; sequence 'a' has 6: give 0 to 6"):
        m.truncate("a", left)
    with pytest.raises(UnknownSequence):
        m.truncate("b", 0)
    assert (m.length("a"), m.table("a").tolist()) == (6, [0, 1])


@pytest.mark.parametrize("tables", [1, 2])
def test_a_block_that_a_fork_reads_is_copied_before_it_is_written_again(tables) -> None:
    m = BlockManager(16, 4, tables=tables)
    m.allocate("a", 8)
    m.fork("a", "b")
    m.truncate("b", 6)
    assert [m.table("b", t).tolist() for t in range(tables)] == [m.table("a", t).tolist() for t in range(tables)]
    m.append("b", 1)  # position 6 of "a" is in that block
    for t in range(tables):
        assert m.table("b", t)[0] == m.table("a", t)[0]
        assert m.table("b", t)[1] != m.table("a", t)[1]
    m.check_invariants()


def test_a_block_named_twice_is_held_until_both_its_places_are_gone() -> None:
    m = BlockManager(4, 4)
    m.allocate("a", 4)
    m.adopt("b", [0, 0], 8)
    m.truncate("b", 4)
    assert (m.table("b").tolist(), m.pool.refs[0]) == ([0], 2)
    m.truncate("b", 0)
    assert m.pool.refs[0] == 1
    m.check_invariants()


def test_a_tail_named_elsewhere_in_the_table_is_neither_poisoned_nor_written() -> None:
    kv = PagedKV(BlockManager(4, 2), 1, 1, 1)
    kv.manager.allocate("a", 4)
    rows = np.arange(4, dtype=np.float32).reshape(4, 1, 1)
    kv.write(kv.slot_mapping("a", 0, 4), rows, rows)
    kv.manager.adopt("ring", [0, 1, 0], 6)
    kv.manager.free("a")
    kv.manager.truncate("ring", 5)
    kv.manager.check_invariants()
    assert kv.gather("ring")[0].ravel().tolist() == [0, 1, 2, 3, 0]
    kv.append("ring", np.full((1, 1, 1, 1), 9.0), np.full((1, 1, 1, 1), 9.0))
    assert kv.gather("ring")[0].ravel().tolist() == [0, 1, 2, 3, 0, 9]


def test_a_cached_block_cut_into_stays_cached_and_may_be_evicted_once_it_is_copied() -> None:
    m = BlockManager(8, 4, prefix_cache=True)
    m.allocate("a", range(12))
    m.commit("a")
    m.truncate("a", 6)
    assert (m.stats().evictable, m.stats().used) == (1, 2)  # tokens 8 to 11 rest; 4 to 7 are still in the table
    m.append("a", [70, 71, 90])
    assert m.table("a")[1] != 1
    assert m.stats().evictable == 2
    m.commit("a")
    m.check_invariants()
    assert m.allocate("as before", range(13)) == 12
    assert m.allocate("as after", [0, 1, 2, 3, 4, 5, 70, 71, 0]) == 8


def test_ids_taken_back_are_forgotten_but_ids_given_ahead_are_not() -> None:
    m = BlockManager(8, 4, prefix_cache=True)
    m.allocate("a", [1, 2, 3, 4, 5, 6])
    m.truncate("a", 3)
    m.append("a", [9])
    assert m.chain("a").ids.tolist() == [1, 2, 3, 9]
    m.commit("a")
    assert m.allocate("b", [1, 2, 3, 9, 0]) == 4

    ahead = Chain(range(20, 29), 4)
    m.allocate("c", ahead, upto=6)
    m.truncate("c", 2)
    m.append("c", 7)
    m.commit("c")
    assert ahead.known == 9
    assert m.allocate("d", range(20, 29)) == 8


@pytest.mark.parametrize("known", range(10))
def test_a_chain_cut_short_is_the_chain_of_the_shorter_ids(known) -> None:
    chain, ids = Chain(range(9), 4), list(range(9))
    chain.keys()
    chain.truncate(known)
    for tail in ([], [7, 7, 7, 7, 7]):
        chain.extend(tail)
        want = Chain(ids[:known] + tail, 4)
        assert (chain.known, chain.ids.tolist()) == (want.known, want.ids.tolist())
        assert (chain.keys(), chain.contents) == (want.keys(), want.contents)


def test_slots_taken_back_are_poisoned_unless_others_read_them() -> None:
    kv = PagedKV(BlockManager(4, 4), layers=1, num_kv_heads=1, head_dim=1)
    kv.manager.allocate("a", 0)
    rows = np.arange(6, dtype=np.float32).reshape(1, 6, 1, 1)
    kv.append("a", rows, rows)
    kv.manager.fork("a", "b")
    kv.manager.truncate("b", 5)
    assert kv.gather("a")[0].ravel().tolist() == [0, 1, 2, 3, 4, 5]
    kv.manager.free("b")
    kv.manager.truncate("a", 5)
    assert np.isnan(kv.k[0, 1, 1:]).all()
    assert np.isnan(kv.v[0, 1, 1:]).all()
    assert kv.gather("a")[0].ravel().tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("settings", [{}, {"prefix_cache": True}, {"tables": 2}], ids=["plain", "prefix", "layered"])
def test_a_failed_forward_leaves_everything_as_it_was(settings) -> None:
    decoder = model.random_decoder(seed=11, dim=16, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=4, vocab=23)
    ids = [3, 1, 4, 1, 5, 9, 2]
    cache = model.PagedCache.of(decoder.config, num_blocks=16, block_size=3, **settings)
    manager, kv, calls = cache.manager, cache.kv, 0

    def fails_in_the_second_layer(q, k, v, **mask):
        nonlocal calls
        calls += 1
        if calls == 6:  # two calls each for the prompt and its repetition come before
            raise RuntimeError("out of memory, say")
        return attention.standard(q, k, v, **mask)

    run = decoder.start(attention=fails_in_the_second_layer, cache=cache)
    for name in (100, 200):
        hit = manager.allocate(name, ids if manager.prefix else 0, **({"chunk": 0} if manager.prefix else {}))
        assert hit == (6 if name == 200 and manager.prefix else 0)
        run.forward({name: ids[hit:]})
        manager.commit(name)

    def picture() -> tuple:
        tables = [manager.table(s, t).tolist() for s in (100, 200) for t in range(manager.tables)]
        cached = manager.prefix.entries if manager.prefix else None
        return tables, manager.stats(), list(manager.pool.refs), cached, kv.k.tobytes(), kv.v.tobytes()

    before = picture()
    with pytest.raises(RuntimeError, match="out of memory"):
        run.forward({100: [7, 7, 7, 7], 200: [8]})
    assert picture() == before
    manager.check_invariants()
    want = decoder.logits([*ids, 8], attention="oracle")[-1]
    assert np.abs(run.step({200: 8})[200] - want).max() <= 1e-5 * np.abs(want).max()
