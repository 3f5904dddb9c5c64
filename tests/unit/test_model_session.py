"""Runs: batches, chunks, forks, closing, counting, and failing without a trace."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refsim import attention, model
from refsim.kvcache import OutOfBlocks
from refsim.model import attend

DECODER = model.random_decoder(seed=11, dim=16, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=4, vocab=23)
A, B, C = [3, 1, 4, 1, 5, 9, 2], [2, 7, 1, 8], [6]


def alone(ids: list[int]) -> np.ndarray:
    return DECODER.logits(ids, attention="oracle")


def assert_close(found, expected):
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()


def caches():
    config = DECODER.config
    return {
        "contiguous": lambda: model.ContiguousCache(config.num_layers, config.num_kv_heads, config.head_dim),
        "paged": lambda: model.PagedCache.of(config, num_blocks=16, block_size=3),
        "paged, a table a layer": lambda: model.PagedCache.of(config, num_blocks=32, block_size=3, tables=2),
    }


@pytest.fixture(params=caches())
def cache(request):
    return caches()[request.param]()


@pytest.mark.parametrize("name", attend.NAMES)
def test_a_ragged_batch_gives_what_each_sequence_gives_alone(name, cache):
    if name in ("paged", "paged_gather") and isinstance(cache, model.ContiguousCache):
        with pytest.raises(ValueError, match=f"'{name}' walks a block table"):
            DECODER.start(attention=name, cache=cache)
        return
    run = DECODER.start(attention=name, cache=cache)
    a, b, c = run.open(), run.open(), run.open()
    first = run.forward({a: A[:5], b: B[:1]})
    second = run.forward({b: B[1:3], c: C, a: A[5:6]})  # prefill and decode in one batch, in another order
    third = run.step({a: A[6], b: B[3]})
    assert_close(np.concatenate([first[a], second[a], third[a][None]]), alone(A))
    assert_close(np.concatenate([first[b], second[b], third[b][None]]), alone(B))
    assert_close(second[c], alone(C))
    assert [run.length(seq) for seq in (a, b, c)] == [7, 4, 1]


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 100])
def test_a_prompt_in_chunks_gives_the_same_logits(chunk, cache):
    run = DECODER.start(attention="oracle", cache=cache)
    assert_close(run.prefill(run.open(), A, chunk=chunk), alone(A))


def test_a_fork_shares_its_past_and_nothing_after_it(cache):
    run = DECODER.start(attention="oracle", cache=cache)
    a = run.open()
    run.prefill(a, A[:4])
    b = run.fork(a)
    both = run.step({a: A[4], b: B[0]})
    assert_close(both[a], alone(A[:5])[-1])
    assert_close(both[b], alone([*A[:4], B[0]])[-1])
    run.close(a)
    assert_close(run.step({b: B[1]})[b], alone([*A[:4], B[0], B[1]])[-1])


def test_a_fork_of_blocks_copies_the_shared_tail_alone():
    cache = model.PagedCache.of(DECODER.config, num_blocks=8, block_size=3, record=True)
    run = DECODER.start(attention="paged", cache=cache)
    a = run.open()
    run.prefill(a, A[:4])  # one full block and one with a single token
    b = run.fork(a)
    run.step({b: 0})
    copies = [event for event in cache.manager.events if event.kind == "copy"]
    assert [(event.seq_id, event.blocks) for event in copies] == [(b, (1,))]
    assert cache.kv.table(a).tolist() == [0, 1]
    assert cache.kv.table(b).tolist() == [0, 2]
    np.testing.assert_array_equal(cache.kv.k[:, 2, 0], cache.kv.k[:, 1, 0])


def test_closing_gives_every_block_back():
    cache = model.PagedCache.of(DECODER.config, num_blocks=6, block_size=3)
    run = DECODER.start(attention="paged", cache=cache)
    a = run.open()
    run.prefill(a, A)
    b = run.fork(a)
    run.close(a)
    run.close(b)
    assert cache.manager.stats().free == 6


@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_a_block_is_taken_when_the_last_one_is_full_and_not_before(block_size):
    cache = model.PagedCache.of(DECODER.config, num_blocks=16, block_size=block_size)
    run = DECODER.start(attention="paged", cache=cache)
    a = run.open()
    run.prefill(a, A)
    for length in range(len(A), 16):
        assert cache.manager.stats().used == -(-length // block_size)
        run.step({a: 0})


def test_a_closed_sequence_is_unknown(cache):
    run = DECODER.start(attention="oracle", cache=cache)
    a = run.open()
    run.close(a)
    for use in (run.length, run.close, run.fork, lambda seq: run.step({seq: 1})):
        with pytest.raises(KeyError, match=f"sequence {a} is unknown"):
            use(a)


def test_the_ledger_is_the_sum_over_layers_and_calls():
    """A lone token's attention is counted by itself; a prefill of three is counted with the same shapes by hand."""
    run = DECODER.start(attention="flash", tile=(2, 2))
    seq = run.open()
    assert run.ledger.hbm_nbytes == 0
    run.prefill(seq, A[:3])
    run.step({seq: A[3]})
    q, kv = np.zeros((3, 4, 4), np.float32), np.zeros((4, 2, 4), np.float32)
    prefill = attention.flash(q, kv[:3], kv[:3], tile=(2, 2), causal=True).ledger
    step = attention.flash(q[:1], kv, kv, tile=(2, 2), causal=True).ledger
    assert run.ledger == prefill + prefill + step + step  # two layers each
    assert run.ledger.launches == 4


