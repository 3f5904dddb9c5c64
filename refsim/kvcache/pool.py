"""The pool of physical blocks: a free stack and reference counts.

`refs[b]` counts the block tables and prefix-cache entries that hold block b. A block is on the free stack exactly when
its count is 0. Source: the paged KV cache text, sharing and reference counts.

Books are kept in plain lists: a table has tens of blocks and most calls concern one, where a list beats an array.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from refsim.checks import whole_number
from refsim.kvcache.errors import OutOfBlocks

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class BlockPool:
    """`num_blocks` block ids, handed out last freed first.

    `free_order` gives the order in which a fresh pool hands its blocks out (a permutation of those that are not
    `reserved`); by default 0, 1, 2, ... `reserved` blocks are never handed out, like an engine's null block.

    >>> pool = BlockPool(4, free_order=[2, 0, 3, 1])
    >>> a = pool.take(3)
    >>> a, pool.free
    ([2, 0, 3], 1)
    >>> pool.share([2])
    >>> pool.release(a), pool.refs
    ([0, 3], [0, 0, 1, 0])
    """

    def __init__(self, num_blocks: int, *, free_order: Sequence[int] | None = None, reserved: int = 0) -> None:
        num_blocks, reserved = whole_number("num_blocks", num_blocks), whole_number("reserved", reserved)
        if num_blocks < 1 or not 0 <= reserved < num_blocks:
            raise ValueError(
                f"num_blocks is {num_blocks} with {reserved} reserved; at least one block must be left to hand out"
            )
        usable = list(range(reserved, num_blocks))
        order = usable if free_order is None else [whole_number("a block of free_order", b) for b in free_order]
        if sorted(order) != usable:
            raise ValueError(f"free_order must name each block from {reserved} to {num_blocks - 1} once")
        self.num_blocks = num_blocks
        self.reserved = reserved
        self.refs = [0] * num_blocks
        self.stack = order[::-1]  # free blocks, the next to be handed out last

    @property
    def free(self) -> int:
        """Blocks on the stack."""
        return len(self.stack)

    @property
    def usable(self) -> int:
        """Blocks that can be handed out at all."""
        return self.num_blocks - self.reserved

    def take(self, count: int) -> list[int]:
        """Pop `count` blocks, each with one reference. Raises OutOfBlocks and takes none if there are too few."""
        left = len(self.stack) - count
        if left < 0:
            raise OutOfBlocks(count, len(self.stack), "taking blocks from the pool")
        ids = self.stack[left:]
        del self.stack[left:]
        ids.reverse()
        refs = self.refs
        for block in ids:
            refs[block] = 1
        return ids

    def share(self, ids: Iterable[int]) -> None:
        """One more holder of these blocks. An id that repeats counts once: it is one table that holds it.

        Raises ValueError, and changes nothing, for a block that nobody holds.
        """
        ids = list(dict.fromkeys(ids))
        self._check_live(ids, "share")
        for block in ids:
            self.refs[block] += 1

    def release(self, ids: Sequence[int]) -> list[int]:
        """One holder fewer; blocks that nobody holds any more go back on the stack, and are returned.

        Raises ValueError, and changes nothing, when a block is free already or is named twice.
        """
        self._check_live(ids, "release")
        if len(set(ids)) < len(ids):
            raise ValueError(f"release of {list(ids)} names a block twice; a holder drops each block once")
        return self.drop(ids)

    def drop(self, ids: Iterable[int]) -> list[int]:
        """`release` for callers that hold each of these blocks exactly once: no checks."""
        refs = self.refs
        freed = []
        for block in ids:
            left = refs[block] - 1
            refs[block] = left
            if not left:
                freed.append(block)
        self.push(freed)
        return freed

    def push(self, ids: Iterable[int]) -> None:
        """Put blocks whose count has fallen to 0 back on the stack."""
        self.stack.extend(ids)

    def free_ids(self) -> list[int]:
        """The blocks on the stack, the next to be handed out first."""
        return self.stack[::-1]

    def check_invariants(self) -> None:
        """Raise AssertionError unless the stack holds exactly the unreserved blocks with no references."""
        unheld = [b for b in range(self.reserved, self.num_blocks) if self.refs[b] == 0]
        assert sorted(self.stack) == unheld, f"free stack {sorted(self.stack)} but nobody holds {unheld}"
        assert min(self.refs) >= 0, "a reference count is negative"
        assert not any(self.refs[: self.reserved]), "a reserved block was handed out"

    def _check_live(self, ids: Sequence[int], what: str) -> None:
        if not all(0 <= b < self.num_blocks for b in ids):
            raise ValueError(f"{what} of {list(ids)}: block ids go from 0 to {self.num_blocks - 1}")
        dead = [b for b in ids if self.refs[b] <= 0]
        if dead:
            raise ValueError(f"{what} of block(s) {dead}, which nobody holds: freed twice, or never allocated")
