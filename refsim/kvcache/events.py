"""What a manager did, in order: a record that can be stepped through and drawn."""

from __future__ import annotations

from typing import NamedTuple


class Event(NamedTuple):
    """One thing done to blocks.

    `kind` is `allocate` (fresh blocks), `share` (one more table holds them), `copy` (a table writes: it holds copies of
    `blocks`, `onto`, instead of them), `cache` (entered the prefix cache), `hit` (found there), `evict` (dropped from
    it), `drop` (a table holds them no more), `free` (back on the free stack, or straight to the next taker), `load`
    (came back from the host tier). `seq_id` is None where no sequence is concerned.
    """

    kind: str
    seq_id: object
    blocks: tuple[int, ...]
    onto: tuple[int, ...] = ()
