"""`gpu.ops.append` and `gpu.ops.copy_blocks`: the kernels that write to a paged cache."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpu.ops.arrays import aligned, is_torch, strides, to_host
from gpu.ops.attention import choose, inputs
from gpu.ops.launch import Launch, Prepared
from gpu.ops.modules import check_storage, macros, module
from gpu.ops.operation import operation
from gpu.runtime import Runtime
from refsim.kvcache.kernels import check_append, check_copy
from refsim.machine import Ledger

# `struct Append` of append.cu and `struct Copy` of copy_blocks.cu.
APPEND = np.dtype(
    [
        *((name, np.int64) for name in ("k_token", "k_head", "v_token", "v_head")),
        *((name, np.int64) for name in ("k_block", "k_slot", "k_cache_head", "v_block", "v_slot", "v_cache_head")),
        *((name, np.int32) for name in ("kv_heads", "block_size")),
    ],
    align=True,
)
COPY = np.dtype(
    [
        *((name, np.int64) for name in ("k_block", "k_slot", "k_head", "v_block", "v_slot", "v_head")),
        ("kv_heads", np.int32),
    ],
    align=True,
)


@operation
def append(
    k: Any, v: Any, slot_mapping: Any, k_cache: Any, v_cache: Any, *, runtime: str | Runtime = "auto",
    counted: bool = False,
) -> Prepared[Ledger]:  # fmt: skip
    """`refsim.kvcache.kernels.append` on a GPU, or on the emulator: the caches are written in place.

    All arrays must have the caches' type, and the caches must be where the kernel runs (a copy of them would be
    written in vain).

    >>> cache = np.zeros((2, 2, 1, 8), np.float32)
    >>> row = np.ones((1, 1, 8), np.float32)
    >>> append(row, row, [3], cache, cache.copy(), runtime="emulator").total(tensor="slot_mapping")
    8
    >>> cache[1, 1].sum()
    np.float32(8.0)
    """
    where = choose(runtime, k, v, k_cache, v_cache)
    k, v = inputs(where, k=k, v=v)
    k_cache, v_cache = caches(where, k_cache, v_cache)
    slots = check_append(k, v, to_host(slot_mapping), k_cache, v_cache)
    check_one_type(k=k, v=v, k_cache=k_cache, v_cache=v_cache)
    call = np.zeros((), APPEND)
    call["k_token"], call["k_head"] = strides("k", k)
    call["v_token"], call["v_head"] = strides("v", v)
    call["k_block"], call["k_slot"], call["k_cache_head"] = strides("k_cache", k_cache)
    call["v_block"], call["v_slot"], call["v_cache_head"] = strides("v_cache", v_cache)
    call["kv_heads"], call["block_size"] = k_cache.shape[2], k_cache.shape[1]
    options = macros(
        k.dtype, aligned=aligned(k, v, k_cache, v_cache), counted=counted, HEAD_DIM=k.shape[2], V_HEAD_DIM=v.shape[2]
    )
    args = {"k": k, "v": v, "slot_mapping": where.asarray(slots), "k_cache": k_cache, "v_cache": v_cache}
    grid = (len(slots), 1, 1)
    launch = Launch("append", module(where, "append.cu", options), grid, (call, *args.values()), tuple(args))
    return Prepared([launch], lambda ledger: ledger, where)


@operation
def copy_blocks(
    k_cache: Any, v_cache: Any, block_mapping: Any, *, runtime: str | Runtime = "auto", counted: bool = False
) -> Prepared[Ledger]:
    """`refsim.kvcache.kernels.copy_blocks` on a GPU, or on the emulator: the caches are written in place.

    >>> cache = np.arange(4, dtype=np.float32).reshape(2, 2, 1, 1)
    >>> copy_blocks(cache, cache.copy(), [[1, 0]], runtime="emulator").total(tensor="block_mapping")
    32
    >>> cache.ravel()
    array([2., 3., 2., 3.], dtype=float32)
    """
    where = choose(runtime, k_cache, v_cache)
    k_cache, v_cache = caches(where, k_cache, v_cache)
    pairs = check_copy(k_cache, v_cache, to_host(block_mapping))
    check_one_type(k_cache=k_cache, v_cache=v_cache)
    call = np.zeros((), COPY)
    call["k_block"], call["k_slot"], call["k_head"] = strides("k_cache", k_cache)
    call["v_block"], call["v_slot"], call["v_head"] = strides("v_cache", v_cache)
    call["kv_heads"] = k_cache.shape[2]
    options = macros(
        k_cache.dtype, aligned=aligned(k_cache, v_cache), counted=counted, HEAD_DIM=k_cache.shape[3],
        V_HEAD_DIM=v_cache.shape[3],
    )  # fmt: skip
    args = {"block_mapping": where.asarray(pairs), "k_cache": k_cache, "v_cache": v_cache}
    compiled = module(where, "copy_blocks.cu", options)
    launch = Launch("copy_blocks", compiled, (len(pairs), k_cache.shape[1], 1), (call, *args.values()), tuple(args))
    return Prepared([launch], lambda ledger: ledger, where)


def caches(where: Runtime, k_cache: Any, v_cache: Any) -> tuple[Any, Any]:
    """The caches themselves, where the runtime reaches them: they are written in place, so a copy would be in vain."""
    on_host = [isinstance(cache, np.ndarray) or (is_torch(cache) and not cache.is_cuda) for cache in (k_cache, v_cache)]
    if where.name == "cupy" and any(on_host):
        raise ValueError(
            "the caches lie on the host and would be written on the GPU; put them there first (cupy.asarray)"
        )
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        if isinstance(cache, np.ndarray) and not cache.flags.writeable:
            raise ValueError(f"{name} is read-only and would be written")
    return tuple(inputs(where, k_cache=k_cache, v_cache=v_cache))


def check_one_type(**arrays: Any) -> None:
    """Raise TypeError unless all arrays have one type that kernels store."""
    types = {name: array.dtype for name, array in arrays.items()}
    if len(set(types.values())) != 1:
        raise TypeError(f"the kernels move bytes of one type, got {', '.join(f'{n} {t}' for n, t in types.items())}")
    check_storage(next(iter(types.values())))
