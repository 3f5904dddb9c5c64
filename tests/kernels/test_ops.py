"""gpu.ops as a caller sees it: the reference's refusals in its own words, arrays of any kind, a whole decoder."""

from __future__ import annotations

import copy
import inspect
import pickle
import sys
from functools import partial
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gpu import ops
from gpu import runtime as runtimes
from gpu.ops.cache import caches
from gpu.ops.split_kv import choose_splits
from gpu.ops.tiles import default_tile
from refsim import attention, model
from refsim.attention import Plan
from refsim.kvcache import kernels as cache_kernels
from refsim.machine import Machine, SramOverflow
from refsim.model import rope_kernel
from refsim.numerics import Precision

E = {"runtime": "emulator"}


def normal(*shape: int, dtype: Any = np.float32, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32).astype(dtype)


Q, K, V = normal(3, 2, 8), normal(5, 1, 8), normal(5, 1, 8)
CACHE, TABLE = normal(4, 2, 1, 8), np.array([[0, 1, 2]])
BAD_FLASH: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((Q[0], K, V), {}),
    ((Q, K, V[:4]), {}),
    ((Q[:, :, :4], K, V), {}),
    ((normal(3, 3, 8), normal(5, 2, 8), normal(5, 2, 8)), {}),
    ((Q.astype(np.int32), K, V), {}),
    ((Q, K, V), {"scale": np.inf}),
    ((Q, K, V), {"window": (-2, 0)}),
    ((Q, K, V), {"align": "middle"}),
    ((Q, K, V), {"softcap": -1.0}),
    ((Q, K, V), {"sinks": [1.0]}),
    ((Q, K, V), {"alibi_slopes": [1.0, np.nan]}),
    ((Q, K, V), {"tile": (0, 4)}),
    ((Q, K, V), {"machine": 5}),
    ((Q.astype(">f4"), K, V), {}),
    ((np.float32(1), K, V), {}),
    ((Q, K, V), {"cu_seqlens_q": [0, 3]}),
    ((Q, K, V), {"cu_seqlens_q": [0, 2], "cu_seqlens_k": [0, 5]}),
]
BAD_PAGED: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((Q, CACHE, CACHE, TABLE, [5]), {}),
    ((Q[:1], CACHE[0], CACHE, TABLE, [5]), {}),
    ((Q[:1], CACHE, CACHE[:3], TABLE, [5]), {}),
    ((Q[:1], CACHE, CACHE, TABLE, [7]), {}),
    ((Q[:1], CACHE, CACHE, [[0, 4, 1]], [5]), {}),
    ((Q[:1], CACHE, CACHE, [[0, -1, 1]], [5]), {}),
    ((Q[:1], CACHE, CACHE, TABLE, [-1]), {}),
    ((Q[:1], CACHE, CACHE, TABLE, [5, 5]), {}),
    ((Q[:1], CACHE, CACHE, [[0.0]], [1]), {}),
    ((Q[:1], CACHE, CACHE, TABLE, [5]), {"layer": 0}),
]
BAD_SPLIT: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((Q, K, V), {"num_splits": 0}),
    ((Q, K, V), {"num_splits": 1.5}),
    ((Q, K, V), {"handover": "max"}),
    ((Q, K, V), {"layer": 1}),
    ((Q[:1], CACHE, CACHE, TABLE), {}),
    ((Q[:1], CACHE, CACHE, TABLE, [5]), {"cu_seqlens_k": [0, 5]}),
]
REFUSED = [
    *(("flash", *call) for call in BAD_FLASH),
    *(("standard", *call) for call in BAD_FLASH),
    *(("paged", *call) for call in BAD_PAGED),
    *(("paged_gather", *call) for call in BAD_PAGED),
    *(("split_kv", *call) for call in (*BAD_SPLIT, *BAD_PAGED[:6])),
]


@pytest.mark.parametrize(("op", "args", "keys"), REFUSED)
def test_what_the_reference_refuses_is_refused_in_its_words(
    op: str, args: tuple[Any, ...], keys: dict[str, Any]
) -> None:
    with pytest.raises((ValueError, TypeError, IndexError)) as expected:
        getattr(attention, op)(*args, **keys)
    with pytest.raises(type(expected.value)) as got:
        getattr(ops, op)(*args, **keys, **E)
    assert str(got.value) == str(expected.value)


