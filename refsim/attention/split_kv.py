"""Split-KV: programs share out the keys of one query, and a second kernel reduces their partial answers by LSE."""

from __future__ import annotations

from collections.abc import Generator
from itertools import product
from typing import Any, Literal

import numpy as np

from refsim import softmax
from refsim.attention.call import Call, Result
from refsim.attention.fold import OnChip, fold_keys
from refsim.attention.inputs import contiguous_call, paged_call
from refsim.attention.plan import Plan
from refsim.attention.shares import Share, share_out
from refsim.checks import one_of, whole_number
from refsim.machine import HBMArray, Kernel, Machine, Programs, Step, Watch, algorithm, side_by_side
from refsim.numerics import Precision

Handover = Literal["lse", "state"]


@algorithm
def split_kv(
    watch: Watch,
    q: Any,
    k: Any,
    v: Any,
    block_tables: Any = None,
    seq_lens: Any = None,
    *,
    num_splits: int = 4,
    handover: Handover = "lse",
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    layer: int | None = None,
    tile: tuple[int, int] | None = None,
    machine: Machine | None = None,
    precision: Precision | None = None,
    pack_gqa: bool = True,
    **variant: Any,
) -> Generator[Step | None, None, Result]:
    """Flash-decoding: `num_splits` programs a query tile, then a reduction. Over k (T, G, D) or over a paged cache.

    With block_tables and seq_lens, k and v are caches as in `paged`; without, they are contiguous as in `flash`.
    handover: what a split leaves in HBM for each row. "lse": its answer and LSE, Dv + 1 numbers; "state": its
    accumulator, m and l, Dv + 2 numbers. Splits that got no key leave the empty state and vanish in the reduction.
    num_splits may exceed the number of blocks. Other arguments and errors: as in `paged` and `flash`.

    Source: "Flash-Decoding for long-context inference".

    >>> import numpy as np
    >>> x = np.random.default_rng(0).standard_normal((1000, 1, 64), dtype=np.float32)
    >>> split_kv(x[:1], x, x, num_splits=4).ledger.total(tensor="lse_partial", direction="write")
    16
    """
    num_splits = check_split(num_splits, handover, block_tables, seq_lens, cu_seqlens_k, layer)
    if block_tables is None:
        call = contiguous_call(q, k, v, tile, machine, precision, cu_seqlens_q, cu_seqlens_k, pack_gqa, variant)
    else:
        call = paged_call(
            q, k, v, block_tables, seq_lens, tile, machine, precision, cu_seqlens_q, layer, pack_gqa, variant
        )
    parts = Partials(call, num_splits, handover)
    yield from _fold_splits(watch, call, parts)
    yield from _reduce(watch, call, parts)
    return call.result()


def check_split(
    num_splits: Any, handover: Any, block_tables: Any, seq_lens: Any, cu_seqlens_k: Any, layer: int | None
) -> int:
    """The number of splits, once what only a split call can get wrong is checked. Raises ValueError."""
    num_splits = check_splits(num_splits, handover)
    if (block_tables is None) != (seq_lens is None):
        raise ValueError("a paged cache needs both block_tables and seq_lens; only one was given")
    if block_tables is None and layer is not None:
        raise ValueError("layer selects from a paged cache; k and v are contiguous here")
    if block_tables is not None and cu_seqlens_k is not None:
        raise ValueError("cu_seqlens_k belongs to contiguous keys; a paged cache has seq_lens")
    return num_splits


def check_splits(num_splits: Any, handover: Any) -> int:
    """The number of splits; ValueError where it, or the handover, isn't one."""
    one_of("handover", handover, ("lse", "state"))
    return whole_number("num_splits", num_splits, 1)


class Partials:
    """What the splits leave in HBM, in the accumulation type: o_partial, and lse_partial or m_partial and l_partial."""

    def __init__(self, call: Call, num_splits: int, handover: Handover) -> None:
        plan, machine = call.plan, call.machine
        self.num_splits, self.handover = num_splits, handover
        acc = plan.precision.accumulate

        def partial(name: str, by_program: np.ndarray) -> HBMArray:
            """(splits, G, A, tokens, rho, ...) viewed as (G, A, splits, tokens, rho, ...)."""
            return machine.hbm(name, np.moveaxis(by_program, 0, 2), writable=True)

        o = np.full((num_splits, plan.tokens, plan.H, plan.Dv), np.nan, acc)
        self.o = partial("o_partial", call.by_program(o))
        self.scalars = [
            partial(name, call.lse_by_program(np.full((num_splits, plan.H, plan.tokens), np.nan, acc)))
            for name in (("lse_partial",) if handover == "lse" else ("m_partial", "l_partial"))
        ]


def _fold_splits(watch: Watch, call: Call, parts: Partials) -> Generator[Step | None, None, None]:
    with call.machine.kernel("split_kv") as kernel:
        call.idle_programs(kernel, splits=parts.num_splits)
        shares, threads = share_out(watch, call, num_splits=parts.num_splits)
        runs = [
            _fold_split(watch, kernel, share, parts, split, span)
            for share in shares
            for split, span in enumerate(call.plan.splits(share.seq, parts.num_splits))
        ]
        yield from side_by_side(runs, threads)


