"""Contiguous baselines: the arena by hand, reservations by arithmetic, the published count and order."""

import numpy as np
import pytest

from refsim.kvcache import BlockManager
from refsim.kvcache.contiguous import Arena, reserved_slots
from refsim.serving import ContiguousMemory, Linear, PagedMemory, Request, Scheduler, Workload, load, replay

POLICIES = ("max", "pow2", "oracle")


def test_first_fit_and_best_fit_choose_different_holes() -> None:
    for fit, start in (("first", 0), ("best", 8)):
        arena = Arena(16, fit)
        for key, length in (("a", 6), ("b", 2), ("c", 3), ("d", 5)):
            arena.place(key, length)
        arena.release("a")
        arena.release("c")
        assert arena.holes == [(0, 6), (8, 3)]
        assert arena.place("e", 3) == start
        arena.check_invariants()


def test_holes_merge_with_both_neighbours() -> None:
    arena = Arena(9)
    for key in "abc":
        arena.place(key, 3)
    arena.release("a")
    arena.release("c")
    assert (arena.free, arena.largest_hole, arena.place("d", 4)) == (6, 3, None)
    arena.release("b")
    assert arena.holes == [(0, 9)]


def test_wrong_keys_change_nothing() -> None:
    arena = Arena(4)
    arena.place("a", 2)
    with pytest.raises(KeyError, match="released already"):
        arena.release("b")
    with pytest.raises(ValueError, match="holds a stretch already"):
        arena.place("a", 1)
    with pytest.raises(ValueError, match="length must be a whole number from 1, got 0"):
        arena.place("c", 0)
    assert (arena.holes, arena.held) == ([(2, 2)], {"a": (0, 2)})


@pytest.mark.parametrize(
    ("policy", "lengths", "slots"),
    [
        ("max", (10, 20), 2048),
        ("oracle", (10, 20), 30),
        ("pow2", (10, 20), 42),
        ("pow2", (10, 16), 26),
        ("pow2", (3, 1), 4),
    ],
)
def test_reservations(policy, lengths, slots) -> None:
    assert reserved_slots(policy, *lengths, 2048) == slots
    assert reserved_slots(policy, *map(np.uint8, lengths), np.int64(2048)) == slots


def test_a_power_of_two_stays_within_the_maximum() -> None:
    assert reserved_slots("pow2", 1000, 1040, 2048) == 2048


@pytest.mark.parametrize(
    "call",
    [
        lambda: reserved_slots("half", 1, 1, 8),
        lambda: reserved_slots("max", 8, 1, 8),
        lambda: reserved_slots("oracle", -5, 2, 8),
        lambda: reserved_slots("oracle", 2.5, 2, 8),
        lambda: Arena(4.0),
        lambda: Arena(4).place("a", 1.5),
        lambda: Arena(0),
        lambda: Arena(4, "worst"),
        lambda: ContiguousMemory(100, "half"),
    ],
)
def test_what_makes_no_sense_is_refused(call) -> None:
    with pytest.raises(ValueError, match=r"must be (a whole number|one of)|more than"):
        call()


def test_a_request_waits_although_enough_is_free() -> None:
    memory = ContiguousMemory(12, "oracle", max_len=12)
    s = Scheduler(memory)
    for i, total in enumerate((4, 4, 4, 8)):
        s.add(Request(i, 0.0, total - 2, 1 if i in (0, 2) else 2))
    # 0 and 2 take 3 slots, 1 takes 4; when 0 and 2 are gone, 8 are free, in pieces of 3 and 5.
    step = s.schedule(0)
    assert [x.request.index for x in step.admitted] == [0, 1, 2]
    assert memory.refused_with_room == 0, "2 slots are free, and 8 are wanted"
    s.complete(step, 1)
    step = s.schedule(1)
    assert ([x.request.index for x in s.running], memory.arena.free, memory.arena.largest_hole) == ([1], 8, 5)
    assert (memory.refused_with_room, step.admitted) == (1, [])
    fill = memory.fill(s.running, s.waiting[0].request)
    assert (fill.written, fill.reserved, fill.internal, fill.external, fill.free) == (3, 1, 0, 8, 0)


def saturated(count: int = 400) -> list[Request]:
    """ShareGPT's published mean lengths, at a rate that no policy keeps up with."""
    return Workload(rate=50, mean_prompt=161.31, mean_output=337.99, max_len=2048).draw(count, np.random.default_rng(5))


STEP = Linear(0.02, 1e-4, 1e-7)


def test_reserving_the_maximum_runs_seven() -> None:
    # OPT-13B on 40 GB: 15728 slots, 2048 each.
    result = replay(saturated(60), Scheduler(ContiguousMemory(15728, "max")), STEP)
    assert set(result.series.running[result.series.waiting > 0]) == {7.0}


def test_policies_come_in_the_published_order() -> None:
    requests = saturated()
    useful, batch = {}, {}
    for name in POLICIES:
        memory = ContiguousMemory(15728, name)
        result = replay(requests, Scheduler(memory), STEP)
        useful[name], batch[name] = result.mean_fill()["written"], result.mean_batch
    result = replay(requests, Scheduler(PagedMemory(BlockManager(15728 // 16, 16))), STEP)
    useful["paged"], batch["paged"] = result.mean_fill()["written"], result.mean_batch
    order = ["max", "pow2", "oracle", "paged"]
    assert sorted(useful, key=useful.get) == order
    assert sorted(batch, key=batch.get) == order
    assert useful["paged"] > 0.9


@pytest.mark.parametrize(
    "trace", ["azure2023/AzureLLMInferenceTrace_conv.csv", "azure2023/AzureLLMInferenceTrace_code.csv"]
)
def test_paged_waste_on_real_traces(shared_data, trace) -> None:
    requests = load(shared_data / trace, limit=600)
    result = replay(requests, Scheduler(PagedMemory(BlockManager(4000, 16))), STEP)
    held = [(f.reserved + f.internal, f.written + f.reserved + f.internal) for _, f in result.fills if f.written]
    waste, total = np.sum(held, axis=0)
    assert waste / total < 0.04
    assert waste > 0
