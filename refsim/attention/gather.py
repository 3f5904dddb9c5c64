"""Stage A's copy: a program for each part of a block and KV head moves it to where its sequence lies contiguously."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import numpy as np

from refsim.attention.call import Call, ContiguousKeys
from refsim.attention.paged_keys import PagedKeys
from refsim.attention.plan import Plan, Sequence
from refsim.machine import Step, Watch


def gather_keys(watch: Watch, call: Call) -> Generator[Step | None, None, None]:
    """Copy the keys and values that each sequence sees, and let the call read the copy from here on."""
    plan, machine, paged = call.plan, call.machine, call.keys
    assert isinstance(paged, PagedKeys)
    starts = np.cumsum([0, *(seq.T for seq in plan.sequences)], dtype=np.int32)
    k = np.full((starts[-1], plan.G, plan.D), np.nan, paged.k.dtype)
    v = np.full((starts[-1], plan.G, plan.Dv), np.nan, paged.v.dtype)
    cu_seqlens_k = machine.hbm("cu_seqlens_k", starts)
    k_copy = machine.hbm("k", k.swapaxes(0, 1)[:, None], writable=True)
    v_copy = machine.hbm("v", v.swapaxes(0, 1)[:, None], writable=True)
    parts = [sum(count for _, count, _ in _runs(plan, seq)) for seq in plan.sequences]
    with machine.kernel("gather") as kernel:
        for seq in plan.sequences:
            # As many programs for every sequence as the longest one needs; the rest read the lengths, and stop.
            with kernel.programs(plan.G, max(parts) - parts[seq.index]) as prog:
                call.load_lengths(prog, seq)
            for first, count, size in _runs(plan, seq):
                with kernel.programs(plan.G, count) as prog:
                    call.load_lengths(prog, seq)
                    prog.load_index(cu_seqlens_k, seq.index)
                    at = first + np.arange(count * size).reshape(count, size)
                    blocks = at[:, 0] // paged.block_size
                    ids = prog.load_index(paged.block_tables, (seq.index, blocks), per_program=1).astype(np.int64)
                    slots = at % paged.block_size
                    for source, copy, head_dim in ((paged.k, k_copy, plan.D), (paged.v, v_copy, plan.Dv)):
                        buffer = prog.buffer(source.name, (size, head_dim), source.dtype)
                        tile = prog.load(source, (slice(None), 0, ids[:, None], slots), into=buffer)
                        prog.store(tile, copy, (slice(None), 0, starts[seq.index] + at))
                index = {"sequence": seq.index, "first_key": first, "stop_key": first + count * size}
                yield watch.step("copy", machine, "gather", index)
    call.keys = ContiguousKeys(machine, k, v, starts.tolist(), starts)


def _runs(plan: Plan, seq: Sequence) -> Iterator[tuple[int, int, int]]:
    """(first key, programs, keys a program): the parts of blocks that a sequence sees, equal ones side by side."""
    if seq.n == 0:
        return
    first, stop = plan.key_span(seq, range(seq.n))
    unit = plan.unit
    head_stop = min(-(-first // unit) * unit, stop)
    tail_start = max(stop // unit * unit, head_stop)
    if first < head_stop:
        yield first, 1, head_stop - first
    if head_stop < tail_start:
        yield head_stop, (tail_start - head_stop) // unit, unit
    if tail_start < stop:
        yield tail_start, 1, stop - tail_start
