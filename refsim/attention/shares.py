"""How the programs of an attention kernel are shared out over the CPU's cores.

A share is a query tile, for all KV heads side by side, as NumPy is fastest at it. Where a launch has few query tiles
(one, for a decode step), each is cut into parts of the KV heads as well.
"""

from __future__ import annotations

from typing import NamedTuple

from refsim.attention.call import Call
from refsim.attention.plan import Plan, Sequence
from refsim.machine import Watch, threads

# Threads take turns at Python's lock, which costs more than they gain on small arrays. Measured on two cores:
SMALLEST_TILE = 300_000  # elements of scores, keys and values in a share's key tile, from which two threads are faster
SMALLEST_LAUNCH = 2**24  # the same summed over all key tiles
EVEN = 4  # shares a thread, from which their unequal lengths even out


class Share(NamedTuple):
    """One query tile of (a part of) a call."""

    call: Call
    seq: Sequence
    query_tile: int
    tokens: range
    kv_heads: slice


def share_out(watch: Watch, call: Call, *, num_splits: int = 1) -> tuple[list[Share], int]:
    """The shares of a launch, in the order of its query tiles, and how many threads are to work on them.

    num_splits: equal pieces that each query tile falls into anyway.
    """
    plan, tiles = call.plan, list(call.tiles())
    workers = threads(watch) if _touched(plan, plan.Bc) >= SMALLEST_TILE else 1
    parts = workers if len(tiles) * num_splits < EVEN * workers else 1
    heads = -(-plan.G // parts)
    if workers > 1 and not _is_worth_it(plan, tiles, heads, num_splits):
        workers, heads = 1, plan.G
    cuts = [slice(g, g + heads) for g in range(0, plan.G, heads)]
    calls = [(call.part(cut) if len(cuts) > 1 else call, cut) for cut in cuts]
    return [Share(part, *tile, cut) for tile in tiles for part, cut in calls], workers


def _is_worth_it(plan: Plan, tiles: list[tuple[Sequence, int, range]], heads: int, num_splits: int) -> bool:
    longest = -(-max((seq.T for seq, _, _ in tiles), default=0) // num_splits)
    if _touched(plan, min(plan.Bc, longest)) * heads < SMALLEST_TILE * plan.G:
        return False
    spans = (plan.key_span(seq, tokens) for seq, _, tokens in tiles)
    return _touched(plan, sum(max(0, stop - first) for first, stop in spans)) >= SMALLEST_LAUNCH


def _touched(plan: Plan, keys: int) -> int:
    """Elements of scores, keys and values for so many keys of one full query tile."""
    return keys * (plan.programs * plan.rows + plan.G * (plan.D + plan.Dv))