def test_kernels_refuse_what_only_they_cannot_do() -> None:
    with pytest.raises(TypeError, match="the kernels store float32, float16, bfloat16, not float64"):
        ops.flash(Q.astype(np.float64), K.astype(np.float64), V.astype(np.float64), **E)
    with pytest.raises(TypeError, match="tensors of one type, got q float32, k float16, v float32"):
        ops.flash(Q, K.astype(np.float16), V, **E)
    with pytest.raises(TypeError, match="the kernels compute with"):
        ops.flash(Q, K, V, precision=Precision.of("float32", p="float16"), **E)
    with pytest.raises(ValueError, match="tiles of at most 128 rows and 128 keys"):
        ops.flash(normal(200, 1, 8), normal(200, 1, 8), normal(200, 1, 8), tile=(16, 256), **E)
    with pytest.raises(SramOverflow, match=r"needs .* B of shared memory .* a block has 1,000 B"):
        ops.flash(Q, K, V, machine=Machine(sram_nbytes=1000), **E)
    with pytest.raises(ValueError, match="form 'mma' needs float16 or bfloat16"):
        ops.flash(Q, K, V, form="mma", **E)
    with pytest.raises(ValueError, match="form must be one of auto, scalar, mma"):
        ops.flash(Q, K, V, form="wgmma", **E)
    with pytest.raises(ValueError, match="no runtime 'cpu'"):
        ops.flash(Q, K, V, runtime="cpu")
    with pytest.raises(TypeError, match="runtime must be 'auto', 'cupy', 'emulator' or a Runtime, got None"):
        ops.flash(Q, K, V, runtime=None)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [">f4", "i4", "?"])
def test_types_that_nothing_here_stores_are_refused_in_the_reference_s_words(dtype: str) -> None:
    cache, x = CACHE.astype(dtype), K[:1].astype(dtype)
    calls: list[tuple[Any, Any]] = [
        (partial(ops.append, **E), partial(cache_kernels.append)),
        (partial(ops.copy_blocks, **E), partial(cache_kernels.copy_blocks)),
        (partial(ops.rope, **E), partial(rope_kernel.rope)),
    ]
    for (op, twin), args in zip(
        calls, [(x, x, [0], cache, cache.copy()), (cache, cache.copy(), [[0, 1]]), (x, [0], np.ones(4))], strict=True
    ):
        with pytest.raises(TypeError) as expected:
            twin(*args)
        with pytest.raises(TypeError) as got:
            op(*args)
        assert str(got.value) == str(expected.value)


def test_layouts_that_kernels_cannot_walk_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="k must be contiguous along its last axis"):
        ops.flash(Q, normal(5, 1, 16)[:, :, ::2], V, **E)
    with pytest.raises(ValueError, match="v has negative strides"):
        ops.flash(Q, K, V[::-1], **E)


@pytest.mark.parametrize("op", ["flash", "standard"])
def test_transposed_inputs_are_never_misread(op: str) -> None:
    q, k = np.ascontiguousarray(Q.swapaxes(0, 1)).swapaxes(0, 1), np.asfortranarray(normal(1, 5, 8)[0])[:, None]
    expected = getattr(attention, op)(q, np.ascontiguousarray(k), V)
    np.testing.assert_allclose(getattr(ops, op)(q, np.ascontiguousarray(k), V, **E).out, expected.out, atol=1e-6)


@pytest.mark.parametrize("op", ["flash", "standard", "split_kv"])
@pytest.mark.parametrize(("n", "T", "Dv"), [(0, 5, 8), (3, 0, 8), (0, 0, 8), (3, 5, 0)])
def test_empty_tensors_give_the_reference_s_answer(op: str, n: int, T: int, Dv: int) -> None:
    q, k, v = normal(n, 2, 8), normal(T, 1, 8), normal(T, 1, Dv)
    got, expected = getattr(ops, op)(q, k, v, **E), getattr(attention, op)(q, k, v, tile=(64, 64))
    assert (got.out.shape, got.lse.shape) == (expected.out.shape, expected.lse.shape)
    np.testing.assert_allclose(got.out, expected.out)
    np.testing.assert_allclose(got.lse, expected.lse, rtol=1e-6)


