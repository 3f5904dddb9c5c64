"""The pool of physical blocks: a free stack and reference counts, in whole arrays at a time.

`refs[b]` counts the block tables and prefix-cache entries that hold block b. A block is on the free stack exactly when
its count is 0. Source: the paged KV cache text, sharing and reference counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from refsim.kvcache.errors import OutOfBlocks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Int32


class BlockPool:
    """`num_blocks` block ids, handed out last freed first.

    `free_order` gives the order in which a fresh pool hands its blocks out (a permutation of those that are not
    `reserved`); by default 0, 1, 2, ... `reserved` blocks are never handed out, like an engine's null block.

    >>> pool = BlockPool(4, free_order=[2, 0, 3, 1])
    >>> a = pool.take(3)
    >>> a, pool.free
    (array([2, 0, 3], dtype=int32), 1)
    >>> pool.share(a[:1])
    >>> pool.release(a), pool.refs
    (array([0, 3], dtype=int32), array([0, 0, 1, 0], dtype=int32))
    """

    def __init__(self, num_blocks: int, *, free_order: Sequence[int] | None = None, reserved: int = 0) -> None:
        if num_blocks < 1 or not 0 <= reserved < num_blocks:
            raise ValueError(
                f"num_blocks is {num_blocks} with {reserved} reserved; at least one block must be left to hand out"
            )
        order = np.arange(reserved, num_blocks) if free_order is None else np.asarray(free_order)
        if not np.array_equal(np.sort(order), np.arange(reserved, num_blocks)):
            raise ValueError(f"free_order must name each block from {reserved} to {num_blocks - 1} once")
        self.num_blocks = num_blocks
        self.reserved = reserved
        self.refs: Int32[np.ndarray, "num_blocks"] = np.zeros(num_blocks, np.int32)
        self._stack = order[::-1].astype(np.int32)
        self._mark = np.zeros(num_blocks, np.int32)
        self.free = num_blocks - reserved

    @property
    def usable(self) -> int:
        """Blocks that can be handed out at all."""
        return self.num_blocks - self.reserved

    def take(self, count: int) -> Int32[np.ndarray, "count"]:
        """Pop `count` blocks, each with one reference. Raises OutOfBlocks and takes none if there are too few."""
        if count > self.free:
            raise OutOfBlocks(count, self.free, "taking blocks from the pool")
        top = self.free - count
        ids = self._stack[top : self.free][::-1].copy()
        self.free = top
        self.refs[ids] = 1
        return ids

    def share(self, ids: Int32[np.ndarray, "blocks"]) -> None:
        """One more holder of these blocks. An id that repeats counts once: it is one table that holds it."""
        self._check_live(ids, "share")
        self.refs[ids] += 1

    def release(self, ids: Int32[np.ndarray, "blocks"]) -> Int32[np.ndarray, "freed"]:
        """One holder fewer; blocks that nobody holds any more go back on the stack, and are returned.

        Raises ValueError, and changes nothing, when a block is free already or is named twice.
        """
        self._check_live(ids, "release")
        self._mark[ids] = np.arange(ids.size, dtype=np.int32)
        if (self._mark[ids] != np.arange(ids.size, dtype=np.int32)).any():
            raise ValueError(f"release of {ids.tolist()} names a block twice; a holder drops each block once")
        return self.drop(ids)

    def drop(self, ids: Int32[np.ndarray, "blocks"]) -> Int32[np.ndarray, "freed"]:
        """`release` for callers that hold each of these blocks exactly once: no checks."""
        left = self.refs[ids] - 1
        self.refs[ids] = left
        freed = ids[left == 0]
        self._stack[self.free : self.free + freed.size] = freed[::-1]
        self.free += freed.size
        return freed

    def free_ids(self) -> Int32[np.ndarray, "free"]:
        """The blocks on the stack, the next to be handed out first."""
        return self._stack[: self.free][::-1].copy()

    def check_invariants(self) -> None:
        """Raise AssertionError unless the stack holds exactly the unreserved blocks with no references."""
        stack = np.sort(self._stack[: self.free])
        unheld = np.flatnonzero(self.refs[self.reserved :] == 0) + self.reserved
        assert np.array_equal(stack, unheld), f"free stack {stack.tolist()} but blocks {unheld.tolist()} have no holder"
        assert (self.refs >= 0).all(), "a reference count is negative"
        assert not self.refs[: self.reserved].any(), "a reserved block was handed out"

    def _check_live(self, ids: Int32[np.ndarray, "blocks"], what: str) -> None:
        if ids.size and (ids.min() < 0 or ids.max() >= self.num_blocks):
            raise ValueError(f"{what} of {ids.tolist()}: block ids go from 0 to {self.num_blocks - 1}")
        if (self.refs[ids] <= 0).any():
            dead = ids[self.refs[ids] <= 0].tolist()
            raise ValueError(f"{what} of block(s) {dead}, which nobody holds: freed twice, or never allocated")
