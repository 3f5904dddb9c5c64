"""Counts worked out on paper, against ledgers that were executed and ledgers in closed form."""

from typing import Any

import numpy as np
import pytest

from refsim import attention
from refsim.attention import Plan
from refsim.cost import closed_form
from refsim.cost.closed_form_cache import append
from refsim.machine import Ledger


def tensors(n: int, T: int, H: int, G: int, D: int, Dv: int, dtype: str = "float32") -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    return tuple(rng.standard_normal(s).astype(dtype) for s in ((n, H, D), (T, G, D), (T, G, Dv)))


def both(name: str, arrays: tuple[np.ndarray, ...], plan: Plan, **keywords: Any) -> tuple[Ledger, Ledger]:
    tile = (plan.Br, plan.Bc)
    return getattr(attention, name)(*arrays, tile=tile, **keywords).ledger, getattr(closed_form, name)(plan)


@pytest.mark.parametrize(
    ("causal", "keys"),
    [
        (False, 4 + 4),  # two query tiles, each of which loads all four keys
        (True, 2 + 4),  # the first sees keys 0 and 1 alone
    ],
)
def test_flash_by_hand(causal: bool, keys: int) -> None:
    """4 tokens, one head of 2 numbers, 2 x 2 tiles, float32."""
    plan = Plan.of([(4, 4)], 1, 1, 2, tile=(2, 2), causal=causal)
    for ledger in both("flash", tensors(4, 4, 1, 1, 2, 2), plan, causal=causal):
        assert ledger.hbm_only() == {
            ("flash", "q", "read"): 4 * 2 * 4,
            ("flash", "k", "read"): keys * 2 * 4,
            ("flash", "v", "read"): keys * 2 * 4,
            ("flash", "out", "write"): 4 * 2 * 4,
            ("flash", "lse", "write"): 4 * 4,
        }
        scores = 2 * keys  # two rows a tile
        assert ledger.matmul_flops == 2 * scores * 2 + 2 * scores * 2  # q k^T and P v, two FLOPs a multiply-add
        assert ledger.exponentials == scores + 2 * keys // 2 + 4  # P; e^(m - m_new) a row and key tile; ln l a row
        assert (ledger.launches, ledger.programs) == (1, 2)


def test_flash_reads_keys_once_a_query_tile() -> None:
    """(2 + 2 Tr) x numbers, x = n H D, and the LSE: 64 sequences of 1024, 16 heads of 64, 16-bit, 256-row tiles."""
    plan = Plan.of([(1024, 1024)] * 64, 16, 16, 64, dtype="float16", tile=(256, 64))
    x = 64 * 16 * 1024 * 64 * 2
    assert x == 134_217_728
    assert closed_form.flash(plan).hbm_nbytes == (2 + 2 * 4) * x + 64 * 16 * 1024 * 4


def test_standard_has_the_square_terms_and_flash_divides_them_by_its_tile() -> None:
    """Second difference in n of the bytes, two heads of 64 in 16 bit, tiles of 128.

    Standard: S written and read, P written and read, and K and V once for each of n / 128 query tiles.
    FlashAttention: K and V once for each query tile, nothing else that is square.
    """

    def square(name: str) -> float:
        a, b, c = (
            getattr(closed_form, name)(Plan.of([(n, n)], 2, 2, 64, dtype="float16", tile=(128, 128))).hbm_nbytes
            for n in (1024, 2048, 3072)
        )
        return (c - 2 * b + a) / (2 * 1024**2)

    assert square("standard") == 2 * 2 * (4 + 2 * 64 / 128)
    assert square("flash") == 2 * 2 * (2 * 64 / 128)


def test_standard_by_hand() -> None:
    """3 queries, 5 keys, 2 heads, float32: S and P are 2 x 3 x 5 numbers each, written once and read once."""
    plan = Plan.of([(3, 5)], 2, 2, 4, tile=(4, 4))
    for ledger in both("standard", tensors(3, 5, 2, 2, 4, 4), plan):
        moved = {key[:2]: n for key, n in ledger.hbm_only().items() if key[1] in "sp"}
        assert moved == {("scores", "s"): 120, ("softmax", "s"): 120, ("softmax", "p"): 120, ("output", "p"): 120}


