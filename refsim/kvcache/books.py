"""The pool's side of a manager: what is free, who is told, and the record of what happened."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from refsim.kvcache.chain import Chain
from refsim.kvcache.events import Event
from refsim.kvcache.pool import BlockPool
from refsim.kvcache.prefix import PrefixCache
from refsim.kvcache.tables import BlockTables
from refsim.kvcache.tiered import HostTier

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from numpy.typing import ArrayLike

    from refsim.kvcache.sequence import SequenceTable


@dataclass(frozen=True)
class Stats:
    """Counts of blocks (`usable = free + used + evictable`), sequences, their tokens, and reserved unused slots.

    Tokens and unused slots are those of one table, added up over the sequences: what two share counts for each.
    """

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
        host_blocks: int = 0,
        free_order: Sequence[int] | None = None,
        reserved: int = 0,
        record: bool = False,
    ) -> None:
        super().__init__(block_size, tables)
        if prefix_cache and tables > 1:
            raise ValueError(f"prefix_cache needs one table for all layers (tables=1), not {tables}")
        self.pool = BlockPool(num_blocks, free_order=free_order, reserved=reserved)
        if host_blocks and not prefix_cache:
            raise ValueError(f"host_blocks={host_blocks} needs prefix_cache=True: only cached blocks go to the host")
        host = HostTier(host_blocks) if host_blocks else None
        self.prefix = PrefixCache(self.pool, host) if prefix_cache else None
        self.events: list[Event] | None = [] if record else None
        self._pinned: Counter[tuple[int, ...]] = Counter()
        self._copied: list[Callable[[list[int], list[int]], None]] = []
        self._freed: list[Callable[[list[int]], None]] = []
        self._trimmed: list[Callable[[list[int], int], None]] = []

    @property
    def available(self) -> int:
        """Blocks that could be taken now: free, or evictable from the prefix cache."""
        free = len(self.pool.stack)
        return free if self.prefix is None else free + self.prefix.evictable

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
        copied: Callable[[list[int], list[int]], None],
        freed: Callable[[list[int]], None],
        trimmed: Callable[[list[int], int], None] = lambda ids, slot: None,
    ) -> None:
        """Call `copied(sources, targets)` when blocks must be copied before a write, `freed(ids)` when they go back,
        and `trimmed(ids, slot)` when nobody uses the slots of blocks from `slot` on any more.
        """
        self._copied.append(copied)
        self._freed.append(freed)
        self._trimmed.append(trimmed)

    def pin(self, tokens: ArrayLike, salt: int = 0) -> list[int]:
        """Keep the cached full blocks that these ids begin with, a popular prompt; returns them, for `unpin`."""
        if self.prefix is None:
            raise ValueError("pinning needs a manager built with prefix_cache=True")
        chain = Chain(tokens, self.block_size, salt)
        ids, _ = self.prefix.match(chain, chain.known + 1)  # a hit leaves one token over; here the whole prompt counts
        self.prefix.pin(ids)
        self._pinned[tuple(ids)] += 1
        return ids

    def unpin(self, ids: Sequence[int]) -> None:
        """Let blocks that `pin` returned be evicted again. Raises ValueError for any others: a prefix goes whole."""
        pinned = tuple(map(int, ids))
        if self.prefix is None or not self._pinned[pinned]:
            raise ValueError(f"blocks {list(ids)} are not all pinned, or not together; give what pin returned, once")
        self._pinned[pinned] -= 1
        self.prefix.unpin(pinned)

    def _take(self, count: int, seq_id: Hashable) -> list[int]:
        short = count - len(self.pool.stack)
        if short > 0 and self.prefix is not None:
            # The cache's one reference to each evicted block becomes the taker's.
            evicted = self.prefix.evict(short)
            if self.events is not None:
                self._note("evict", None, evicted)
            if self._freed or self.events is not None:
                self._tell_freed(None, evicted)
            ids = self.pool.take(count - short) + evicted if short < count else evicted
        else:
            ids = self.pool.take(count)
        if self.events is not None:
            self._note("allocate", seq_id, ids)
        return ids

    def _drop(self, seq_id: Hashable, ids: list[int]) -> None:
        """A table holds these blocks no more: they are free, or rest where the prefix cache holds them too."""
        if self.events is not None:
            self._note("drop", seq_id, ids)
        self._release(seq_id, ids)

    def _release(self, seq_id: Hashable, ids: list[int]) -> None:
        """One reference fewer to each of these blocks; whoever listens hears which are free now."""
        self._tell_freed(seq_id, self.pool.drop(ids) if self.prefix is None else self.prefix.drop(ids))

    def _copy_on_write(self, seq_id: Hashable, seq: SequenceTable, rows: list[list[int]]) -> None:
        """Give these tables of a sequence a last block of their own."""
        shared = [row[-1] for row in rows]
        copies = self._take(len(shared), seq_id)
        try:
            for copied in self._copied:
                copied(shared, copies)
        except BaseException:  # no memory for it, or an interrupt: nobody holds the copies
            self._drop(seq_id, copies[::-1])
            raise
        for row, copy in zip(rows, copies, strict=True):
            row[-1] = copy
        left = shared
        if seq.repeats:  # a table may name the block at another place, and holds it still
            held = set(seq.holds())
            left = [block for block in dict.fromkeys(shared) if block not in held]
            kept = shared.copy()
            for block in left:
                kept.remove(block)
            self._note("share", seq_id, kept)
        self._note("copy", seq_id, shared, copies)
        self._release(seq_id, left)  # a cached block that was cut into may be evicted from now on

    def _tell_freed(self, seq_id: Hashable | None, ids: list[int]) -> None:
        if ids:
            if self.events is not None:
                self._note("free", seq_id, ids)
            for freed in self._freed:
                freed(ids)

    def _note(self, kind: str, seq_id: Hashable | None, ids: Iterable[int], onto: Iterable[int] = ()) -> None:
        if self.events is not None and ids:
            self.events.append(Event(kind, seq_id, tuple(ids), tuple(onto)))
