"""Wrong inputs: each is refused in words that name what was given and what was expected."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from refsim import attention, cost
from refsim.attention import Plan
from refsim.machine import Machine, SramOverflow
from refsim.numerics import Precision


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


Q, K, V = normal(3, 4, 8), normal(5, 2, 8), normal(5, 2, 6)
CACHE = normal(6, 4, 2, 8)


@pytest.mark.parametrize("call", [attention.standard, attention.flash, attention.split_kv])
@pytest.mark.parametrize(
    ("args", "keywords", "error", "words"),
    [
        ((Q[0], K, V), {}, ValueError, r"q must have 3 axes .* got shape \(4, 8\)"),
        ((Q, K[:4], V), {}, ValueError, r"k and v must agree"),
        ((Q[:, :3], K, V), {}, ValueError, r"3 query heads can't share 2 KV heads"),
        ((Q[..., :4], K, V), {}, ValueError, r"one head_dim, got 4 and 8"),
        ((Q[..., :0], K[..., :0], V), {}, ValueError, r"head_dim is 0"),
        ((Q.astype(int), K, V), {}, TypeError, r"q: .*int64.* choose one of float64"),
        (([[[1.0]]], K, V), {}, TypeError, r"q must be an array, got list"),
        ((Q, K, V), {"window": 3}, ValueError, r"window must be \(keys before, keys after\)"),
        ((Q, K, V), {"window": ("a", 0)}, ValueError, r"keys before must be a whole number"),
        ((Q, K, V), {"window": (0, np.inf)}, ValueError, r"keys after must be a whole number"),
        ((Q, K, V), {"window": (-2, 0)}, ValueError, r"keys before must be a whole number from -1, or None"),
        ((Q, K, V), {"align": "left"}, ValueError, r"align must be"),
        ((Q, K, V), {"softcap": -1.0}, ValueError, r"softcap must be a positive number"),
        ((Q, K, V), {"softcap": "1"}, ValueError, r"softcap must be a positive number"),
        ((Q, K, V), {"scale": np.nan}, ValueError, r"scale must be a finite number"),
        ((Q, K, V), {"scale": "1"}, ValueError, r"scale must be a finite number, got '1'"),
        ((Q, K, V), {"alibi_slopes": [1.0]}, ValueError, r"alibi_slopes must hold one number a query head"),
        ((Q, K, V), {"sinks": [np.inf] * 4}, ValueError, r"sinks must be finite"),
        *(
            ((Q, K, V), {"tile": t}, ValueError, r"tile must be \(rows, keys\)")
            for t in [(0, 4), (4, 0), 4, "44", (4,)]
        ),
        ((Q, K, V), {"cu_seqlens_q": [0, 3]}, ValueError, r"needs both cu_seqlens_q and cu_seqlens_k"),
        ((Q, K, V), {"cu_seqlens_q": [0, 2], "cu_seqlens_k": [0, 5]}, ValueError, r"rise from 0 to the number of tok"),
        ((Q, K, V), {"cu_seqlens_q": [0, 3], "cu_seqlens_k": [0, 5, 5]}, ValueError, r"1 sequences and cu_seqlens_k 2"),
        ((Q, K, V), {"cu_seqlens_q": [0.0, 3.0], "cu_seqlens_k": [0, 5]}, TypeError, r"must be integers"),
        ((Q, K, V), {"machine": "A100"}, TypeError, r"machine must be a refsim.Machine.* got 'A100'"),
        ((Q, K, V), {"precision": "float16"}, TypeError, r"precision must be a Precision.* got 'float16'"),
        ((Q, K, V), {"colour": "red"}, TypeError, r"no keyword colour; what it computes is said by scale, causal, "),
        ((Q.astype(">f4"), K, V), {}, TypeError, r"q: .*bytes in the other order.*newbyteorder"),
        ((Q, K, V), {"causal": "no"}, TypeError, r"causal must be True or False, got 'no'"),
        ((Q, K, V), {"causal": None}, TypeError, r"causal must be True or False, got None"),
        ((Q, K, V), {"scale": np.complex64(1j)}, ValueError, r"scale must be a finite number"),
        ((Q, K, V), {"scale": 10**400}, ValueError, r"scale must be a finite number"),
        *(
            (
                (Q, K, V),
                {name: value},
                ValueError,
                rf"{words} must fit float32, in which scores are computed, got .*e\+",
            )
            for name, value, words in [
                ("scale", 1e39, "scale"),
                ("softcap", 1e39, "softcap"),
                ("softcap", 1e-300, "scale / softcap"),
                ("sinks", [0, 0, 0, -1e39], "sinks"),
                ("alibi_slopes", [1e39, 0, 0, 0], "alibi_slopes"),
            ]
        ),
        ((Q, K, V), {"cu_seqlens_q": [0, [1, 3]], "cu_seqlens_k": [0, 5]}, ValueError, r"cu_seqlens_q .* 1 axis; rows"),
        (
            (Q, K, V),
            {"precision": Precision.of("float16")},
            TypeError,
            r"q is float32 and precision.storage float16.*begin with Precision.of\('float32'",
        ),
    ],
)
def test_contiguous(call: Any, args: Any, keywords: dict[str, Any], error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        call(*args, **keywords)


@pytest.mark.parametrize("call", [attention.paged, attention.paged_gather, attention.split_kv])
@pytest.mark.parametrize(
    ("tables", "lens", "keywords", "error", "words"),
    [
        ([[0, 6]], [8], {}, ValueError, r"block_tables\[0, 1\] is 6, and the cache has blocks 0 to 5"),
        ([[0, -1]], [5], {}, ValueError, r"block_tables\[0, 1\] is -1"),
        ([[-(2**31), 1]], [5], {}, ValueError, r"block_tables\[0, 0\] is -2147483648"),
        ([[0]], [5], {}, ValueError, r"needs 2 table entries; block_tables has 1 columns"),
        ([[0]], [-1], {}, ValueError, r"seq_lens can't be negative"),
        ([[0]], [1, 2], {}, ValueError, r"1 rows and seq_lens 2 lengths"),
        ([[0.0]], [1], {}, TypeError, r"block_tables must be integers"),
        ([0], [1], {}, TypeError, r"block_tables must be integers with 2 axes"),
        ([[0], [1]], [1, 1], {}, ValueError, r"q has 1 tokens for 2 sequences"),
        ([[2**40, 0]], [5], {}, ValueError, r"block_tables\[0, 0\] is 1099511627776"),
        ([[0, 1], [2]], [5, 1], {}, ValueError, r"block_tables must be integers with 2 axes; rows differ in length"),
        *(([[0]], [1], {"layer": x}, TypeError, rf"layer must be a whole number, got {x}") for x in (0.0, False)),
        ([[0]], [1], {"pack_gqa": "no"}, TypeError, r"pack_gqa must be True or False, got 'no'"),
        ([[0]], [1], {"layer": 0}, ValueError, r"must be \(num_blocks, block_size, num_kv_heads, head_dim\)"),
        ([[0]], [1], {"cu_seqlens_q": [0, 1, 1]}, ValueError, r"2 sequences and seq_lens 1"),
    ],
)
def test_paged(call: Any, tables: Any, lens: Any, keywords: dict[str, Any], error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        call(Q[:1], CACHE, CACHE, tables, lens, **keywords)


def test_a_full_block_is_fine_and_one_token_more_is_not() -> None:
    cache = normal(1, 256, 1, 4)
    q = normal(1, 1, 4)
    assert np.isfinite(attention.paged(q, cache, cache, [[0]], [256]).out).all()
    with pytest.raises(ValueError, match="257 tokens in blocks of 256 and needs 2"):
        attention.paged(q, cache, cache, [[0]], [257])


def test_caches_that_disagree_or_hold_nothing() -> None:
    with pytest.raises(ValueError, match="k_cache and v_cache must agree"):
        attention.paged(Q[:1], CACHE, CACHE[:, :3], [[0]], [1])
    with pytest.raises(ValueError, match="a block must hold at least one token"):
        attention.paged(Q[:1], CACHE[:, :0], CACHE[:, :0], [[0]], [0])
    with pytest.raises(IndexError, match="layer 2 of k_cache was asked for; it has layers 0 to 1"):
        attention.paged(Q[:1], CACHE[None].repeat(2, 0), CACHE[None].repeat(2, 0), [[0]], [1], layer=2)
    with pytest.raises(ValueError, match="is 0, and the cache has no blocks"):
        attention.paged(Q[:1], CACHE[:0], CACHE[:0], [[0]], [1])
    for args in ((Q[:1].tolist(), CACHE, CACHE), (Q[:1], CACHE.tolist(), CACHE), (Q[:1], CACHE, CACHE.tolist())):
        with pytest.raises(TypeError, match=r"(q|k_cache|v_cache) must be an array, got list"):
            attention.paged(*args, [[0]], [1])
    with pytest.raises(ValueError, match="head_dim"):
        attention.paged(Q[:1, :, :4], CACHE, CACHE, [[0]], [1])


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"num_splits": 0}, "num_splits must be a whole number from 1"),
        ({"num_splits": 1.5}, "num_splits must be a whole number from 1"),
        ({"num_splits": None}, "num_splits must be a whole number from 1"),
        ({"handover": "both"}, "handover must be one of lse, state"),
        ({"seq_lens": [1]}, "needs both block_tables and seq_lens"),
        ({"layer": 0}, "layer selects from a paged cache"),
        ({"block_tables": [[0]], "seq_lens": [1], "cu_seqlens_k": [0, 1]}, "cu_seqlens_k belongs to contiguous keys"),
    ],
)
def test_split_kv(keywords: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        attention.split_kv(Q, K, V, **keywords)


def test_a_tile_that_does_not_fit_names_need_limit_and_buffers() -> None:
    x = normal(256, 1, 64)
    # q, k, v 128 x 64 each, then s 128 x 128, all float32: the fourth buffer passes 100,000 B
    need, buffer = "needs 163,840 B on chip and the machine has 100,000 B", r"q \(128, 1, 64\) float32 32,768 B"
    with pytest.raises(SramOverflow, match=f"{need}; 's' did not fit.*{buffer}"):
        attention.flash(x, x, x, tile=(128, 128), machine=Machine(sram_nbytes=100_000))


def test_nothing_fits_a_tiny_machine() -> None:
    x = normal(4, 1, 64)
    with pytest.raises(SramOverflow, match="Use a smaller tile"):
        attention.flash(x, x, x, machine=Machine(sram_nbytes=64))


def test_what_is_no_device_and_no_number_is_named() -> None:
    with pytest.raises(TypeError, match=r"device must say its sram_nbytes.*got 'A100'"):
        Machine("A100")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"alibi_slopes must hold numbers, one a query head, got \['a'\]"):
        attention.flash(Q, K, V, alibi_slopes=["a"])


def test_an_array_of_another_library_is_told_how_to_become_one_of_numpys() -> None:
    class Tensor:
        shape, dtype = (3, 4, 8), "torch.float32"

    with pytest.raises(TypeError, match=r"q must have a NumPy dtype.*torch.float32.*np.from_dlpack"):
        attention.flash(Tensor(), K, V)


def test_plans() -> None:
    with pytest.raises(ValueError, match="lengths go from 0 to 2,147,483,647, an int32"):
        Plan.of([(1, 2**31)], H=1, G=1, D=4)
    with pytest.raises(ValueError, match="sequence 1 has -1 queries and 3 keys"):
        Plan.of([(1, 2), (-1, 3)], H=1, G=1, D=4)
    sizes = {"H": 4, "G": 2, "D": 4}
    for name, least, wrong in (
        *((name, 0, wrong) for name in ("H", "G", "D", "Dv") for wrong in (-4, 4.0, "4")),
        *(("block_size", 1, wrong) for wrong in (0, -1, 2.5, "2")),
    ):
        with pytest.raises(ValueError, match=f"{name} must be a whole number from {least}, got {wrong!r}"):
            Plan.of([(1, 2)], **sizes | {name: wrong})
    for lengths in ([5], 5, None, [(1.5, 2)], [("1", 2)], [(1, 2, 3)], [(np.nan, 2)]):
        with pytest.raises(
            ValueError, match=r"lengths must be pairs of whole numbers, \[\(queries, keys\), ...\], got"
        ):
            Plan.of(lengths, **sizes)


def test_numpys_narrow_integers_are_sizes_like_any_other() -> None:
    narrow = Plan.of([(np.int32(10**6), np.int32(10**6))], H=np.int8(64), G=np.uint8(8), D=np.int16(128))
    assert cost.closed_form.standard(narrow) == cost.closed_form.standard(Plan.of([(10**6, 10**6)], H=64, G=8, D=128))
