"""What a device report times: shapes that serving meets, each with its closed-form ledger."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpu import ops
from gpu.ops.launch import Prepared
from gpu.runtime import Runtime
from refsim.cost import closed_form, closed_form_cache
from refsim.machine import Ledger
from refsim.numerics import DTYPES

DTYPE = "bfloat16"


@dataclass(frozen=True)
class Sizes:
    """How large the workloads are: as in serving, or as small as an emulator likes them."""

    sequences: int = 64
    keys: int = 8192
    long_keys: int = 131_072
    prompt: int = 16_384
    chunk: int = 2048
    H: int = 32
    G: int = 8
    D: int = 128
    block_size: int = 16


FULL = Sizes()
SMOKE = Sizes(sequences=2, keys=70, long_keys=150, prompt=64, chunk=20, H=4, G=2, D=32, block_size=8)


@dataclass(frozen=True)
class Workload:
    """One thing to time. `prepare` puts its inputs on the device; `ledger` says what the call moves.

    kind: "memory" is judged by bytes a second, "matrix" by FLOPs a second.
    """

    name: str
    kind: str
    prepare: Callable[[Runtime], Prepared]
    ledger: Callable[[Prepared], Ledger]
    rival: str | None = None  # what a user would pick instead: see rivals.py


def random(runtime: Runtime, *shape: int, seed: int = 0) -> Any:
    """Normal numbers in bfloat16 on the device, drawn there: a cache of gigabytes takes long from a host."""
    if runtime.name != "cupy":
        return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32).astype(DTYPES[DTYPE])
    import cupy

    rng, size = cupy.random.default_rng(seed), int(np.prod(shape))
    out = cupy.empty(size, np.uint16)
    step = 1 << 26
    for start in range(0, size, step):
        part = rng.standard_normal(min(step, size - start), dtype=np.float32)
        out[start : start + step] = (part.view(np.uint32) >> 16).astype(np.uint16)
    return out.view(DTYPES[DTYPE]).reshape(shape)


def caches(runtime: Runtime, s: Sizes, sequences: int, keys: int) -> tuple[Any, ...]:
    """k_cache, v_cache, block_tables, seq_lens of sequences whose blocks lie all over the pool."""
    per_sequence = -(-keys // s.block_size)
    blocks = sequences * per_sequence
    tables = np.random.default_rng(1).permutation(blocks).astype(np.int32).reshape(sequences, per_sequence)
    shape = (blocks, s.block_size, s.G, s.D)
    lengths = np.full(sequences, keys, np.int32)
    return random(runtime, *shape, seed=2), random(runtime, *shape, seed=3), tables, lengths


def workloads(s: Sizes = FULL) -> list[Workload]:
    """All of them, the most telling first: a report that runs out of time has those."""

    def decode(runtime: Runtime) -> Prepared:
        return ops.paged.prepare(
            random(runtime, s.sequences, s.H, s.D), *caches(runtime, s, s.sequences, s.keys), runtime=runtime
        )

    def split(runtime: Runtime, sequences: int, keys: int) -> Prepared:
        q = random(runtime, sequences, s.H, s.D)
        return ops.split_kv.prepare(q, *caches(runtime, s, sequences, keys), num_splits=None, runtime=runtime)

    def prefill(runtime: Runtime, n: int, **keys: Any) -> Prepared:
        q, k, v = (random(runtime, n, heads, s.D, seed=i) for i, heads in enumerate((s.H, s.G, s.G)))
        return ops.flash.prepare(q, k, v, runtime=runtime, **keys)

    def chunk(runtime: Runtime) -> Prepared:
        starts = np.array([0, s.chunk], np.int32)
        held = caches(runtime, s, 1, s.keys)
        q = random(runtime, s.chunk, s.H, s.D)
        return ops.paged.prepare(q, *held, cu_seqlens_q=starts, causal=True, form="mma", runtime=runtime)

    def stage_a(runtime: Runtime) -> Prepared:
        few = max(1, s.sequences // 8)
        return ops.paged_gather.prepare(
            random(runtime, few, s.H, s.D), *caches(runtime, s, few, s.keys), runtime=runtime
        )

    def three_kernels(runtime: Runtime) -> Prepared:
        n = s.prompt // 4
        q, k, v = (random(runtime, n, heads, s.D, seed=i) for i, heads in enumerate((s.H, s.G, s.G)))
        return ops.standard.prepare(q, k, v, runtime=runtime)

    def new_tokens(runtime: Runtime) -> Prepared:
        k_cache, v_cache, *_ = caches(runtime, s, 1, s.keys)
        k, v = (random(runtime, s.chunk, s.G, s.D, seed=seed) for seed in (0, 1))
        slots = np.random.default_rng(0).permutation(k_cache.shape[0] * s.block_size)[: s.chunk]
        return ops.append.prepare(k, v, slots, k_cache, v_cache, runtime=runtime)

    def block_copies(runtime: Runtime) -> Prepared:
        k_cache, v_cache, tables, _ = caches(runtime, s, 2, s.keys)
        return ops.copy_blocks.prepare(k_cache, v_cache, np.stack([tables[0], tables[1]], axis=1), runtime=runtime)

    def two_halves(runtime: Runtime) -> Prepared:
        outs = [random(runtime, s.chunk, s.H, s.D, seed=seed) for seed in (0, 1)]
        lses = [runtime.asarray(np.full((s.H, s.chunk), value, np.float32)) for value in (1.0, 2.0)]
        return ops.merge.prepare(outs[0], lses[0], outs[1], lses[1], runtime=runtime)

    def turns(runtime: Runtime) -> Prepared:
        x = random(runtime, s.chunk, s.H, s.D)
        return ops.rope.prepare(x, np.arange(s.chunk), 10_000.0 ** -(np.arange(s.D // 2) / (s.D // 2)), runtime=runtime)

    def planned(form: Callable[..., Ledger], **keys: Any) -> Callable[[Prepared], Ledger]:
        def ledger(prepared: Prepared) -> Ledger:
            assert prepared.plan is not None
            return form(prepared.plan, **keys)

        return ledger

    def split_ledger(prepared: Prepared) -> Ledger:
        return planned(closed_form.split_kv, num_splits=prepared.launches[0].grid[2])(prepared)

    per_cache = (s.G, s.D, s.D, DTYPE)
    blocks = -(-s.keys // s.block_size)
    many, one = f"{s.sequences} x {s.keys} tokens", f"1 x {s.long_keys} tokens"
    return [
        Workload(f"paged decode, {many}", "memory", decode, planned(closed_form.paged), "decode"),
        Workload(f"split-KV decode, {many}", "memory", lambda r: split(r, s.sequences, s.keys), split_ledger),
        Workload(f"split-KV decode, {one}", "memory", lambda r: split(r, 1, s.long_keys), split_ledger, "long decode"),
        Workload(
            f"flash prefill, {s.prompt} tokens", "matrix", lambda r: prefill(r, s.prompt, form="mma"),
            planned(closed_form.flash), "prefill",
        ),
        Workload(
            f"flash prefill, {s.prompt} tokens, causal", "matrix",
            lambda r: prefill(r, s.prompt, form="mma", causal=True), planned(closed_form.flash), "causal prefill",
        ),
        Workload(
            f"paged prefill, {s.chunk} of {s.keys} tokens", "matrix", chunk, planned(closed_form.paged, ragged=True)
        ),
        Workload(
            f"flash prefill without tensor cores, {s.prompt // 4} tokens", "matrix",
            lambda r: prefill(r, s.prompt // 4, form="scalar"), planned(closed_form.flash),
        ),
        Workload(f"standard attention, {s.prompt // 4} tokens", "memory", three_kernels, planned(closed_form.standard)),
        Workload(
            f"gather and attend, {max(1, s.sequences // 8)} x {s.keys} tokens", "memory", stage_a,
            planned(closed_form.paged_gather),
        ),
        Workload(
            f"append, {s.chunk} tokens", "memory", new_tokens,
            lambda _: closed_form_cache.append(s.chunk, 0, *per_cache),
        ),
        Workload(
            f"copy {blocks} blocks", "memory", block_copies,
            lambda _: closed_form_cache.copy_blocks(blocks, s.block_size, *per_cache),
        ),
        Workload(
            f"merge, {s.chunk} tokens", "memory", two_halves,
            lambda _: closed_form_cache.merge(s.chunk, s.H, s.D, DTYPE),
        ),
        Workload(
            f"RoPE, {s.chunk} tokens", "memory", turns, lambda _: closed_form_cache.rope(s.chunk, s.H, s.D, DTYPE)
        ),
    ]  # fmt: skip
