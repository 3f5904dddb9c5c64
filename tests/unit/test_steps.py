"""Steps: walking an algorithm is running it, and every byte belongs to one step."""

import inspect
import pickle

import numpy as np
import pytest

from refsim import attention
from refsim.machine import Ledger, Machine, algorithm


@algorithm
def double(watch, numbers, *, machine=None, fail_at=None):
    """Double numbers one at a time through HBM."""
    machine = machine or Machine()
    x, y = machine.hbm("x", np.asarray(numbers, float)), machine.empty("y", (len(numbers),), "float64")
    with machine.kernel("double") as kernel:
        for i in range(len(numbers)):
            if i == fail_at:
                raise ArithmeticError("told to")
            with kernel.programs() as prog:
                tile = prog.load(x, np.s_[i : i + 1], into=prog.buffer("x", (1,), "float64"))
                tile *= 2
                prog.store(tile, y, np.s_[i : i + 1])
                yield watch.step("double", machine, "double", {"i": i}, x=tile, i=i)
    return machine.to_host(y)


def test_a_call_runs_to_the_end():
    assert double([1.0, 2.0]).tolist() == [2.0, 4.0]


def test_a_walk_yields_each_step_and_then_has_the_result():
    walk = double.steps([1.0, 2.0, 3.0])
    with pytest.raises(RuntimeError, match="the walk has not ended yet"):
        _ = walk.result
    steps = list(walk)
    assert [dict(step.index) for step in steps] == [{"i": 0}, {"i": 1}, {"i": 2}]
    assert walk.result.tolist() == [2.0, 4.0, 6.0]
    assert list(walk) == [], "a walk that has ended stays ended"
    assert walk.result.tolist() == [2.0, 4.0, 6.0]


def test_a_step_says_what_where_and_what_it_cost():
    first, second = double.steps([1.0, 5.0])
    assert (first.name, first.kernel) == ("double", "double")
    assert first.delta.hbm_nbytes == second.delta.hbm_nbytes == 16
    assert first.delta.launches == 1
    assert second.delta.launches == 0
    assert second.delta.flops == 1
    name, line = first.line.split(":")
    assert name == "test_steps.py"
    with open(__file__) as file:
        assert "watch.step(" in file.read().splitlines()[int(line) - 1]
    assert str(second) == f"double: double (i 1)  {second.line}  HBM 16 B"


def test_state_is_copied_and_before_is_what_the_last_step_left():
    first, second = double.steps([1.0, 5.0])
    assert dict(first.before) == {}
    assert first.after["x"].tolist() == [2.0]
    assert second.before["x"].tolist() == [2.0]
    assert second.after["x"].tolist() == [10.0]
    assert first.after["i"] == 0


def test_walks_may_take_turns_on_one_machine():
    x = np.random.default_rng(1).standard_normal((20, 2, 4), dtype=np.float32)
    alone = list(attention.flash.steps(x, x, x, tile=(8, 8)))
    machine = Machine()
    walks = [attention.flash.steps(x, x, x, tile=(8, 8), machine=machine) for _ in range(2)]
    for wanted, *steps in zip(alone, *walks, strict=True):
        assert [step.delta for step in steps] == [wanted.delta] * 2
    assert not list(walks[0]) + list(walks[1])
    assert machine.ledger() == walks[0].result.ledger + walks[1].result.ledger


@algorithm
def running_sum(watch, numbers):
    machine = Machine()
    x = machine.hbm("x", np.asarray(numbers, float))
    with machine.kernel("sum") as kernel, kernel.programs() as prog:
        total, buffer = prog.buffer("total", (1,), "float64").full(0), prog.buffer("x", (1,), "float64")
        for i in range(len(numbers)):
            total += prog.load(x, np.s_[i : i + 1], into=buffer)
            yield watch.step("add", machine, "sum", {"i": i}, total=total)


def test_a_step_keeps_its_state_when_the_tile_moves_on():
    steps = list(running_sum.steps([1.0, 2.0, 3.0]))
    assert [step.after["total"].item() for step in steps] == [1, 3, 6]
    assert [step.before["total"].item() for step in steps[1:]] == [1, 3]