def test_stage_a_moves_more_than_stage_b_for_the_same_text():
    moved = {}
    for name in ("paged_gather", "paged"):
        run = DECODER.start(attention=name, block_size=3)
        moved[name] = (list(run.stream(run.open(), A, 5)), run.ledger.hbm_nbytes)
    assert moved["paged"][0] == moved["paged_gather"][0]
    assert moved["paged"][1] < moved["paged_gather"][1]


def test_running_out_of_blocks_leaves_every_sequence_as_it_was():
    cache = model.PagedCache.of(DECODER.config, num_blocks=3, block_size=3)
    run = DECODER.start(attention="paged", cache=cache)
    a, b = run.open(), run.open()
    run.prefill(a, A[:3])
    run.prefill(b, B[:1])
    tables, stats = [cache.kv.table(s).tolist() for s in (a, b)], cache.manager.stats()
    with pytest.raises(OutOfBlocks):
        run.forward({a: [A[3]], b: [1] * 3})  # a gets the last block, b would need one more
    assert [cache.kv.table(s).tolist() for s in (a, b)] == tables
    assert cache.manager.stats() == stats
    cache.manager.check_invariants()
    assert_close(run.step({a: A[3]})[a], alone(A[:4])[-1])


def test_a_failure_inside_attention_leaves_the_cache_as_it_was(cache):
    calls = 0

    def fails_in_the_second_layer(q, k, v, **mask):
        nonlocal calls
        calls += 1
        if calls == 4:
            raise RuntimeError("out of memory, say")
        return attention.standard(q, k, v, **mask)

    run = DECODER.start(attention=fails_in_the_second_layer, cache=cache)
    a, fresh = run.open(), run.open()
    run.prefill(a, A[:4])
    with pytest.raises(RuntimeError, match="out of memory"):
        run.forward({a: A[4:]})
    assert (run.length(a), run.length(fresh)) == (4, 0)
    b = run.fork(a)
    both = run.forward({a: A[4:], b: B, fresh: C})
    assert_close(both[a], alone(A)[4:])
    assert_close(both[b], alone(A[:4] + B)[4:])
    assert_close(both[fresh], alone(C))
    if isinstance(cache, model.PagedCache):
        cache.manager.check_invariants()


def test_bad_ids_in_one_sequence_stop_the_whole_batch_before_it_starts(cache):
    run = DECODER.start(attention="oracle", cache=cache)
    a, b = run.open(), run.open()
    for batch in ({a: [1], b: [23]}, {a: [1], b: []}, {a: [1], 99: [1]}):
        with pytest.raises((ValueError, KeyError)):
            run.forward(batch)
        assert (run.length(a), run.length(b)) == (0, 0)
    with pytest.raises(ValueError, match="at least one sequence"):
        run.forward({})


def test_the_run_s_own_limit_is_kept():
    run = DECODER.start(attention="oracle", length=5)
    seq = run.open()
    run.prefill(seq, A[:4])
    run.step({seq: 1})
    with pytest.raises(ValueError, match="has 5 tokens; 1 more pass this run's limit of 5"):
        run.step({seq: 1})
    with pytest.raises(ValueError, match="limit of 5"):
        run.prefill(run.open(), A)
    with pytest.raises(ValueError, match="context of 512"):
        DECODER.start(attention="oracle", length=513)


def test_dynamic_scaling_is_fixed_for_a_run_by_its_length():
    from refsim.model.rope_scaling import DynamicNtk, NtkAware

    sizes = {"dim": 16, "num_layers": 1, "num_heads": 2, "num_kv_heads": 1, "head_dim": 8, "vocab": 23}
    dynamic = model.random_decoder(seed=2, rope_scaling=DynamicNtk(4.0, 4), **sizes)
    # Seven tokens of four: s = 4 * 7/4 - 3 = 4.
    still = model.random_decoder(seed=2, rope_scaling=NtkAware(4.0), **sizes)
    plain = model.random_decoder(seed=2, **sizes)
    assert_close(dynamic.logits(A, attention="oracle"), still.logits(A, attention="oracle"))
    assert_close(dynamic.logits(B, attention="oracle"), plain.logits(B, attention="oracle"))
    assert np.abs(plain.logits(A, attention="oracle") - dynamic.logits(A, attention="oracle")).max() > 1e-3


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["open", "feed", "feed", "feed both", "fork", "close", "fail"]),
        st.integers(0, 9),
        st.lists(st.integers(0, 22), min_size=1, max_size=5),
    ),
    max_size=12,
)


@settings(max_examples=60)
@given(OPERATIONS, st.sampled_from(["contiguous", "paged", "paged, a table a layer"]))
def test_whatever_the_order_of_events_each_sequence_reads_its_own_past(operations, kind):
    run = DECODER.start(attention="oracle", cache=caches()[kind]())
    past: dict[int, list[int]] = {}
    for what, pick, ids in operations:
        seqs = list(past)
        if what == "open" or not seqs:
            past[run.open()] = []
            continue
        seq = seqs[pick % len(seqs)]
        if what == "fork":
            past[run.fork(seq)] = list(past[seq])
        elif what == "close":
            run.close(seq)
            del past[seq]
        elif what == "fail":
            with pytest.raises(ValueError, match=r"\[0, 23\)"):
                run.forward({seq: [*ids, 23]})
        else:
            batch = {seq: ids} if what == "feed" else {s: ids[: 1 + s % len(ids)] for s in seqs}
            try:
                found = run.forward(batch)
            except OutOfBlocks:
                found = {}
            for s, logits in found.items():
                past[s] += batch[s]
                assert_close(logits, alone(past[s])[-len(batch[s]) :])
        assert {s: run.length(s) for s in past} == {s: len(ids) for s, ids in past.items()}
    if isinstance(run.cache, model.PagedCache):
        run.cache.manager.check_invariants()