def test_an_empty_batch() -> None:
    tables = np.zeros((0, 3), np.int32)
    for op in ("paged", "paged_gather", "split_kv"):
        result = getattr(ops, op)(normal(0, 2, 8), CACHE, CACHE, tables, np.zeros(0, np.int32), **E)
        assert (result.out.shape, result.lse.shape) == ((0, 2, 8), (2, 0))


def test_anything_with_dlpack_goes_in() -> None:
    class Foreign:
        """An array of somebody else's, that can be taken over by DLPack."""

        def __init__(self, array: np.ndarray) -> None:
            self.array = array

        def __dlpack__(self, **keys: Any) -> Any:
            return self.array.__dlpack__(**keys)

        def __dlpack_device__(self) -> Any:
            return self.array.__dlpack_device__()

    result = ops.flash(*(Foreign(x.copy()) for x in (Q, K, V)), **E)
    np.testing.assert_array_equal(result.out, ops.flash(Q, K, V, **E).out)
    for wrong in ("q", Q.tolist(), None):  # a list would be float64, which no kernel stores
        with pytest.raises(TypeError) as expected:
            attention.flash(wrong, K, V)
        with pytest.raises(TypeError, match=f"^{expected.value}$"):
            ops.flash(wrong, K, V, **E)


def test_inputs_are_left_alone() -> None:
    arrays = [x.copy() for x in (Q, K, V)]
    ops.flash(*arrays, **E)
    for array, before in zip(arrays, (Q, K, V), strict=True):
        np.testing.assert_array_equal(array, before)


def test_layers_are_chosen_as_in_the_reference() -> None:
    layers = normal(2, 4, 2, 1, 8)
    args = (Q[:1], layers, layers + 1, TABLE, [5])
    np.testing.assert_allclose(ops.paged(*args, layer=1, **E).out, attention.paged(*args, layer=1).out, atol=1e-6)
    with pytest.raises(IndexError, match="layer 2 of k_cache was asked for"):
        ops.paged(*args, layer=2, **E)


def test_bfloat16_comes_out_as_it_went_in() -> None:
    x = normal(20, 1, 32, dtype=ml_dtypes.bfloat16)
    for form in ("scalar", "mma"):
        out = ops.flash(x, x, x, causal=True, form=form, **E).out
        assert out.dtype == ml_dtypes.bfloat16
        expected = attention.flash(x, x, x, causal=True).out.astype(np.float32)
        np.testing.assert_allclose(out.astype(np.float32), expected, atol=2**-6)


def test_the_parts_of_a_joint_qkv_are_counted_apart() -> None:
    qkv = normal(20, 8, 32)
    q, k, v = qkv[:, :4], qkv[:, 4:6], qkv[:, 6:]
    apart, joint = (ops.flash(*x, **E) for x in ((q.copy(), k.copy(), v.copy()), (q, k, v)))
    np.testing.assert_array_equal(joint.out, apart.out)
    assert joint.ledger == apart.ledger


def test_a_prepared_call_runs_as_often_as_it_is_asked() -> None:
    q, k = normal(5, 2, 32), normal(9, 1, 32)
    prepared = ops.flash.prepare(q, k, k, **E)
    assert prepared.launches[0].trace is None  # nothing ran yet
    called, first, again = ops.flash(q, k, k, **E), prepared.result(), prepared.result()
    for result in (first, again):
        np.testing.assert_array_equal(result.out, called.out)
        assert result.ledger == called.ledger


def test_an_operation_shows_what_a_caller_gives_and_gets() -> None:
    for name in ops.__all__:
        op = getattr(ops, name)
        signature = inspect.signature(op)
        assert repr(op) == f"<operation gpu.ops.{name}>"
        assert signature.return_annotation in ("Result", "Ledger", "Rotated")
        assert signature.parameters["runtime"].default == "auto"
        assert op.__doc__


def test_operations_travel_between_processes() -> None:
    for name in ops.__all__:
        op = getattr(ops, name)
        assert pickle.loads(pickle.dumps(op)) is op
        assert copy.deepcopy(op) is op
    bound = pickle.loads(pickle.dumps(partial(ops.flash.prepare, **E)))
    np.testing.assert_array_equal(bound(Q, K, V).result().out, ops.flash(Q, K, V, **E).out)


