"""Runs side by side: all are done, BLAS is held to one thread and let go, errors come out in order."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from refsim.machine import Machine, Watch, cores, side_by_side, threads


def blas_threads() -> set[int]:
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


needs_blas = pytest.mark.skipif(not blas_threads(), reason="threadpoolctl knows no BLAS library here")


def noting(done: list[int], number: int, steps: int = 3) -> Iterator[None]:
    for _ in range(steps):
        yield
    done.append(number)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_every_run_is_exhausted(workers: int) -> None:
    done: list[int] = []
    assert len(list(side_by_side([noting(done, i) for i in range(10)], workers))) == (30 if workers == 1 else 0)
    assert sorted(done) == list(range(10))


def test_one_thread_keeps_the_order_of_steps() -> None:
    def run(number: int) -> Iterator[int]:
        yield from (number, number + 1)

    assert list(side_by_side([run(0), run(10)], 1)) == [0, 1, 10, 11]


def test_runs_really_are_side_by_side() -> None:
    meet = threading.Barrier(2, timeout=20)

    def run() -> Iterator[None]:
        meet.wait()  # would break if the runs came one after another
        yield

    list(side_by_side([run(), run()], 2))


@needs_blas
@pytest.mark.parametrize("fails", [False, True])
def test_blas_is_held_to_one_thread_and_let_go(fails: bool) -> None:
    seen: list[set[int]] = []

    def run() -> Iterator[None]:
        seen.append(blas_threads())
        yield
        if fails:
            raise RuntimeError("on purpose")

    with threadpool_limits(limits=2, user_api="blas"):
        try:
            list(side_by_side([run(), run()], 2))
        except RuntimeError:
            assert fails
        assert blas_threads() == {2}
        list(side_by_side([noting([], 0), noting([], 1)], 2))  # nothing is left locked
    assert seen
    assert all(threads_then == {1} for threads_then in seen)


def test_the_first_error_in_order_is_raised_and_the_rest_stops() -> None:
    done: list[int] = []
    others_began = threading.Event()

    def first() -> Iterator[None]:
        yield
        assert others_began.wait(20)
        raise KeyError("first")

    def second() -> Iterator[None]:
        yield
        raise ValueError("second")

    def endless() -> Iterator[None]:
        try:
            until = time.monotonic() + 20
            while time.monotonic() < until:
                yield
                others_began.set()
            done.append(0)
        finally:
            done.append(-1)  # closed, as a program that ends gives its memory back

    with pytest.raises(KeyError, match="first"):
        list(side_by_side([first(), second(), *(endless() for _ in range(5))], 2))
    assert set(done) == {-1}


@needs_blas
def test_a_second_run_at_the_same_time_stays_on_its_thread() -> None:
    inner: list[int] = []

    def outer() -> Iterator[None]:
        # BLAS is held already; setting and restoring its limit twice would leave it at one thread.
        inner.append(len(list(side_by_side([noting([], 0), noting([], 1)], 2))))
        yield

    with threadpool_limits(limits=2, user_api="blas"):
        list(side_by_side([outer(), outer()], 2))
        assert blas_threads() == {2}
    assert inner == [6, 6]


def test_numpys_error_state_goes_along() -> None:
    def run() -> Iterator[None]:
        yield
        np.array([1.0]) / np.array([0.0])

    with np.errstate(divide="raise"), pytest.raises(FloatingPointError):
        list(side_by_side([run(), run()], 2))


@needs_blas
def test_threads_are_those_of_the_blas_library() -> None:
    silent, watching = Watch(silent=True), Watch(silent=False)
    for limit in (1, 2):
        with threadpool_limits(limits=limit, user_api="blas"):
            assert threads(silent) == limit
            assert threads(watching) == 1


@needs_blas
def test_more_threads_than_pay_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "MOST_THREADS", 1)
    with threadpool_limits(limits=2, user_api="blas"):
        assert threads(Watch(silent=True)) == 1


def test_programs_on_two_threads_count_apart() -> None:
    machine = Machine()
    x = machine.hbm("x", np.arange(16.0))
    meet = threading.Barrier(2, timeout=20)

    def run(size: int) -> Iterator[None]:
        with kernel.programs() as prog:
            meet.wait()
            buffer = prog.buffer("x", (size,), "float64")
            for _ in range(1000):
                prog.load(x, slice(0, size), into=buffer)
                yield
            meet.wait()
            # Both are in flight, and the ledger has what both did.
            assert machine.ledger().total(tensor="x") == 1000 * 8 * (3 + 5)
            meet.wait()

    with machine.kernel("copy") as kernel:
        list(side_by_side([run(3), run(5)], 2))
    work = machine.ledger().work["copy"]
    assert (work.launches, work.programs, work.sram_peak_nbytes) == (1, 2, 5 * 8)
    assert machine.ledger().total(tensor="x") == 1000 * 8 * (3 + 5)
