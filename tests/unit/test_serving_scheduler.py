"""The scheduler's decisions, step by step, in cases small enough to work out by hand."""

import numpy as np
import pytest

from refsim.kvcache import BlockManager
from refsim.serving import PagedMemory, Request, Scheduler, replay


class Tick:
    """Every step takes a second, so that times count steps."""

    def seconds(self, step) -> float:
        return 1.0


def scheduler(blocks: int, size: int = 4, **more) -> Scheduler:
    must_fit = more.pop("whole_prompt_must_fit", True)
    cache = more.pop("prefix_cache", False)
    memory = PagedMemory(BlockManager(blocks, size, prefix_cache=cache), whole_prompt_must_fit=must_fit)
    return Scheduler(memory, **more)


def queue(s: Scheduler, *lengths: tuple[int, int]) -> None:
    for i, (prompt, output) in enumerate(lengths):
        assert s.add(Request(i, 0.0, prompt, output))


def plan(step) -> list[tuple[int, int]]:
    return [(state.request.index, count) for state, count in step.scheduled]


def test_prompts_come_in_chunks_under_the_budget_and_decodes_go_first() -> None:
    s = scheduler(100, max_tokens=10)
    queue(s, (6, 3), (12, 2))
    plans = []
    for now in range(5):
        step = s.schedule(now)
        plans.append(plan(step))
        s.complete(step, now + 1)
    # 6 + 4 of the second's 12; then a decode and the other 8; then two decodes; the second needs no third.
    assert plans == [[(0, 6), (1, 4)], [(0, 1), (1, 8)], [(0, 1), (1, 1)], [], []]
    assert s.memory.manager.stats().used == 0


def test_the_work_of_a_step() -> None:
    s = scheduler(100, max_tokens=10)
    queue(s, (6, 3), (12, 2))
    step = s.schedule(0)
    assert (step.tokens, step.decodes, step.chunks, step.sampled) == (10, 0, [(6, 0), (4, 0)], 1)
    s.complete(step, 1)
    step = s.schedule(1)
    assert (step.tokens, step.decodes, step.decode_context, step.chunks, step.sampled) == (9, 1, 7, [(8, 4)], 2)


def test_first_come_first_served_even_if_the_second_would_fit() -> None:
    s = scheduler(4)
    queue(s, (8, 2), (12, 1), (2, 1))
    assert plan(s.schedule(0)) == [(0, 8)], "the third may not pass the second"


def test_seats_are_limited() -> None:
    s = scheduler(100, max_seqs=2)
    queue(s, (2, 2), (2, 2), (2, 2))
    assert plan(s.schedule(0)) == [(0, 2), (1, 2)]


def test_the_youngest_is_preempted_and_starts_again() -> None:
    s = scheduler(4)
    queue(s, (7, 5), (7, 5))
    for now in range(2):  # prefill; the decode that fills both second blocks
        s.complete(s.schedule(now), now + 1)
    step = s.schedule(2)  # each needs a third block, and there are four
    assert plan(step) == [(0, 1)]
    assert ([x.request.index for x in s.waiting], s.preemptions) == ([1], 1)
    victim = s.waiting[0]
    assert (victim.computed, victim.tokens, victim.preemptions) == (0, 9, 1)
    s.complete(step, 3)
    while s.running:
        step = s.schedule(4)
        if step.admitted:
            assert plan(step) == [(1, 9)], "prompt and output so far are computed again, as one prefill"
            break
        s.complete(step, 5)


def test_nobody_is_admitted_in_a_step_that_preempts() -> None:
    s = scheduler(4)
    queue(s, (7, 5), (7, 5), (1, 1))
    for now in range(2):
        s.complete(s.schedule(now), now + 1)
    step = s.schedule(2)
    assert (plan(step), step.admitted) == ([(0, 1)], [])
    assert [x.request.index for x in s.waiting] == [1, 2], "the preempted one is next"


def test_not_even_a_chunk_that_would_fit() -> None:
    s = scheduler(4, max_tokens=5, whole_prompt_must_fit=False)
    queue(s, (7, 5), (7, 5))
    for now in range(9):
        step = s.schedule(now)
        if s.preemptions:
            break
        s.complete(step, now + 1)
    assert (s.preemptions, plan(step), step.admitted) == (1, [(0, 1)], [])
    assert s.memory.manager.available == 1


def test_a_request_can_preempt_itself_only() -> None:
    s = scheduler(2)
    queue(s, (4, 4))
    s.memory.manager.allocate("other", 4)
    s.complete(s.schedule(0), 1)
    assert plan(s.schedule(1)) == []
    assert (s.preemptions, len(s.waiting), len(s.running)) == (1, 1, 0)


def test_a_whole_prompt_must_fit_or_not() -> None:
    for must_fit, first in ((True, [(0, 4)]), (False, [(0, 4), (1, 2)])):
        s = scheduler(4, max_tokens=6, whole_prompt_must_fit=must_fit)
        queue(s, (4, 8), (13, 2))
        assert plan(s.schedule(0)) == first


