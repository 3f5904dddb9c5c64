"""Blocks in the order in which they came to rest, with removal from the middle, in whole arrays at a time."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Int32, Int64


class RestingQueue:
    """A least-recently-used queue of block ids.

    Each push stamps its blocks with growing numbers. Removing a block only forgets its stamp; its old place in the
    queue no longer agrees and is passed over, and the queue is swept when most of it is such places.

    >>> queue = RestingQueue(8)
    >>> queue.push(np.array([3, 1, 4]))
    >>> queue.remove(np.array([1, 5]))
    >>> queue.size, queue.pop(1), queue.members()
    (2, array([3], dtype=int32), array([4]))
    """

    def __init__(self, num_blocks: int) -> None:
        self.size = 0
        self._stamp: Int64[np.ndarray, "num_blocks"] = np.zeros(num_blocks, np.int64)  # 0: not in the queue
        self._next = 1
        self._chunks: deque[tuple[Int32[np.ndarray, "n"], Int64[np.ndarray, "n"]]] = deque()
        self._places = 0

    def push(self, ids: Int32[np.ndarray, "n"]) -> None:
        """Blocks that are not in the queue join its young end, the first of them first."""
        if not ids.size:
            return
        stamps = np.arange(self._next, self._next + ids.size)
        self._next += ids.size
        self._stamp[ids] = stamps
        self._append(ids.astype(np.int32), stamps)
        self.size += ids.size
        if self._places > 2 * self.size + 1024:
            self._sweep()

    def count(self, ids: Int32[np.ndarray, "n"]) -> int:
        """How many of these blocks are in the queue."""
        return int(np.count_nonzero(self._stamp[ids]))

    def remove(self, ids: Int32[np.ndarray, "n"]) -> None:
        """Take blocks out, where they are in."""
        self.size -= self.count(ids)
        self._stamp[ids] = 0

    def pop(self, count: int) -> Int32[np.ndarray, "count"]:
        """Take the `count` oldest out. There must be as many."""
        assert count <= self.size, f"{count} blocks asked of a queue of {self.size}"
        taken = [np.empty(0, np.int32)]
        missing = count
        while missing:
            ids, stamps = self._chunks.popleft()
            self._places -= ids.size
            live = self._stamp[ids] == stamps
            ids, stamps = ids[live], stamps[live]
            if ids.size > missing:
                self._chunks.appendleft((ids[missing:], stamps[missing:]))
                self._places += ids.size - missing
                ids = ids[:missing]
            taken.append(ids)
            missing -= ids.size
        out = np.concatenate(taken)
        self._stamp[out] = 0
        self.size -= count
        return out

    def members(self) -> Int64[np.ndarray, "size"]:
        """The blocks in the queue, by number."""
        members = np.flatnonzero(self._stamp)
        assert members.size == self.size, f"{members.size} blocks are stamped, but the queue counts {self.size}"
        return members

    def _append(self, ids: Int32[np.ndarray, "n"], stamps: Int64[np.ndarray, "n"]) -> None:
        self._chunks.append((ids, stamps))
        self._places += ids.size

    def _sweep(self) -> None:
        ids = np.concatenate([c[0] for c in self._chunks])
        stamps = np.concatenate([c[1] for c in self._chunks])
        live = self._stamp[ids] == stamps
        self._chunks.clear()
        self._places = 0
        self._append(ids[live], stamps[live])