@pytest.mark.parametrize("Dv", [1, 64, 128])
def test_handover_numbers(Dv: int) -> None:
    """(m, l, acc) is Dv + 2 numbers a split, row and head, (LSE, O) is Dv + 1: written once, read once."""
    splits, rows, heads = 5, 3, 4
    arrays = tensors(rows, 40, heads, 2, 8, Dv)
    plan = Plan.of([(rows, 40)], heads, 2, 8, Dv, packed=True)
    counted = {}
    for handover, numbers in (("lse", Dv + 1), ("state", Dv + 2)):
        executed = attention.split_kv(*arrays, num_splits=splits, handover=handover).ledger
        closed = closed_form.split_kv(plan, num_splits=splits, handover=handover)
        for ledger in (executed, closed):
            partial = {key: n for key, n in ledger.hbm_only().items() if key[1].endswith("_partial")}
            written = sum(n for (kernel, _, way), n in partial.items() if (kernel, way) == ("split_kv", "write"))
            read = sum(n for (kernel, _, way), n in partial.items() if (kernel, way) == ("reduce", "read"))
            assert written == read == splits * rows * heads * numbers * 4
            assert written + read == sum(partial.values())
        counted[handover] = written
    assert counted["lse"] * (Dv + 2) == counted["state"] * (Dv + 1)  # at Dv = 128: smaller by 1/130, not by half


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_stage_a_reads_and_writes_every_token_once_more(dtype: str) -> None:
    """The copy reads and writes 2 T G D numbers; attention over it moves what stage B does, but for metadata."""
    T, G, D, B = 50, 2, 8, 16
    rng = np.random.default_rng(0)
    cache = rng.standard_normal((4, B, G, D)).astype(dtype)
    q, tables = rng.standard_normal((1, 4, D)).astype(dtype), np.array([[2, 0, 3, 1]], np.int32)
    plan = Plan.of([(1, T)], 4, G, D, dtype=dtype, packed=True, block_size=B)
    stage_a = attention.paged_gather(q, cache, cache, tables, [T]).ledger
    stage_b = attention.paged(q, cache, cache, tables, [T]).ledger
    assert stage_a == closed_form.paged_gather(plan)
    assert stage_b == closed_form.paged(plan)
    once = 2 * T * G * D * np.dtype(dtype).itemsize
    gather = {(key[1], key[2]): n for key, n in stage_a.hbm_only().items() if key[0] == "gather"}
    assert gather["k_cache", "read"] + gather["v_cache", "read"] == once
    assert gather["k", "write"] + gather["v", "write"] == once
    assert stage_a.total(kernel="flash", tensor="k") == stage_b.total(tensor="k_cache")
    # Four parts of blocks and two KV heads: each of 8 programs reads a table entry, a length and where its copy starts.
    assert [gather[name, "read"] for name in ("block_tables", "seq_lens", "cu_seqlens_k")] == [32, 32, 32]


def test_packing_reads_keys_once_a_group() -> None:
    """64 query heads over 8 KV heads: unpacked decode reads K and V eight times as often."""
    counted = [
        closed_form.paged(
            Plan.of([(1, 1000)], 64, 8, 128, dtype="float16", packed=packed, block_size=16, tile=(16, 64))
        ).total(tensor="k_cache")
        for packed in (True, False)
    ]
    assert counted == [1000 * 8 * 128 * 2, 8 * 1000 * 8 * 128 * 2]