def _fold_split(
    watch: Watch, kernel: Kernel, share: Share, parts: Partials, split: int, keys: tuple[int, int]
) -> Generator[Step | None, None, None]:
    call, seq, query_tile, tokens, kv_heads = share
    plan = call.plan
    first, stop = plan.key_span(seq, tokens)
    index = {"sequence": seq.index, "query_tile": query_tile, "split": split}
    with kernel.programs(*plan.grid) as prog:
        chip = OnChip(prog, call, sinks=False)
        q = call.load_q(prog, seq, tokens, chip.q)
        state = chip.empty_state(len(tokens) * plan.rho)
        span = (max(first, keys[0]), min(stop, keys[1]))
        yield from fold_keys(watch, chip, state, q, seq, tokens, span, kernel.name, index)
        rows, at = (len(tokens), plan.rho), np.s_[kv_heads, :, split, call.at(seq, tokens)]
        if parts.handover == "lse":
            o, *scalars = softmax.finish_in_place(state)
        else:
            o, scalars = state.o, [state.m, state.l]
        prog.store(o.reshape(*rows, plan.Dv), parts.o, at)
        for scalar, target in zip(scalars, parts.scalars, strict=True):
            prog.store(scalar.reshape(*rows), target, at)
        left = dict(zip((t.name for t in parts.scalars), scalars, strict=True))
        yield watch.step("hand over", call.machine, kernel.name, index, o_partial=o, **left)


def _reduce(watch: Watch, call: Call, parts: Partials) -> Generator[Step | None, None, None]:
    """The second kernel: lse = ln sum e^lse_i, out = sum e^(lse_i - lse) o_i; a sink joins here, once.

    With the (m, l, acc) handover a split weighs e^(m_i - m), its sum is l_i and its o_i is not yet divided.
    """
    plan, machine, S = call.plan, call.machine, parts.num_splits
    acc = plan.precision.accumulate
    with machine.kernel("reduce") as kernel:
        call.idle_programs(kernel)
        for seq, i, tokens in call.tiles():
            index, rows = {"sequence": seq.index, "query_tile": i}, len(tokens) * plan.rho
            at = call.at(seq, tokens)
            with kernel.programs(*plan.grid) as prog:
                call.load_lengths(prog, seq)
                weights = _load_scalars(prog, plan, parts.scalars[0], at, S)
                m = weights.max(axis=-2)
                sinks = None
                if call.sinks is not None:
                    held = prog.load(call.sinks, ..., into=prog.buffer("sinks", (plan.rho,), acc))
                    sinks = held[..., np.arange(rows) % plan.rho]
                    m = np.maximum(m, sinks)
                shift = np.maximum(m, np.finfo(acc).min)
                np.subtract(weights, shift[..., None, :], out=weights)
                np.exp(weights, out=weights)
                if parts.handover == "state":
                    sums = _load_scalars(prog, plan, parts.scalars[1], at, S)
                    np.multiply(sums, weights, out=sums)
                    l = sums.sum(axis=-2)
                else:
                    l = weights.sum(axis=-2)
                if sinks is not None:
                    l += np.exp(sinks - shift)
                some = np.maximum(l, np.finfo(acc).tiny)
                np.divide(weights, some[..., None, :], out=weights)
                out = prog.buffer("o", (plan.rows, plan.Dv), acc).full(0, rows, plan.Dv)
                few = few_tokens(plan)
                o_buffer = prog.buffer("o_partial", (few, plan.rho, plan.Dv), acc)
                for split, first in product(range(S), range(0, len(tokens), few)):
                    part = slice(first, min(first + few, len(tokens)))
                    in_hbm = slice(at.start + part.start, at.start + part.stop)
                    in_tile = slice(part.start * plan.rho, part.stop * plan.rho)
                    o = prog.load(parts.o, np.s_[:, :, split, in_hbm], into=o_buffer)
                    o = o.reshape(in_tile.stop - in_tile.start, plan.Dv)
                    np.multiply(o, weights[..., split, in_tile, None], out=o)
                    np.add(out[..., in_tile, :], o, out=out[..., in_tile, :])
                lse = m + np.log(some)
                call.store(prog, seq, tokens, out, lse)
                yield watch.step("reduce", machine, "reduce", index, weights=weights, out=out, lse=lse)


def few_tokens(plan: Plan) -> int:
    """Tokens whose partial answers are on chip at once: about 16 rows, so that `out` and they fit where a tile did."""
    return min(plan.tile_tokens, max(1, 16 // plan.rho))


def _load_scalars(prog: Programs, plan: Plan, source: HBMArray, at: slice, num_splits: int) -> Any:
    """One number a split and row, (splits, rows)."""
    buffer = prog.buffer(source.name, (num_splits, plan.tile_tokens, plan.rho), plan.precision.accumulate)
    tile = prog.load(source, np.s_[:, :, :, at], into=buffer)
    return tile.reshape(num_splits, (at.stop - at.start) * plan.rho)
