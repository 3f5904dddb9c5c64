"""A manager's record told again: the state of every block after each event, to step through and to draw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from refsim.kvcache.events import Event

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

FREE, HELD, SHARED, CACHED, RESTING = "free", "held", "shared", "held and cached", "only cached"


@dataclass(frozen=True)
class Page:
    """An event, and after it the reference counts of all blocks and which of them are in the prefix cache."""

    event: Event
    refs: tuple[int, ...]
    cached: frozenset[int]

    def state(self, block: int) -> str:
        """One of `free`, `held` (by one table), `shared` (by several), `held and cached`, `only cached`."""
        tables = self.refs[block] - (block in self.cached)
        if block in self.cached:
            return CACHED if tables else RESTING
        return FREE if not tables else HELD if tables == 1 else SHARED


def tell(events: Iterable[Event], num_blocks: int) -> Iterator[Page]:
    """The pages of a record, one an event, from a fresh pool on.

    Raises ValueError for a record with gaps: a block that is allocated or freed while somebody holds it.

    >>> from refsim.kvcache import BlockManager
    >>> m = BlockManager(2, 4, prefix_cache=True, record=True)
    >>> _ = m.allocate("a", range(6)); m.commit("a"); m.free("a")
    >>> [(p.event.kind, p.state(0), p.state(1)) for p in tell(m.events, 2)][1:]
    [('cache', 'held and cached', 'held'), ('drop', 'only cached', 'free'), ('free', 'only cached', 'free')]
    """
    refs, cached = [0] * num_blocks, set()
    for event in events:
        for block in event.blocks:
            if event.kind in ("allocate", "free") and refs[block]:
                raise ValueError(f"{event} while {refs[block]} hold(s) block {block}: the record has gaps")
            if event.kind == "allocate":
                refs[block] = 1
            elif event.kind in ("share", "hit"):
                refs[block] += 1
            elif event.kind in ("cache", "load"):
                refs[block] += 1
                cached.add(block)
            elif event.kind in ("drop", "copy"):
                refs[block] -= 1
            elif event.kind == "evict":
                refs[block] -= 1
                cached.discard(block)
        yield Page(event, tuple(refs), frozenset(cached))