def test_calls_side_by_side_keep_their_own_counts() -> None:
    """They share compiled kernels, whose `trace` is that of whichever launch was last."""
    first, second = (ops.flash.prepare(x, x, x, **E) for x in (normal(40, 1, 32), normal(70, 1, 32)))
    function: Any = first.launches[0].module.get_function("flash")
    assert function is second.launches[0].module.get_function("flash")
    launch = function.launch

    def interrupted(*args: Any, **keys: Any) -> Any:
        outcome = launch(*args, **keys)
        function.outcome = None  # as at the start of somebody else's launch
        return outcome

    function.launch = interrupted
    try:
        counted = [prepared.result().ledger.total(tensor="q") for prepared in (first, second)]
    finally:
        del function.launch
    assert counted == [40 * 32 * 4, 70 * 32 * 4]


def test_auto_takes_tensor_cores_where_they_serve() -> None:
    def function(x: np.ndarray, **keys: Any) -> str:
        return ops.flash.prepare(x, x, x, **E, **keys).launches[0].function

    assert function(normal(64, 1, 64, dtype=np.float16)) == "flash_mma"
    assert function(normal(64, 1, 64)) == "flash"  # float32
    assert function(normal(4, 1, 64, dtype=np.float16)) == "flash"  # too few rows
    assert function(normal(64, 1, 72, dtype=np.float16)) == "flash"  # 72 is no multiple of 16


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize(("op", "keys"), [
    ("flash", {}), ("flash", {"form": "mma"}), ("standard", {}), ("split_kv", {}), ("split_kv", {"handover": "state"}),
])  # fmt: skip
def test_a_score_that_is_no_number_is_told_by_the_lse(op: str, keys: dict[str, Any], bad: float) -> None:
    """An LSE of -inf would say that the row saw nothing, and who merges it would drop what is NaN without a word."""
    dtype = np.float16 if keys.get("form") else np.float32
    q, k, v = normal(3, 2, 16, dtype=dtype), normal(70, 1, 16, dtype=dtype), normal(70, 1, 16, dtype=dtype)
    k[40, 0, 3] = bad
    q[0] = bad
    reference = {name: value for name, value in keys.items() if name != "form"}
    with np.errstate(invalid="ignore"):
        expected = getattr(attention, op)(q, k, v, causal=True, align="top-left", tile=(16, 16), **reference)
        spoilt = getattr(attention, op)(q, k, v, tile=(16, 16), **reference)
    assert np.isnan(expected.lse).tolist() == [[True, False, False]] * 2
    got = getattr(ops, op)(q, k, v, causal=True, align="top-left", tile=(16, 16), **keys, **E)
    np.testing.assert_allclose(got.lse, expected.lse, rtol=2e-3)
    np.testing.assert_array_equal(np.isnan(got.out), np.isnan(expected.out))
    everywhere = getattr(ops, op)(q, k, v, tile=(16, 16), **keys, **E)
    assert np.isnan(spoilt.lse).sum() > 2
    np.testing.assert_array_equal(np.isnan(everywhere.lse), np.isnan(spoilt.lse))
    np.testing.assert_array_equal(np.isnan(everywhere.out), np.isnan(spoilt.out))
    with pytest.raises(ValueError, match="NaN"):
        ops.merge(everywhere.out, everywhere.lse, got.out, got.lse, **E)


def test_caches_are_written_in_place_or_refused() -> None:
    cache = np.zeros((2, 2, 1, 8), np.float32)
    cache.flags.writeable = False
    with pytest.raises(ValueError, match="k_cache is read-only and would be written"):
        ops.append(K[:1], V[:1], [0], cache, cache, **E)
    with pytest.raises(ValueError, match="run in no order"):
        ops.copy_blocks(CACHE, CACHE.copy(), [[0, 1], [1, 2]], **E)
    with pytest.raises(TypeError, match="bytes of one type"):
        ops.append(K[:1], V[:1].astype(np.float16), [0], cache.copy(), cache.copy(), **E)
    k, v, k2, v2 = CACHE.copy(), CACHE.copy() + 1, CACHE.copy(), CACHE.copy() + 1
    ops.copy_blocks(k, v, [[0, 1]], **E)
    cache_kernels.copy_blocks(k2, v2, [[0, 1]])
    np.testing.assert_array_equal(k, k2)
    np.testing.assert_array_equal(v, v2)


