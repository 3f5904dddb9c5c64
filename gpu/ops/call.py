"""The `Call` that a kernel is given: `struct Call` of call.cuh, field by field."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpu.ops.arrays import strides
from refsim.attention import Plan

LONGS = ("q_token", "q_head", "k_block", "k_token", "k_head", "v_block", "v_token", "v_head", "tokens")
INTS = (
    *("n", "keys", "heads", "rho", "programs_per_kv_head", "tile_tokens", "key_tile", "query_tiles"),
    *("block_size", "max_blocks", "num_splits", "left", "right", "top_left"),
)
FLOATS = ("scale", "softcap", "blocks_per_token")
CALL = np.dtype(
    [
        *((name, np.int64) for name in LONGS),
        *((name, np.int32) for name in INTS),
        *((name, np.float32) for name in FLOATS),
    ],
    align=True,
)
UNLIMITED = 2**31 - 1


def call_struct(plan: Plan, q: Any, k: Any, v: Any, *, max_blocks: int = 0, num_splits: int = 1) -> Any:
    """A plan and the layout of its tensors, as a kernel reads them. q, k and v have the runtime's kind."""
    call = np.zeros((), CALL)
    call["q_token"], call["q_head"] = strides("q", q)
    paged = plan.block_size is not None
    for letter, array in (("k", k), ("v", v)):
        steps = strides(f"{letter}_cache" if paged else letter, array)
        call[f"{letter}_token"], call[f"{letter}_head"] = steps[-2:]
        call[f"{letter}_block"] = steps[0] if paged else 0
    lengths = plan.sequences[0] if plan.sequences else None
    left, right = plan.variant.window
    if plan.variant.causal:
        right = 0
    fields = {
        "tokens": plan.tokens,
        "n": lengths.n if lengths else 0,
        "keys": lengths.T if lengths else 0,
        "heads": plan.H,
        "rho": plan.rho,
        "programs_per_kv_head": plan.grid[1],
        "tile_tokens": plan.tile_tokens,
        "key_tile": plan.Bc,
        "query_tiles": most_tiles(plan, plan.tile_tokens),
        "block_size": plan.block_size or 1,
        "max_blocks": max_blocks,
        "num_splits": num_splits,
        "left": -1 if left is None else min(left, UNLIMITED),
        "right": -1 if right is None else min(right, UNLIMITED),
        "top_left": plan.variant.align == "top-left",
        "scale": plan.variant.scale,
        "softcap": plan.variant.softcap or 0,
        "blocks_per_token": 1 / (plan.block_size or 1),
    }
    for name, value in fields.items():
        call[name] = value
    return call  # with no axes: what CuPy passes by value


def most_tiles(plan: Plan, tile_tokens: int) -> int:
    """Query tiles of the longest sequence: a launch has as many programs for every sequence."""
    return max((-(-seq.n // tile_tokens) for seq in plan.sequences), default=0)


def grid(plan: Plan, query_tiles: int, splits: int = 1) -> tuple[int, int, int]:
    """Programs of a launch: (sequences * query tiles, programs of a query tile, splits).

    Raises ValueError where that is more than a GPU can launch.
    """
    size = (len(plan.sequences) * query_tiles, plan.programs, splits)
    if size[0] > UNLIMITED or max(size[1:]) > 65535:
        raise ValueError(f"a launch of {size} programs is more than a GPU takes (2147483647, 65535, 65535)")
    return size
