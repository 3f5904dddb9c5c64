"""Reading block tables: what a kernel is given. Nothing here changes a sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from refsim.checks import whole_number
from refsim.kvcache.errors import UnknownSequence

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from jaxtyping import Int32, Int64

    from refsim.kvcache.chain import Chain
    from refsim.kvcache.sequence import SequenceTable


class BlockTables:
    """The live sequences' tables, by id."""

    def __init__(self, block_size: int, tables: int) -> None:
        self.block_size = whole_number("block_size", block_size, 1)
        self.tables = whole_number("tables", tables, 1)
        self._sequences: dict[Hashable, SequenceTable] = {}

    def __contains__(self, seq_id: Hashable) -> bool:
        return seq_id in self._sequences

    @property
    def sequences(self) -> list[Hashable]:
        """Ids of the live sequences, oldest first."""
        return list(self._sequences)

    def length(self, seq_id: Hashable) -> int:
        """Tokens of the sequence that have a slot."""
        return self._get(seq_id).tokens

    def chain(self, seq_id: Hashable) -> Chain | None:
        """The sequence's token ids, where they are known; the manager's own, not a copy."""
        return self._get(seq_id).chain

    def table(self, seq_id: Hashable, table: int = 0) -> Int32[np.ndarray, "blocks"]:
        """A copy of a sequence's block table."""
        return np.array(self._get(seq_id).rows[self._check_table(table)], np.int32)

    def block_tables(self, seq_ids: Sequence[Hashable], table: int = 0) -> Int32[np.ndarray, "sequences max_blocks"]:
        """The tables of several sequences, one a row, padded with -1."""
        rows = [self._get(s).rows[self._check_table(table)] for s in seq_ids]
        out = np.full((len(rows), max(map(len, rows), default=0)), -1, np.int32)
        for i, row in enumerate(rows):
            out[i, : len(row)] = row
        return out

    def slot_mapping(self, seq_id: Hashable, start: int, count: int, table: int = 0) -> Int64[np.ndarray, "count"]:
        """Slots of the sequence's tokens `start .. start + count - 1`."""
        seq, start, count = self._get(seq_id), whole_number("start", start, 0), whole_number("count", count, 0)
        if start + count > seq.tokens:
            raise ValueError(
                f"positions {start} to {start + count - 1} of sequence {seq_id!r}, which has {seq.tokens} tokens; "
                "allocate or append first"
            )
        return seq.slots(start, count, self.block_size, self._check_table(table))

    def seq_lens(self, seq_ids: Sequence[Hashable]) -> Int32[np.ndarray, "sequences"]:
        """Tokens of each of several sequences."""
        return np.array([self._get(s).tokens for s in seq_ids], np.int32)

    def _get(self, seq_id: Hashable) -> SequenceTable:
        try:
            return self._sequences[seq_id]
        except KeyError:
            raise UnknownSequence(seq_id) from None

    def _check_table(self, table: int) -> int:
        if not 0 <= (table := whole_number("table", table)) < self.tables:
            raise ValueError(f"table is {table}; each sequence has {self.tables} block table(s), counted from 0")
        return table
