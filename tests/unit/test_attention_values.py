"""Attention on figures worked out by hand and on the field's bugs, by every algorithm that could have them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from refsim import attention, oracle, softmax
from refsim.attention.merge import merge
from refsim.machine import Ledger, Machine
from refsim.numerics import DTYPES, Precision, round_to, unit_roundoff
from tests.attention_cases import ALGORITHMS, Problem, run

EVERY = pytest.mark.parametrize(("algorithm", "over_cache", "options"), ALGORITHMS)
inf = np.inf


def column(*values: float) -> np.ndarray:
    """One head of size 1."""
    return np.array(values, np.float32).reshape(-1, 1, 1)


def uniform(n: int, values: list[float], **variant: Any) -> Problem:
    """n zero queries, so that every visible key weighs the same."""
    return Problem([column(*[0.0] * n)], [column(*[0.0] * len(values))], [column(*values)], variant)


@EVERY
@pytest.mark.parametrize(
    ("problem", "out", "lse"),
    [
        # fully masked rows: causal bottom-right, 3 queries over 1 key
        (uniform(3, [7], causal=True), [0, 0, 7], [-inf, -inf, 0]),
        # causal alignment when lengths differ
        (uniform(2, [0, 1, 2, 3, 4], causal=True), [1.5, 2.0], np.log([4, 5])),
        (uniform(2, [0, 1, 2, 3, 4], causal=True, align="top-left"), [0, 0.5], np.log([1, 2])),
        (uniform(5, [10, 20], causal=True), [0, 0, 0, 10, 15], [-inf, -inf, -inf, *np.log([1, 2])]),
        # a window of left=1 keeps two keys, left=2 three
        (uniform(1, [0, 1, 2, 3], window=(1, 0)), [2.5], np.log([2])),
        (uniform(1, [0, 1, 2, 3], window=(2, 0)), [2.0], np.log([3])),
        # no keys at all
        (uniform(2, []), [0, 0], [-inf, -inf]),
        # 16 valid keys must not be diluted by the rest of a tile of 256
        (uniform(1, [1.0] * 16), [1.0], np.log([16])),
        # a sink of e^0 beside one key of e^0 takes half the weight; alone, it leaves out 0 and its own logit
        (uniform(1, [6.0], sinks=[0.0]), [3.0], np.log([2])),
        (uniform(1, [], sinks=[0.5]), [0.0], [0.5]),
    ],
)
def test_by_hand(algorithm: str, over_cache: bool, options: dict, problem: Problem, out: list, lse: list) -> None:
    result = run(algorithm, problem, block_size=4 if over_cache else None, tile=(128, 256), **options)
    np.testing.assert_allclose(result.out.ravel(), out, rtol=1e-6)
    np.testing.assert_allclose(result.lse.ravel(), lse, rtol=1e-6)


@EVERY
def test_query_head_reads_its_groups_kv_head(algorithm: str, over_cache: bool, options: dict) -> None:
    problem = Problem([np.zeros((1, 8, 4), np.float32)], [np.zeros((3, 2, 4), np.float32)], [])
    problem.v = [np.broadcast_to(np.float32([0, 1])[None, :, None], (3, 2, 1)).copy()]
    result = run(algorithm, problem, block_size=2 if over_cache else None, **options)
    assert result.out.ravel().tolist() == [0, 0, 0, 0, 1, 1, 1, 1]


@pytest.mark.parametrize(("T", "num_splits"), [(5, 4), (1, 8), (17, 100), (0, 3)])
@pytest.mark.parametrize("block_size", [None, 2])
def test_more_splits_than_keys(T: int, num_splits: int, block_size: int | None) -> None:
    problem = Problem.random(1, [(1, T)], 4, 2, 8, 8)
    result = run("split_kv", problem, num_splits=num_splits, block_size=block_size)
    out, lse = problem.truth()
    np.testing.assert_allclose(result.out, out, atol=1e-6)
    np.testing.assert_allclose(result.lse, lse, atol=1e-6)


@EVERY
def test_an_empty_request_beside_a_full_one(algorithm: str, over_cache: bool, options: dict) -> None:
    problem = Problem.random(2, [(1, 0), (1, 129), (0, 5), (3, 17)], 2, 1, 4, 4)
    result = run(algorithm, problem, block_size=16 if over_cache else None, **options)
    out, lse = problem.truth()
    assert (result.out[0] == 0).all()
    assert np.isneginf(result.lse[:, 0]).all()
    np.testing.assert_allclose(result.out, out, atol=1e-6)
    np.testing.assert_allclose(result.lse, lse, atol=1e-6)


@EVERY
def test_a_chunk_of_an_empty_request_beside_one_of_another(algorithm: str, over_cache: bool, options: dict) -> None:
    problem = Problem.random(12, [(3, 0), (3, 17)], 2, 1, 4, 4, causal=True)
    result = run(algorithm, problem, block_size=4 if over_cache else None, **options)
    out, lse = problem.truth()
    assert (result.out[:3] == 0).all()
    assert np.isneginf(result.lse[:, :3]).all()
    np.testing.assert_allclose(result.out, out, atol=1e-6)
    np.testing.assert_allclose(result.lse, lse, atol=1e-6)


@EVERY
def test_no_queries_at_all(algorithm: str, over_cache: bool, options: dict) -> None:
    problem = Problem.random(3, [(0, 9)], 2, 1, 4, 6)
    result = run(algorithm, problem, block_size=4 if over_cache else None, **options)
    assert result.out.shape == (0, 2, 6)
    assert result.lse.shape == (2, 0)


def test_padding_is_never_read() -> None:
    cache = np.full((4, 4, 1, 1), np.nan, np.float32)
    cache[3] = 1.0
    for call in (attention.paged, attention.paged_gather, attention.split_kv):
        # page 0 is all NaN; -1 must not be clamped to it
        assert call(column(0.0), cache, cache, [[3, -1]], [4]).out.item() == 1.0
        # a padded row of a captured batch has length 0 and a table of -1
        out = call(np.zeros((2, 1, 1), np.float32), cache, cache, [[3], [-1]], [4, 0])
        assert out.out.ravel().tolist() == [1.0, 0.0]
        assert np.isneginf(out.lse[0, 1])


def test_the_tail_of_the_last_page_may_be_nan() -> None:
    cache = np.full((2, 4, 1, 1), np.nan, np.float32)
    cache[0], cache[1, 0] = 1.0, 1.0
    for call in (attention.paged, attention.paged_gather, attention.split_kv):
        result = call(column(0.0), cache, cache, [[0, 1]], [5])
        assert result.out.item() == 1.0
        assert np.isfinite(result.lse).all()


def test_a_block_beyond_16_bits_is_the_one_that_is_read() -> None:
    cache = np.zeros((67001, 1, 1, 1), np.float32)
    cache[67000] = 0.75  # 67000 & 0xFFFF is 1464, which holds 0
    for call in (attention.paged, attention.paged_gather, attention.split_kv):
        assert call(column(0.0), cache, cache, [[67000]], [1]).out.item() == 0.75


def test_an_interleaved_pool_is_read_by_its_own_strides() -> None:
    pool = np.float32([[[1], [10]], [[2], [20]]]).reshape(2, 2, 1, 1, 1)  # (blocks, K|V, slots, heads, head_dim)
    for call in (attention.paged, attention.paged_gather, attention.split_kv):
        result = call(column(1.0), pool[:, 0], pool[:, 1], [[1]], [1], scale=1.0)
        assert (result.out.item(), result.lse.item()) == (20.0, 2.0)


def test_a_table_is_read_by_blocks_and_a_launch_sized_by_the_longest_sequence() -> None:
    cache = np.ones((2, 16, 1, 1), np.float32)
    ledger = attention.paged(column(0.0), cache, cache, [[0, 1]], [17]).ledger
    assert ledger.total(tensor="block_tables") == 2 * 4  # 17 tokens lie in 2 blocks of 16
    q, starts = column(*[0.0] * 5), [0, 3, 5]
    ledger = attention.flash(q, q, q, cu_seqlens_q=starts, cu_seqlens_k=starts, tile=(1, 4)).ledger
    assert ledger.programs == 2 * 3  # the longer of two sequences has 3 tokens; 5 is where the batch ends


def test_a_window_reads_no_block_that_it_has_left() -> None:
    cache = np.full((3, 4, 1, 1), np.nan, np.float32)
    cache[2] = 5.0
    for call in (attention.paged, attention.paged_gather, attention.split_kv):
        result = call(column(0.0), cache, cache, [[-1, -1, 2]], [12], window=(3, 0))
        assert result.out.item() == 5.0


@EVERY
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_a_hidden_key_may_be_poison_even_where_another_row_of_the_tile_sees_it(
    algorithm: str, over_cache: bool, options: dict, poison: float
) -> None:
    problem = Problem.random(4, [(6, 6)], 2, 1, 4, 4, causal=True)
    truth, _ = problem.truth()
    problem.k[0][5], problem.v[0][5] = poison, poison
    problem.q[0][5] = 0  # the row that sees it: 0 * inf, NaN
    result = run(algorithm, problem, block_size=4 if over_cache else None, tile=(6, 6), **options)
    assert np.isnan(result.out[5]).all()
    np.testing.assert_allclose(result.out[:5], truth[:5], atol=1e-6)


def test_padding_may_be_any_integer() -> None:
    cache = np.arange(4, dtype=np.float32).reshape(4, 1, 1, 1)
    for dtype, tail in ((np.int64, 2**62), (np.int64, -(2**62)), (np.uint64, 2**64 - 1), (np.uint8, 255)):
        for call in (attention.paged, attention.paged_gather, attention.split_kv):
            assert call(column(0.0), cache, cache, np.array([[3, 1, tail]], dtype), [2]).out.item() == 2.0


@EVERY
@pytest.mark.parametrize("side", [2**31 - 1, 2**31, 2**63 - 1, 2**63, 10**30, 1e300])
def test_a_window_longer_than_any_sequence_is_none(algorithm: str, over_cache: bool, options: dict, side: Any) -> None:
    values = uniform(2, [0, 1, 2, 3])
    for window, out in (((1, side), [2, 2.5]), ((side, 0), [1, 1.5])):
        values.variant = {"window": window}
        result = run(algorithm, values, block_size=3 if over_cache else None, **options)
        np.testing.assert_allclose(result.out.ravel(), out, rtol=1e-6)


def test_scalar_length_holds_for_every_sequence() -> None:
    cache = np.arange(8, dtype=np.float32).reshape(8, 1, 1, 1)
    result = attention.paged(column(0.0), cache, cache, [list(range(8))], 5)
    assert result.out.item() == 2.0


def test_layers_and_non_contiguous_pools() -> None:
    rng = np.random.default_rng(5)
    pool = rng.standard_normal((2, 6, 2, 4, 3, 8), dtype=np.float32)  # (layers, blocks, K|V, slots, heads, head_dim)
    k_cache, v_cache = pool[:, :, 0], pool[:, :, 1]
    q = rng.standard_normal((1, 3, 8), dtype=np.float32)
    for layer in (0, 1):
        result = attention.paged(q, k_cache, v_cache, [[5, 2]], [7], layer=layer)
        out, _ = oracle.paged(q, k_cache[layer].copy(), v_cache[layer].copy(), [[5, 2]], [7])
        np.testing.assert_allclose(result.out, out, atol=1e-6)


@EVERY
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.float64])
def test_narrow_types_err_by_their_own_rounding_only(
    algorithm: str, over_cache: bool, options: dict, dtype: Any
) -> None:
    problem = Problem.random(6, [(9, 70)], 4, 2, 16, 16, dtype=dtype, causal=True)
    result = run(algorithm, problem, block_size=16 if over_cache else None, **options)
    out, lse = problem.truth()
    assert result.out.dtype == dtype
    # P and out are rounded once each (S once more in standard attention), relative to values of about 1; float64 sums
    # in float64, which may round once for each of 70 keys
    u = unit_roundoff(dtype)
    roundings = 8 if dtype != np.float64 else 70
    assert np.abs(result.out.astype(np.float64) - out).max() <= roundings * u
    if algorithm != "standard":  # whose scores are stored in the narrow type
        assert np.abs(result.lse - lse).max() <= (1e-5 if dtype != np.float64 else 1e-13)
    # and the rounding is there: a result computed in float32 throughout would be closer
    if dtype != np.float64:
        assert np.abs(result.out.astype(np.float64) - out).max() >= u / 64


def rounded(problem: Problem, dtype: Any) -> Problem:
    """The same problem with its inputs rounded to a type, in their own."""
    parts = ([round_to(x.astype(np.float64), dtype) for x in xs] for xs in (problem.q, problem.k, problem.v))
    return Problem(*parts, problem.variant)


@EVERY
@pytest.mark.parametrize("storage", DTYPES)
def test_every_precision_errs_by_its_own_rounding_only(
    algorithm: str, over_cache: bool, options: dict, storage: str
) -> None:
    """Any type of matrix inputs, sums and P beside any storage type, against the oracle on inputs rounded alike.

    With |v| <= 4 and weights that sum to 1: P and out are rounded once each, relative to at most 4, S once more in
    standard attention where scores are at most 8, and sums over 20 keys add 20 roundings of the accumulation type.
    """
    problem = Problem.random(6, [(3, 20), (2, 0), (1, 1)], 4, 2, 8, 8, dtype=DTYPES[storage], causal=True)
    for matrix in DTYPES:
        out, lse = (
            rounded(problem, matrix) if DTYPES[matrix].itemsize <= DTYPES[storage].itemsize else problem
        ).truth()
        for accumulate, p in [*(("float32", p) for p in DTYPES), ("float64", "float64"), ("float64", "float32")]:
            precision = Precision.of(storage, matrix=matrix, accumulate=accumulate, p=p)
            result = run(algorithm, problem, block_size=4 if over_cache else None, precision=precision, **options)
            u, u_p, u_sum = (unit_roundoff(x) for x in (storage, p, accumulate))
            if algorithm == "standard":
                u_p = unit_roundoff(p if DTYPES[p].itemsize > 1 else "bfloat16") * (1 + 8)
            assert result.out.dtype == DTYPES[storage]
            assert result.lse.dtype == DTYPES[accumulate]
            case = (matrix, accumulate, p)
            assert np.abs(result.out.astype(np.float64) - out).max() <= 4 * (u + u_p + 40 * u_sum), case
            finite = np.isfinite(lse)
            np.testing.assert_array_equal(np.isfinite(result.lse), finite)
            lse_error = np.abs(result.lse[finite] - lse[finite]).max()
            assert lse_error <= 40 * u_sum + (8 * u_p if algorithm == "standard" else 0), case


def test_half_precision_scores_do_not_overflow() -> None:
    q = np.full((1, 1, 64), 300.0, np.float16)
    k = np.concatenate([q, -q])  # q k^T = +-5.8e6, far beyond 65504
    v = np.float16([[[1.0]], [[2.0]]])
    assert attention.flash(q, k, v).out.item() == 1.0


def test_a_run_repeats_bit_for_bit() -> None:
    problem = Problem.random(7, [(20, 90)], 4, 2, 16, 16)
    first, second = (run("flash", problem, tile=(16, 16)) for _ in range(2))
    np.testing.assert_array_equal(first.out, second.out)
    assert first.ledger == second.ledger


def test_inputs_are_left_alone() -> None:
    problem = Problem.random(8, [(5, 9)], 2, 1, 4, 4)
    copies = [x.copy() for x in (*problem.q, *problem.k, *problem.v)]
    for algorithm, over_cache, options in ALGORITHMS:
        run(algorithm, problem, block_size=4 if over_cache else None, **options)
    for before, after in zip(copies, (*problem.q, *problem.k, *problem.v), strict=True):
        np.testing.assert_array_equal(before, after)


def test_walking_gives_the_same_result_as_running() -> None:
    x = np.random.default_rng(9).standard_normal((40, 2, 8), dtype=np.float32)
    walk = attention.flash.steps(x, x, x, tile=(16, 16), causal=True)
    steps = list(walk)
    # query tiles of 16, 16, 8 rows see 1, 2 and 3 key tiles, and each is written once
    assert [s.name for s in steps] == ["absorb", "write", *["absorb"] * 2, "write", *["absorb"] * 3, "write"]
    ran = attention.flash(x, x, x, tile=(16, 16), causal=True)
    np.testing.assert_array_equal(walk.result.out, ran.out)
    assert walk.result.ledger == ran.ledger
    assert sum((s.delta for s in steps[1:]), steps[0].delta).hbm_nbytes == ran.ledger.hbm_nbytes


def test_a_shared_machine_adds_up_and_each_result_has_its_own_part() -> None:
    x = np.random.default_rng(10).standard_normal((8, 1, 4), dtype=np.float32)
    machine = Machine()
    first, second = attention.flash(x, x, x, machine=machine), attention.flash(x, x, x, machine=machine)
    assert first.ledger == second.ledger
    assert machine.ledger() == first.ledger + second.ledger


def test_a_call_knows_its_own_peak_on_a_machine_that_held_more_before() -> None:
    x = np.random.default_rng(10).standard_normal((64, 1, 4), dtype=np.float32)
    for run_one in (attention.flash, attention.split_kv, attention.standard):
        machine = Machine()
        run_one(x, x, x, machine=machine)
        assert run_one(x[:3], x[:3], x[:3], machine=machine).ledger == run_one(x[:3], x[:3], x[:3]).ledger


@pytest.mark.parametrize("shared", [True, False])
def test_threads_may_call_side_by_side(shared: bool) -> None:
    """On one machine or on two, each call has its own answer and ledger, and the machine has all of them."""
    rng = np.random.default_rng(12)
    inputs = [rng.standard_normal((3, 40, 2, 8), dtype=np.float32) for _ in range(2)]
    alone = [attention.standard(*qkv, tile=(8, 16)) for qkv in inputs]
    machines = [Machine()] * 2 if shared else [Machine(), Machine()]
    meet = Barrier(2, timeout=20)

    def calls(i: int) -> list[attention.Result]:
        meet.wait()
        return [attention.standard(*inputs[i], tile=(8, 16), machine=machines[i]) for _ in range(40)]

    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(calls, range(2)))
    for wanted, results in zip(alone, answers, strict=True):
        for result in results:
            np.testing.assert_array_equal(result.out, wanted.out)
            assert result.ledger == wanted.ledger
    total = sum((result.ledger for result in (*answers[0], *answers[1])), Ledger())
    assert (machines[0].ledger() if shared else machines[0].ledger() + machines[1].ledger()) == total


def test_no_call_starts_inside_a_kernel_of_the_user() -> None:
    x = np.ones((1, 1, 4), np.float32)
    machine = Machine()
    with machine.kernel("mine"), pytest.raises(RuntimeError, match="'flash' can't start inside kernel 'mine'; what ru"):
        attention.flash(x, x, x, machine=machine)


def merge_on_a_machine(*partials: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    result = merge(*partials)
    return result.out, result.lse


@pytest.mark.parametrize("merged", [softmax.merge, merge_on_a_machine])
class TestMerging:
    """The field's minimal inputs, by the function and by the kernel."""

    @staticmethod
    def one(value: float, lse: float) -> tuple[np.ndarray, np.ndarray]:
        return np.full((1, 1, 1), value, np.float32), np.full((1, 1), lse, np.float32)

    @pytest.mark.parametrize(
        ("a", "b", "out", "lse"),
        [
            ((0, -inf), (0, -inf), 0, -inf),
            ((np.nan, -inf), (5, 2), 5, 2),
            ((5, 2), (np.nan, -inf), 5, 2),
            ((np.nan, -inf), (np.nan, -inf), 0, -inf),
            ((1, 4), (0, 2), 1 / (1 + np.exp(-2)), np.log(np.exp(4) + np.exp(2))),
            ((1, 5.7708), (0, 2.8854), 0.9471, 5.8252),  # base 2 taken for natural: the known wrong value
            ((2, 3e38), (1, 3e38), 1.5, 3e38),
            ((2, -3.4028235e38), (np.nan, -inf), 2, -3.4028235e38),
        ],
    )
    def test_values(self, merged: Any, a: Any, b: Any, out: float, lse: float) -> None:
        got_out, got_lse = merged(*self.one(*a), *self.one(*b))
        np.testing.assert_allclose((got_out.item(), got_lse.item()), (out, lse), rtol=5e-5)

    def test_an_lse_of_plus_infinity_never_wins(self, merged: Any) -> None:
        for pair in ((self.one(0, inf), self.one(2, 1)), (self.one(2, 1), self.one(0, inf))):
            with pytest.raises(ValueError, match=r"an LSE of \+inf can't be merged"):
                merged(*pair[0], *pair[1])

    def test_a_view_of_a_wider_buffer_is_read_by_its_own_strides(self, merged: Any) -> None:
        rng = np.random.default_rng(0)
        prefix, wide = rng.standard_normal((20, 2, 128)), rng.standard_normal((20, 2, 192))
        lse_a, lse_b = rng.standard_normal((2, 2, 20))
        for got, same in zip(
            merged(prefix, lse_a, wide[..., :128], lse_b.T.copy().T),
            merged(prefix, lse_a, wide[..., :128].copy(), lse_b),
            strict=True,
        ):
            np.testing.assert_array_equal(got, same)

    @pytest.mark.parametrize("shape", [(0, 2, 3), (2, 0, 3), (2, 3, 0)])
    def test_nothing_at_all(self, merged: Any, shape: tuple[int, ...]) -> None:
        out, lse = np.zeros(shape), np.zeros((shape[1], shape[0]))
        got_out, got_lse = merged(out, lse, out, lse)
        assert (got_out.shape, got_lse.shape) == (out.shape, lse.shape)


def test_a_merge_by_kernel_names_what_is_no_machine() -> None:
    with pytest.raises(TypeError, match=r"machine must be a refsim.Machine.* got 'A100'"):
        merge(*TestMerging.one(0, 0), *TestMerging.one(0, 0), machine="A100")


def test_standard_reads_s_twice_where_a_row_does_not_fit_on_chip() -> None:
    problem = Problem.random(11, [(7, 500)], 2, 1, 8, 8, causal=True, sinks=[0.5, -0.5])
    out, lse = problem.truth()
    once = run("standard", problem, tile=(4, 16), sram_nbytes=100_000)
    twice = run("standard", problem, tile=(4, 16), sram_nbytes=1_500)  # a row of 500 float32 takes 2,000 B
    for result in (once, twice):
        np.testing.assert_allclose(result.out, out, atol=1e-5)
        np.testing.assert_allclose(result.lse, lse, atol=1e-5)
    s_nbytes = 2 * 7 * 500 * 4
    assert once.ledger.total(tensor="s", direction="read") == s_nbytes
    assert twice.ledger.total(tensor="s", direction="read") == 2 * s_nbytes