def test_a_million_tokens_on_paper() -> None:
    """Causal, 128-row tiles: full tile i of 7812 reads 128 (i + 1) keys, the last, of 64 rows, all million."""
    plan = Plan.of([(10**6, 10**6)], 1, 1, 64, dtype="float16", causal=True, tile=(128, 128))
    keys = 128 * (7812 * 7813 // 2) + 10**6
    ledger = closed_form.flash(plan)
    assert ledger.total(tensor="k") == ledger.total(tensor="v") == keys * 64 * 2
    scores = 128 * (keys - 10**6) + 64 * 10**6
    assert ledger.matmul_flops == 2 * 2 * 64 * scores
    assert ledger.programs == 7813


def test_idle_programs_of_a_ragged_launch() -> None:
    """Sequences of 5 and 1 queries in tiles of 2: a launch 3 wide for both, so 2 programs a head only look."""
    arrays = tensors(6, 6, 2, 2, 4, 4)
    starts = np.array([0, 5, 6], np.int32)
    ledger = attention.flash(*arrays, tile=(2, 4), cu_seqlens_q=starts, cu_seqlens_k=starts).ledger
    plan = Plan.of([(5, 5), (1, 1)], 2, 2, 4, tile=(2, 4))
    assert ledger == closed_form.flash(plan, ragged=True)
    assert ledger.programs == 2 * (3 + 3)
    assert ledger.total(tensor="cu_seqlens_q") == 12 * 2 * 4
    assert ledger.total(tensor="cu_seqlens_k") == 8 * 2 * 4


@pytest.mark.parametrize("lengths", [[(1, 9)], [(5, 5), (0, 3), (2, 0)]])
def test_splits_beyond_the_keys_are_counted_without_a_look_at_each(lengths: list[tuple[int, int]]) -> None:
    """A split more is a program more for each query tile and head, which reads its query and hands over nothing."""
    plan = Plan.of(lengths, 4, 2, 8, tile=(2, 4), packed=True, causal=True, block_size=2)
    few, more, many = (closed_form.split_kv(plan, num_splits=n) for n in (100, 101, 10**9))
    one = more - few
    assert {key: few.nbytes.get(key, 0) + (10**9 - 100) * n for key, n in one.nbytes.items()} == {
        key: many.nbytes[key] for key in one.nbytes
    }
    assert many.programs - few.programs == (10**9 - 100) * one.programs
    assert many.total(tensor="k_cache") == few.total(tensor="k_cache")


def test_inputs_of_other_types() -> None:
    """A 16-bit model over an 8-bit cache: K and V cost a byte a number, q and out two."""
    plan = Plan.of([(1, 100)], 4, 4, 8, dtype="bfloat16", packed=True, block_size=16)
    ledger = closed_form.paged(plan, k_dtype="e4m3", v_dtype="e5m2")
    assert ledger.total(tensor="k_cache") == ledger.total(tensor="v_cache") == 100 * 4 * 8
    assert ledger.total(tensor="q") == 4 * 8 * 2


@pytest.mark.parametrize("skipped", [-1, 3])
def test_more_slots_skipped_than_given(skipped: int) -> None:
    with pytest.raises(ValueError, match=f"skipped must be from 0 to the 2 slots, got {skipped}"):
        append(slots=2, skipped=skipped, G=1, D=8, Dv=8, dtype="float16")


def test_wrong_plans_and_arguments_are_refused() -> None:
    paged, plain = Plan.of([(1, 4)], 2, 1, 4, block_size=2), Plan.of([(1, 4)], 2, 1, 4)
    with pytest.raises(ValueError, match="flash reads contiguous keys, and this plan is over blocks of 2"):
        closed_form.flash(paged)
    with pytest.raises(ValueError, match="paged reads a paged cache: make its plan with block_size"):
        closed_form.paged(plain)
    with pytest.raises(ValueError, match="paged_gather reads a paged cache"):
        closed_form.paged_gather(plain)
    with pytest.raises(ValueError, match="packed=False"):
        closed_form.standard(Plan.of([(1, 4)], 2, 1, 4, packed=True))
    with pytest.raises(ValueError, match="num_splits must be a whole number from 1, got 0"):
        closed_form.split_kv(plain, num_splits=0)
    with pytest.raises(ValueError, match="handover must be one of lse, state, got 'acc'"):
        closed_form.split_kv(plain, handover="acc")  # type: ignore[arg-type]
    for wrong in ("3", None, float("nan"), 2.0):
        with pytest.raises(ValueError, match=f"num_splits must be a whole number from 1, got {wrong!r}"):
            closed_form.split_kv(plain, num_splits=wrong)  # type: ignore[arg-type]
    for form in (
        closed_form.flash,
        closed_form.standard,
        closed_form.paged,
        closed_form.paged_gather,
        closed_form.split_kv,
    ):
        with pytest.raises(TypeError, match=r"plan must be a Plan, made by attention\.Plan\.of\(\.\.\.\); got a list"):
            form([(1, 4)])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="unknown argument 'kv_dtype'"):
        closed_form.flash(plain, kv_dtype="e4m3")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="'int8' is not a floating type"):
        closed_form.flash(plain, k_dtype="int8")
