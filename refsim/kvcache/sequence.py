"""One sequence's block table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Int64

    from refsim.kvcache.chain import Chain


class SequenceTable:
    """`tokens` positions in the blocks of `rows`: one block table, or one for each layer, all of one length.

    `computed` of the tokens have had their K and V written; `chain` holds the token ids where they are known, and
    `cached` counts the leading blocks that are in the prefix cache. `repeats` says that a block may occur twice,
    `tail_shared` that another table may hold the last block.
    """

    __slots__ = ("cached", "chain", "computed", "repeats", "rows", "tail_shared", "tokens")

    def __init__(
        self, rows: list[list[int]], tokens: int, chain: Chain | None = None, computed: int = 0, cached: int = 0
    ) -> None:
        self.rows = rows
        self.tokens = tokens
        self.computed = computed
        self.cached = cached
        self.chain = chain
        if chain is not None:
            chain.held = True
        self.repeats = False
        self.tail_shared = False

    @property
    def blocks(self) -> int:
        """Logical blocks."""
        return len(self.rows[0])

    def holds(self) -> list[int]:
        """Each block that the tables hold, once, the tail before the head."""
        ids = self.rows[0][::-1] if len(self.rows) == 1 else [b for row in self.rows for b in reversed(row)]
        return list(dict.fromkeys(ids)) if self.repeats else ids

    def named_once(self, block: int) -> bool:
        """Whether the tables have the block at one place only: at two, a write to one would change the other."""
        return not self.repeats or sum(row.count(block) for row in self.rows) == 1

    def cut(self, tokens: int, block_size: int) -> list[int]:
        """Keep that many tokens, and their ids unless more were known ahead; returns the blocks held no more."""
        if self.chain is not None and self.chain.known <= self.tokens:
            self.chain.truncate(tokens)
        before = self.holds()
        for row in self.rows:
            del row[-(-tokens // block_size) :]
        kept = {block for row in self.rows for block in row}
        self.tokens = tokens
        self.computed = min(self.computed, tokens)
        self.cached = min(self.cached, tokens // block_size)
        return [block for block in before if block not in kept]

    def copy(self) -> SequenceTable:
        """The same blocks under a second table: what a fork starts as."""
        rows, chain = [row.copy() for row in self.rows], self.chain and self.chain.copy()
        twin = SequenceTable(rows, self.tokens, chain, self.computed, self.cached)
        twin.repeats, twin.tail_shared = self.repeats, self.tail_shared
        return twin

    def slots(self, start: int, count: int, block_size: int, table: int = 0) -> Int64[np.ndarray, "count"]:
        """Slots (`block * block_size + offset`) of positions `start .. start + count - 1`, in 64 bits."""
        positions = np.arange(start, start + count, dtype=np.int64)
        first = start // block_size
        blocks = np.array(self.rows[table][first : -(-(start + count) // block_size)], np.int64)
        return blocks[positions // block_size - first] * block_size + positions % block_size
