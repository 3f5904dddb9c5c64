"""Random request streams and arenas: everything is finished, nothing is lost, and the books agree after every step."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from refsim.kvcache import BlockManager, blocks_for
from refsim.kvcache.contiguous import Arena
from refsim.serving import PagedMemory, Request, Scheduler

streams = st.lists(
    st.tuples(st.floats(0, 3), st.integers(1, 30), st.integers(1, 12), st.integers(0, 2)), min_size=1, max_size=12
)


def requests_of(stream: list) -> list[Request]:
    at, requests = 0.0, []
    for i, (gap, prompt, output, family) in enumerate(stream):
        at += gap
        # Requests of one family begin alike; the ids are positions of the family's own numbers.
        hashes = tuple(range(1000 * family, 1000 * family + prompt)) if family else ()
        requests.append(Request(i, at, prompt, output, hashes, 1 if hashes else 0, prompt if hashes else 0))
    return requests


@settings(max_examples=120)
@given(
    stream=streams,
    blocks=st.integers(1, 30),
    size=st.integers(1, 5),
    budget=st.integers(1, 40),
    seats=st.integers(1, 6),
    cache=st.booleans(),
    whole=st.booleans(),
)
def test_every_request_that_fits_is_served_in_order(stream, blocks, size, budget, seats, cache, whole) -> None:
    manager = BlockManager(blocks, size, prefix_cache=cache)
    s = Scheduler(PagedMemory(manager, whole_prompt_must_fit=whole), max_tokens=budget, max_seqs=seats)
    requests = requests_of(stream)
    accepted = [r for r in requests if s.add(r)]
    assert {r.index for r in accepted} == {r.index for r in requests if blocks_for(r.total_len - 1, size) <= blocks}
    admitted, finished, outputs = [], [], {r.index: 0 for r in accepted}
    for now in range(20000):
        step = s.schedule(now)
        if not step.scheduled:
            assert not s.waiting or s.preemptions, "somebody waits, and nothing runs"
            if not s.waiting:
                break
            continue
        assert step.tokens <= budget
        assert len(s.running) <= seats
        assert all(count >= 1 for _, count in step.scheduled), "a hit left nothing to compute"
        admitted += [x.request.index for x in step.admitted if not x.preemptions]
        for state, count in step.scheduled:
            assert manager.length(state.request.index) == state.computed + count
            outputs[state.request.index] += state.computed + count == state.tokens
        finished += [x.request.index for x in s.complete(step, now)]
        manager.check_invariants()
    assert sorted(finished) == [r.index for r in accepted]
    assert admitted == [r.index for r in accepted]
    assert outputs == {r.index: r.output_len for r in accepted}
    assert manager.available == blocks


@settings(max_examples=100)
@given(
    size=st.integers(1, 40),
    fit=st.sampled_from(["first", "best"]),
    actions=st.lists(st.tuples(st.booleans(), st.integers(1, 12)), max_size=60),
)
def test_the_arena_equals_a_row_of_cells(size, fit, actions) -> None:
    arena, cells, key = Arena(size, fit), np.full(size, -1), 0
    for place, number in actions:
        if place:
            # Runs of free cells, by scanning them.
            holes, run = [], 0
            for i in range(size + 1):
                free = i < size and cells[i] == -1
                if free:
                    run += 1
                elif run:
                    holes.append((i - run, run))
                    run = 0
            fitting = [h for h in holes if h[1] >= number]
            want = None
            if fitting:
                want = fitting[0][0] if fit == "first" else min(fitting, key=lambda h: (h[1], h[0]))[0]
                cells[want : want + number] = key
            assert arena.place(key, number) == want
            key += 1
        elif arena.held:
            gone = sorted(arena.held)[number % len(arena.held)]
            arena.release(gone)
            cells[cells == gone] = -1
        arena.check_invariants()
        assert arena.free == (cells == -1).sum()
