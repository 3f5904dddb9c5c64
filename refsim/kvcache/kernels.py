"""What writes to a paged cache on a GPU, on the machine: new tokens through a slot mapping, and block copies."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import numpy as np

from refsim.checks import integers
from refsim.kvcache.address import check_no_slot_twice, slot_to_block
from refsim.machine import HBMArray, Ledger, Machine, Step, Watch, algorithm
from refsim.machine.machine import machine_of

if TYPE_CHECKING:
    from jaxtyping import Float, Int


@algorithm
def append(
    watch: Watch,
    k: Float[np.ndarray, "rows G D"],
    v: Float[np.ndarray, "rows G Dv"],
    slot_mapping: Int[np.ndarray, "n"],
    k_cache: Float[np.ndarray, "num_blocks block_size G D"],
    v_cache: Float[np.ndarray, "num_blocks block_size G Dv"],
    *,
    machine: Machine | None = None,
) -> Generator[Step | None, None, Ledger]:
    """Write row i of k and v to slot `slot_mapping[i]` of the caches, in place: a program a slot. Returns the ledger.

    -1 skips a row, and rows beyond the mapping (padding of a captured graph) are never read. Values are rounded to
    the caches' type.

    Raises ValueError, and writes nothing, for slots outside the cache or named twice, shapes that don't fit and caches
    that can't be written to; TypeError for caches of other types than `numerics` has.

    Source: the paged KV cache text, writing a token; the slot mapping of paged serving engines.

    >>> cache = np.zeros((2, 2, 1, 1), np.float32)
    >>> append(np.array([[[5.0]], [[6.0]]]), np.zeros((2, 1, 1)), [3, -1], cache, cache.copy()).total(tensor="k_cache")
    4
    >>> cache.ravel()
    array([0., 0., 0., 5.], dtype=float32)
    """
    k, v = np.asarray(k), np.asarray(v)
    slots = check_append(k, v, slot_mapping, k_cache, v_cache)
    machine = machine_of(machine).apart()
    to_k, to_v = _in_hbm(machine, k_cache, v_cache)
    rows = np.flatnonzero(slots >= 0)
    mapping = machine.hbm("slot_mapping", slots)
    with machine.kernel("append") as kernel:
        with kernel.programs(len(slots) - len(rows)) as prog:  # a slot of -1: read it, and stop
            prog.load_index(mapping, slots < 0, per_program=1)
        with kernel.programs(len(rows)) as prog:
            prog.load_index(mapping, rows, per_program=1)
            at = np.divmod(slots[rows], k_cache.shape[1])  # blocks, and slots in them
            loaded = []
            for name, new, cache in (("k", k, to_k), ("v", v, to_v)):
                buffer = prog.buffer(name, new.shape[1:], cache.dtype)
                loaded.append((prog.load(machine.hbm(name, new), rows, into=buffer), cache))
            for tile, cache in loaded:  # not before both are known to fit: nothing is written by halves
                prog.store(tile, cache, at)
            yield watch.step("write", machine, "append", {"rows": len(rows), "skipped": len(slots) - len(rows)})
    return machine.ledger()


@algorithm
def copy_blocks(
    watch: Watch,
    k_cache: Float[np.ndarray, "num_blocks block_size G D"],
    v_cache: Float[np.ndarray, "num_blocks block_size G Dv"],
    block_mapping: Int[np.ndarray, "pairs 2"],
    *,
    machine: Machine | None = None,
) -> Generator[Step | None, None, Ledger]:
    """Copy block `block_mapping[i, 0]` to block `block_mapping[i, 1]`, in place: a program for each pair and slot.

    It is what copy-on-write costs on the device. Returns the ledger.

    Raises ValueError, and copies nothing, for caches that can't be written to, blocks outside them, a block written
    twice, or one both read and written, since programs run in no order.

    Source: "Efficient Memory Management for Large Language Model Serving with PagedAttention", section 4.4.

    >>> cache = np.arange(4, dtype=np.float32).reshape(2, 2, 1, 1)
    >>> copy_blocks(cache, cache.copy(), [[1, 0]]).total(tensor="k_cache", direction="read"), cache.ravel()
    (8, array([2., 3., 2., 3.], dtype=float32))
    """
    pairs = check_copy(k_cache, v_cache, block_mapping)
    machine = machine_of(machine).apart()
    caches = _in_hbm(machine, k_cache, v_cache)
    mapping = machine.hbm("block_mapping", pairs)
    with machine.kernel("copy_blocks") as kernel, kernel.programs(len(pairs), k_cache.shape[1]) as prog:
        prog.load_index(mapping, ..., per_program=2)
        loaded = []
        for cache in caches:
            buffer = prog.buffer(cache.name, cache.shape[2:], cache.dtype)
            loaded.append((prog.load(cache, pairs[:, 0], into=buffer), cache))
        for tile, cache in loaded:
            prog.store(tile, cache, pairs[:, 1])
        yield watch.step("copy", machine, "copy_blocks", {"pairs": len(pairs)})
    return machine.ledger()


def check_append(k: Any, v: Any, slot_mapping: Any, k_cache: Any, v_cache: Any) -> Int[np.ndarray, "n"]:
    """The slots as 64-bit integers, once everything about an append is known to fit. Touches no values."""
    check_caches(k_cache, v_cache)
    for name, new, cache in (("k", k, k_cache), ("v", v, v_cache)):
        if len(new.shape) != 3 or tuple(new.shape[1:]) != tuple(cache.shape[2:]):
            raise ValueError(f"{name} is {tuple(new.shape)}; expected (rows, {cache.shape[2]}, {cache.shape[3]})")
    slots = integers("slot_mapping", slot_mapping, 1)
    slot_to_block(slots, k_cache.shape[1], k_cache.shape[0])
    if min(len(k), len(v)) < len(slots):
        raise ValueError(f"slot_mapping names {len(slots)} slots, and there are {len(k)} rows of k and {len(v)} of v")
    check_no_slot_twice(slots[slots >= 0])
    return slots.astype(np.int64)


def check_copy(k_cache: Any, v_cache: Any, block_mapping: Any) -> Int[np.ndarray, "pairs 2"]:
    """The pairs (from, to) as 64-bit integers, once they are known to fit the caches. Touches no values."""
    check_caches(k_cache, v_cache)
    pairs = integers("block_mapping", block_mapping, 2)
    pairs = pairs if pairs.size else pairs.reshape(-1, 2)  # an empty list is no pairs
    if pairs.shape[1] != 2:
        raise ValueError(f"block_mapping must be (pairs, 2), from and to; got {pairs.shape}")
    if pairs.size and (pairs.min() < 0 or pairs.max() >= k_cache.shape[0]):
        raise ValueError(f"block_mapping names blocks {pairs.min()} to {pairs.max()}; there are {k_cache.shape[0]}")
    written = pairs[:, 1]
    if len(np.unique(written)) < len(written) or np.isin(written, pairs[:, 0]).any():
        raise ValueError(
            f"block_mapping writes a block twice, or writes one that it also reads: {pairs.tolist()}. Copies run in no "
            "order; make two calls"
        )
    return pairs.astype(np.int64)


def check_caches(k_cache: Any, v_cache: Any) -> None:
    """Raise ValueError unless the caches are (num_blocks, block_size, heads, size) and agree in all but the size."""
    if len(k_cache.shape) != 4 or len(v_cache.shape) != 4 or tuple(k_cache.shape[:3]) != tuple(v_cache.shape[:3]):
        raise ValueError(
            "k_cache and v_cache must be (num_blocks, block_size, num_kv_heads, head_dim) and agree in all but "
            f"head_dim, got {tuple(k_cache.shape)} and {tuple(v_cache.shape)}"
        )


def _in_hbm(machine: Machine, k_cache: Any, v_cache: Any) -> tuple[HBMArray, HBMArray]:
    """Both caches, to be written; the machine refuses what is read-only, before anything runs."""
    return machine.hbm("k_cache", k_cache, writable=True), machine.hbm("v_cache", v_cache, writable=True)
