"""One sequence's block table, in arrays that grow by doubling."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Int32, Int64

    from refsim.kvcache.chain import Chain


class SequenceTable:
    """`tokens` positions in `blocks` logical blocks, for each of `tables` block tables (one, or one a layer).

    `computed` of the tokens have had their K and V written; `chain` holds the token ids where they are known, and
    `cached` counts the leading blocks that are in the prefix cache. `repeats` says that a block may occur twice,
    `tail_shared` that another table may hold the last block.
    """

    __slots__ = ("_table", "blocks", "cached", "chain", "computed", "repeats", "tail_shared", "tokens")

    def __init__(self, ids: Int32[np.ndarray, "tables blocks"], tokens: int, chain: Chain | None = None) -> None:
        self._table = ids
        self.blocks = ids.shape[1]
        self.tokens = tokens
        self.computed = 0
        self.cached = 0
        self.chain = chain
        self.repeats = False
        self.tail_shared = False

    @property
    def table(self) -> Int32[np.ndarray, "tables blocks"]:
        """A view of the table; whoever changes it changes the sequence."""
        return self._table[:, : self.blocks]

    def holds(self) -> Int32[np.ndarray, "held"]:
        """Each block that the tables hold, once, the tail before the head."""
        ids = self.table[:, ::-1].ravel()
        return np.unique(ids) if self.repeats else ids

    def extend(self, ids: Int32[np.ndarray, "tables blocks"]) -> None:
        """Add columns at the end."""
        end = self.blocks + ids.shape[1]
        if end > self._table.shape[1]:
            grown = np.empty((self._table.shape[0], max(2 * self._table.shape[1], end, 4)), np.int32)
            grown[:, : self.blocks] = self.table
            self._table = grown
        self._table[:, self.blocks : end] = ids
        self.blocks = end

    def copy(self) -> SequenceTable:
        """The same blocks under a second table: what a fork starts as."""
        twin = SequenceTable(self.table.copy(), self.tokens, None if self.chain is None else self.chain.copy())
        twin.computed, twin.cached = self.computed, self.cached
        twin.repeats, twin.tail_shared = self.repeats, self.tail_shared
        return twin

    def slots(self, start: int, count: int, block_size: int, table: int = 0) -> Int64[np.ndarray, "count"]:
        """Slots (`block * block_size + offset`) of positions `start .. start + count - 1`, in 64 bits."""
        positions = np.arange(start, start + count, dtype=np.int64)
        return self.table[table, positions // block_size].astype(np.int64) * block_size + positions % block_size