def test_a_call_makes_no_records(monkeypatch):
    monkeypatch.setattr(Machine, "ledger", lambda self: pytest.fail("a call took stock of the machine for a step"))
    assert running_sum([1.0, 2.0]) is None


def test_a_record_cannot_be_changed():
    (step,) = double.steps([1.0])
    with pytest.raises(TypeError):
        step.after["x"] = 0
    with pytest.raises(TypeError):
        step.index["i"] = 7
    with pytest.raises(AttributeError):
        step.name = "other"


def test_steps_count_only_what_their_own_run_did():
    """On a machine that has run before, the first step doesn't get the bill for it."""
    machine = Machine()
    double([1.0, 2.0, 3.0], machine=machine)
    walk = double.steps([1.0], machine=machine)
    double([4.0], machine=machine)  # the walk hasn't begun
    (step,) = walk
    assert step.delta.hbm_nbytes == 16
    assert step.delta.launches == 1


def test_an_error_on_the_way_leaves_no_result():
    walk = double.steps([1.0, 2.0], fail_at=1)
    next(walk)
    with pytest.raises(ArithmeticError):
        next(walk)
    assert list(walk) == []
    with pytest.raises(RuntimeError, match="the walk ended with an error and has no result"):
        _ = walk.result


def test_its_signature_is_what_a_caller_gives():
    assert str(inspect.signature(double)) == "(numbers, *, machine=None, fail_at=None)"
    assert next(iter(inspect.signature(attention.flash).parameters)) == "q"


@pytest.mark.parametrize("name", ["standard", "flash", "paged_gather", "paged", "split_kv"])
def test_it_may_be_sent_to_another_process(name):
    assert pickle.loads(pickle.dumps(getattr(attention, name))) is getattr(attention, name)
    assert repr(getattr(attention, name)).startswith("<algorithm refsim.attention.")


def test_it_keeps_the_name_and_the_text_of_its_function():
    assert double.__name__ == "double"
    assert double.__doc__ == "Double numbers one at a time through HBM."


rng = np.random.default_rng(0)
Q, K, V = (rng.standard_normal(shape, dtype=np.float32) for shape in ((5, 4, 8), (37, 2, 8), (37, 2, 6)))
POOL_K, POOL_V = (x.reshape(-1, 1, 2, x.shape[-1]) for x in (K, V))
PAGED = (Q[:1], POOL_K, POOL_V, [np.arange(37).tolist()], [37])
RAGGED = {"cu_seqlens_q": [0, 1, 5], "cu_seqlens_k": [0, 30, 37]}
RUNS = {
    "standard": (attention.standard, (Q, K, V), {"tile": (2, 16)}),
    "flash": (attention.flash, (Q, K, V), {"tile": (2, 16)}),
    "standard, ragged": (attention.standard, (Q, K, V), {"tile": (2, 16), **RAGGED}),
    "flash, ragged": (attention.flash, (Q, K, V), {"tile": (2, 16), **RAGGED}),
    "split_kv, ragged": (attention.split_kv, (Q, K, V), {"num_splits": 3, **RAGGED}),
    "paged_gather": (attention.paged_gather, PAGED, {"tile": (4, 16)}),
    "paged": (attention.paged, PAGED, {"tile": (4, 16)}),
    "split_kv": (attention.split_kv, PAGED, {"num_splits": 3}),
    "split_kv, m and l": (attention.split_kv, PAGED, {"num_splits": 3, "handover": "state"}),
}


@pytest.mark.parametrize("name", RUNS)
def test_the_steps_of_an_algorithm_add_up_to_its_ledger_and_change_nothing(name):
    algorithm, arrays, options = RUNS[name]
    machine = Machine()
    algorithm(*arrays, machine=machine, **options)
    walk = algorithm.steps(*arrays, machine=machine, **options)
    steps = list(walk)
    called = algorithm(*arrays, **options)
    assert len(steps) > 2
    total = sum((step.delta for step in steps), Ledger())
    assert total == walk.result.ledger == called.ledger
    np.testing.assert_array_equal(walk.result.out, called.out)
    np.testing.assert_array_equal(walk.result.lse, called.lse)
