"""The pool's side of a manager: what is free, who is told, and the record of what happened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from refsim.kvcache.errors import OutOfBlocks
from refsim.kvcache.events import Event
from refsim.kvcache.pool import BlockPool
from refsim.kvcache.prefix import PrefixCache
from refsim.kvcache.tables import BlockTables

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from jaxtyping import Int32

_NONE = np.empty(0, np.int32)


@dataclass(frozen=True)
class Stats:
    """Counts of blocks (`usable = free + used + evictable`), sequences, their tokens, and reserved unused slots."""

    usable: int
    free: int
    used: int
    evictable: int
    sequences: int
    tokens: int
    unused_slots: int


class PoolBooks(BlockTables):
    """A pool of blocks with, on request, a prefix cache over it and a record of events."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        tables: int = 1,
        prefix_cache: bool = False,
        free_order: Sequence[int] | None = None,
        reserved: int = 0,
        record: bool = False,
    ) -> None:
        super().__init__(block_size, tables)
        if prefix_cache and tables > 1:
            raise ValueError(f"prefix_cache needs one table for all layers (tables=1), not {tables}")
        self.pool = BlockPool(num_blocks, free_order=free_order, reserved=reserved)
        self.prefix: PrefixCache | None = None
        if prefix_cache:
            self.prefix = PrefixCache(self.pool, block_size)
        self.events: list[Event] | None = [] if record else None
        self._copied: list[Callable[[Int32[np.ndarray, "n"], Int32[np.ndarray, "n"]], None]] = []
        self._freed: list[Callable[[Int32[np.ndarray, "n"]], None]] = []

    @property
    def available(self) -> int:
        """Blocks that could be taken now: free, or evictable from the prefix cache."""
        return self.pool.free + (self.prefix.evictable if self.prefix is not None else 0)

    def stats(self) -> Stats:
        """Counts now, in time linear in the sequences."""
        evictable = self.prefix.evictable if self.prefix is not None else 0
        tokens = sum(s.tokens for s in self._sequences.values())
        slots = sum(s.blocks for s in self._sequences.values()) * self.block_size
        return Stats(
            usable=self.pool.usable,
            free=self.pool.free,
            used=self.pool.usable - self.pool.free - evictable,
            evictable=evictable,
            sequences=len(self._sequences),
            tokens=tokens,
            unused_slots=slots - tokens,
        )

    def subscribe(
        self,
        *,
        copied: Callable[[Int32[np.ndarray, "n"], Int32[np.ndarray, "n"]], None],
        freed: Callable[[Int32[np.ndarray, "n"]], None],
    ) -> None:
        """Call `copied(sources, targets)` when blocks must be copied before a write, `freed(ids)` when they go back."""
        self._copied.append(copied)
        self._freed.append(freed)

    def _check_room(self, needed: int, what: str, held_back: int = 0) -> None:
        available = self.available - held_back
        if needed > available:
            raise OutOfBlocks(needed, available, what)

    def _take(self, count: int, seq_id: Hashable) -> Int32[np.ndarray, "count"]:
        if count > self.pool.free and self.prefix is not None:
            evicted = self.prefix.evict(count - self.pool.free)
            self._note("evict", None, evicted)
            self._tell_freed(None, self.pool.drop(evicted))
        ids = self.pool.take(count)
        self._note("allocate", seq_id, ids)
        return ids

    def _tell_freed(self, seq_id: Hashable | None, ids: Int32[np.ndarray, "freed"]) -> None:
        if ids.size:
            self._note("free", seq_id, ids)
            for freed in self._freed:
                freed(ids)

    def _note(
        self,
        kind: str,
        seq_id: Hashable | None,
        ids: Int32[np.ndarray, "blocks"],
        onto: Int32[np.ndarray, "blocks"] = _NONE,
    ) -> None:
        if self.events is not None and ids.size:
            self.events.append(Event(kind, seq_id, tuple(ids.tolist()), tuple(onto.tolist())))
