"""Shared out over threads and KV heads, every algorithm gives the numbers and the ledger of a run on one thread."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest

from refsim import attention
from refsim.attention import shares
from refsim.attention.inputs import contiguous_call
from refsim.attention.plan import Plan
from refsim.machine import Machine, SramOverflow, Watch, cores, threads
from tests.attention_cases import Problem

VARIANTS: list[dict[str, Any]] = [
    {},
    {"causal": True, "sinks": np.linspace(-1, 1, 12), "alibi_slopes": np.linspace(0.1, 0.5, 12)},
    {"window": (5, 2), "softcap": 3.0},
]


@pytest.fixture
def three_threads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Share out even the smallest call over three threads; how many shares each launch got."""
    runs: list[int] = []

    def noting(generators: Any, workers: int) -> Any:
        runs.append(len(generators) if workers > 1 else 0)
        return cores.side_by_side(generators, workers)

    for name in ("fold", "split_kv"):  # modules, not the algorithms of the same names
        monkeypatch.setattr(import_module(f"refsim.attention.{name}"), "side_by_side", noting)
    monkeypatch.setattr(shares, "SMALLEST_TILE", 1)
    monkeypatch.setattr(shares, "SMALLEST_LAUNCH", 1)
    monkeypatch.setattr(shares, "threads", lambda watch: 3 if watch.silent else 1)
    return runs


def both_ways(run: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    """The result of a silent run, which may use threads, and of a watched one, which doesn't."""
    walk = run.steps(*args, **kwargs)
    for _ in walk:
        pass
    return run(*args, **kwargs), walk.result


def assert_equal(result: Any, watched: Any) -> None:
    np.testing.assert_array_equal(result.out, watched.out)
    np.testing.assert_array_equal(result.lse, watched.lse)
    assert result.ledger == watched.ledger


@pytest.mark.parametrize("variant", VARIANTS, ids=["plain", "causal-sinks-alibi", "window-softcap"])
@pytest.mark.parametrize("lengths", [[(1, 40)], [(3, 17), (0, 5), (20, 33), (2, 0)], [(50, 50)]])
def test_threads_change_nothing(three_threads: list[int], lengths: list[tuple[int, int]], variant: Any) -> None:
    problem = Problem.random(1, lengths, H=12, G=4, D=8, Dv=5, **variant)
    q, k, v, starts = problem.flat()
    k_cache, v_cache, tables, lens = problem.caches(block_size=4)
    paged = (q, k_cache, v_cache, tables, lens)
    starts_q = {"cu_seqlens_q": starts["cu_seqlens_q"]}
    for packed in (False, True):
        assert_equal(*both_ways(attention.flash, q, k, v, tile=(6, 8), pack_gqa=packed, **starts, **variant))
        assert_equal(*both_ways(attention.paged, *paged, tile=(6, 8), pack_gqa=packed, **starts_q, **variant))
    assert_equal(*both_ways(attention.paged_gather, *paged, tile=(6, 8), **starts_q, **variant))
    for num_splits in (1, 2, 7):
        for handover in ("lse", "state"):
            split = {"num_splits": num_splits, "handover": handover, "tile": (6, 8)}
            assert_equal(*both_ways(attention.split_kv, *paged, **split, **starts_q, **variant))
    assert all(n == 0 for n in three_threads[::2])  # `both_ways` walks first
    assert all(n > 1 for n in three_threads[1::2])


def test_few_query_tiles_are_cut_by_kv_head(three_threads: list[int]) -> None:
    x = np.random.default_rng(0).standard_normal((40, 8, 4))
    attention.flash(x[:1], x, x)
    assert three_threads == [3]  # 8 heads over 3 threads: 3, 3 and 2
    attention.flash(x[:30], x, x, tile=(1, 8))
    assert three_threads == [3, 30]
    attention.split_kv(x[:1], x, x, num_splits=20)
    assert three_threads == [3, 30, 20]


def test_nan_in_unused_slots_stays_out(three_threads: list[int]) -> None:
    problem = Problem.random(2, [(1, 13), (1, 6)], H=4, G=2, D=8, Dv=8)
    q, _, _, _ = problem.flat()
    result = attention.paged(q, *problem.caches(block_size=4), tile=(4, 4))
    out, lse = problem.truth()
    np.testing.assert_allclose(result.out, out, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(result.lse, lse, rtol=1e-5, atol=1e-6)
    assert three_threads == [4]  # two sequences, each in two halves of its KV heads


def test_a_tile_that_does_not_fit_is_refused_as_ever(three_threads: list[int]) -> None:
    x, machine = np.zeros((64, 6, 64), np.float32), Machine(sram_nbytes=20_000)
    with pytest.raises(SramOverflow, match="needs 24,576 B on chip and the machine has 20,000 B"):
        attention.flash(x, x, x, tile=(32, 64), machine=machine)
    assert three_threads == [6]  # two query tiles, each for two heads at a time
    attention.flash(x, x, x, tile=(16, 16), machine=machine)  # the machine is as usable as before


def test_small_calls_stay_on_one_thread() -> None:
    silent = Watch(silent=True)
    if threads(silent) < 2:
        pytest.skip("BLAS has one thread here")

    def workers(n: int, H: int, tile: tuple[int, int], T: int | None = None, **variant: Any) -> int:
        q, k = np.zeros((n, H, 64), np.float32), np.zeros((n if T is None else T, H, 64), np.float32)
        machine = Machine(sram_nbytes=None)
        call = contiguous_call(q, k, k, tile, machine, None, None, None, False, variant)
        return shares.share_out(silent, call)[1]

    assert workers(2048, 16, (128, 128)) > 1
    assert workers(2048, 1, (128, 128)) == 1  # each tile too small
    assert workers(128, 16, (128, 128)) == 1  # too few of them
    assert workers(2048, 16, (128, 128), window=(1, 0)) == 1  # too few keys seen
    assert workers(2048, 16, (128, 128), T=0) == 1
    assert workers(0, 16, (128, 128)) == 1
    empty, starts = np.zeros((0, 64, 128), np.float32), np.zeros(1, np.int32)
    none = contiguous_call(empty, empty, empty, (128, 128), Machine(sram_nbytes=None), None, starts, starts, False, {})
    assert shares.share_out(silent, none) == ([], 1)  # no sequence at all
    assert workers(1, 16, (1, 2048), T=65536) > 1  # a decode step, cut by KV head
    assert workers(1, 16, (1, 200), T=65536) == 1  # its halves are too small


def test_a_part_of_a_plan_keeps_what_belongs_to_its_heads() -> None:
    per_head = np.arange(12.0)
    plan = Plan.of([(3, 5)], H=12, G=4, D=8, packed=True, sinks=per_head, alibi_slopes=-per_head)
    part = plan.part(slice(1, 3))
    assert (part.H, part.G, part.group, part.grid) == (6, 2, 3, (2, 1))
    np.testing.assert_array_equal(part.variant.sinks, np.arange(3, 9))
    np.testing.assert_array_equal(part.variant.alibi_slopes, -np.arange(3.0, 9))
    assert plan.part(slice(2, 9)).G == 2  # past the end, as slices go