def test_a_request_larger_than_the_pool_is_refused_and_the_others_go_on() -> None:
    requests = [Request(0, 0.0, 4, 2), Request(1, 0.5, 30, 3), Request(2, 1.0, 4, 2)]
    result = replay(requests, scheduler(8), Tick())
    assert [r.index for r in result.refused] == []
    result = replay(requests, scheduler(7), Tick())
    assert [r.index for r in result.refused] == [1]
    assert sorted(o.request.index for o in result.outcomes) == [0, 2]


@pytest.mark.parametrize(("blocks", "size"), [(1, 8), (8, 1), (1, 1)])
def test_a_pool_of_one_block_and_blocks_of_one_token(blocks, size) -> None:
    requests = [Request(i, 0.0, 4 if blocks * size > 1 else 1, 5 if blocks * size > 1 else 1) for i in range(3)]
    s = scheduler(blocks, size)
    result = replay(requests, s, Tick())
    assert len(result.outcomes) == 3
    assert s.memory.manager.stats().free == blocks


def test_times_are_those_of_the_steps() -> None:
    result = replay([Request(0, 0.5, 3, 3), Request(1, 9.25, 3, 1)], scheduler(8), Tick())
    a, b = result.outcomes
    assert (a.admitted_s, a.first_token_s, a.finished_s) == (0.5, 1.5, 3.5)
    assert (a.ttft_s, a.tpot_s) == (1.0, 1.0)
    assert (b.first_token_s, b.finished_s, b.tpot_s) == (10.25, 10.25, 0.0)
    assert result.makespan_s == 10.25
    assert (result.mean_ttft_s, result.mean_tpot_s) == (1.0, 1.0)
    assert result.mean_batch == 1.0


def test_a_request_that_would_wait_for_ever_is_named() -> None:
    s = scheduler(6, 2, prefix_cache=True)
    m = s.memory.manager
    m.allocate("system", range(6))
    m.commit("system")
    pinned = m.pin(range(6))
    m.free("system")
    with pytest.raises(ValueError, match=r"request 4 waits for ever.*pinned"):
        replay([Request(3, 0.0, 2, 2), Request(4, 0.0, 9, 2)], s, Tick())
    m.unpin(pinned)
    assert len(replay([], s, Tick()).outcomes) == 1  # what waited is served now


def test_nothing_to_replay() -> None:
    result = replay([], scheduler(4), Tick())
    assert (result.makespan_s, result.mean_ttft_s, result.hit_rate, result.mean_batch) == (0, 0, 0, 0)
    assert result.series.at("used", np.array([0.0, 1.0])).tolist() == [0, 0]
    assert set(result.mean_fill().values()) == {0.0}


def test_series_are_zero_between_steps() -> None:
    result = replay([Request(0, 0.5, 3, 3), Request(1, 9.25, 3, 1)], scheduler(8), Tick())
    assert result.series.at("running", [0.2, 1.0, 3.5, 5.0, 10.0, 11.0]).tolist() == [0, 1, 1, 0, 1, 0]
    assert result.series.at("used", [1.0, 5.0]).tolist() == [1 / 8, 0]


def test_a_hit_saves_prefill_and_never_all_of_it() -> None:
    shared = {"hash_ids": (0, 1), "hash_block": 4, "hashed_len": 8}
    requests = [Request(0, 0.0, 8, 1, **shared), Request(1, 5.0, 8, 1, **shared)]
    result = replay(requests, scheduler(8, prefix_cache=True), Tick())
    assert [o.cached_tokens for o in result.outcomes] == [0, 4]
    assert result.hit_rate == 4 / 16
    assert result.series.tokens.tolist() == [8, 4]


def test_what_a_chunk_computed_is_hit_in_the_next_step() -> None:
    shared = {"hash_ids": (0, 1), "hash_block": 4, "hashed_len": 6}
    requests = [Request(0, 0.0, 6, 3, **shared), Request(1, 0.5, 6, 3, **shared)]
    result = replay(requests, scheduler(8, prefix_cache=True), Tick())
    assert [o.cached_tokens for o in result.outcomes] == [0, 4]


def test_a_preempted_request_finds_its_own_blocks_again() -> None:
    def named(i: int) -> Request:
        return Request(i, 0.0, 7, 5, tuple(range(10 * i, 10 * i + 3)), 4, 12)

    s = scheduler(5, prefix_cache=True)
    result = replay([named(0), named(1)], s, Tick())
    assert s.preemptions >= 1
    plain = replay([named(0), named(1)], scheduler(5), Tick())
    assert result.series.tokens.sum() < plain.series.tokens.sum()
    assert [o.request.index for o in result.outcomes] == [0, 1]
    assert result.admission_order == [0, 1]


@pytest.mark.parametrize("bad", [{"max_tokens": 0}, {"max_seqs": 0}, {"max_tokens": 2.5}, {"max_seqs": "3"}])
def test_a_scheduler_that_cannot_work_is_refused(bad) -> None:
    with pytest.raises(ValueError, match="must be a whole number from 1"):
        scheduler(4, **bad)