def test_a_cache_of_pytorch_s_on_the_host_is_no_cache_of_a_gpu_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be copied to the GPU and the copy written, in vain."""

    class Tensor:
        is_cuda = False

    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(Tensor=Tensor))
    with pytest.raises(ValueError, match="the caches lie on the host and would be written on the GPU"):
        caches(SimpleNamespace(name="cupy"), Tensor(), Tensor())  # type: ignore[arg-type]


def test_split_counts_fill_the_device_and_no_more() -> None:
    """4 programs a multiprocessor: a batch of 64 x 8 has enough by itself on 100; one of 8 needs 50 splits."""
    keys: dict[str, Any] = {"H": 32, "G": 8, "D": 128, "packed": True, "block_size": 16, "tile": (64, 64)}
    assert choose_splits(Plan.of([(1, 8192)] * 64, **keys), 100) == 1
    assert choose_splits(Plan.of([(1, 8192)], **keys), 100) == 50
    assert choose_splits(Plan.of([(1, 300)], **keys), 100) == 2  # two tiles of 64 a split at least
    assert choose_splits(Plan.of([(1, 0)], **keys), 100) == 1
    assert choose_splits(Plan.of([], **keys), 100) == 1


def test_splits_are_counted_out_where_none_are_given() -> None:
    """The emulator's 2 multiprocessors take 8 programs: 8 splits of one query and head, of 2 tiles of 128 at least."""
    x = normal(3000, 1, 8)
    assert (
        ops.split_kv(x[:1], x, x, num_splits=None, **E).ledger.total(tensor="lse_partial", direction="write") == 8 * 4
    )
    few = x[:300]
    assert (
        ops.split_kv(x[:1], few, few, num_splits=None, **E).ledger.total(tensor="lse_partial", direction="write") == 4
    )


def test_default_tiles_fit_two_blocks_a_multiprocessor() -> None:
    for D in (32, 64, 96, 128, 256):
        for itemsize in (2, 4):
            rows, keys = default_tile(D, D, itemsize)
            assert rows * D * itemsize + keys * 2 * D * itemsize <= 100 * 1024


def test_a_device_with_less_shared_memory_gets_smaller_tiles() -> None:
    from gpu.runtime import EmulatorRuntime

    x = normal(128, 1, 128, dtype=np.float16)
    tiles = []
    for kib in (227, 99, 64):
        runtime = EmulatorRuntime()
        runtime.shared_nbytes = kib * 1024  # type: ignore[attr-defined]
        prepared = ops.flash.prepare(x, x, x, runtime=runtime)
        assert prepared.plan is not None
        assert prepared.launches[0].shared_nbytes < kib * 1024
        tiles.append((prepared.plan.Br, prepared.plan.Bc))
    assert tiles == [(128, 64), (64, 64), (64, 32)]


def test_a_decoder_generates_the_same_tokens_with_the_kernels() -> None:
    decoder = model.random_decoder(seed=3, num_layers=1)
    ids = [5, 17, 200, 9, 33, 41, 8]
    expected = decoder.generate(ids, 4, attention="paged", block_size=4)
    for name in ("paged", "paged_gather", "split_kv"):
        kernels = model.Attention(f"gpu {name}", paged=partial(getattr(ops, name), **E))
        assert decoder.generate(ids, 4, attention=kernels, block_size=4) == expected
    flash = model.Attention("gpu flash", contiguous=partial(ops.flash, **E))
    assert decoder.generate(ids, 4, attention=flash) == expected


def test_runtimes_by_name() -> None:
    assert runtimes.get("emulator").name == "emulator"
    if not runtimes.gpu_present():
        with pytest.raises(RuntimeError, match="needs CuPy and a GPU"):
            ops.flash(Q, K, V, runtime="cupy")
        assert ops.flash(Q, K, V).ledger.total(tensor="q") == Q.nbytes
