"""A second level under the prefix cache: blocks evicted from the GPU go to host memory, and come back when hit.

Moving a block takes its bytes over the host link; recomputing it takes a prefill. Which is cheaper is what the tier is
asked. Source: the attention text, the tiered cache of its last era; Mooncake, FAST 2025.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, TypeAlias

from refsim.checks import whole_number

if TYPE_CHECKING:
    from collections.abc import Callable


# What a cached block is known by: its key, the bytes of its ids, its parent's serial number and its own.
Entry: TypeAlias = tuple[int, bytes, int, int]


class HostTier:
    """Room for `capacity` blocks in host memory, least recently evicted dropped first.

    `loaded` and `stored` count the blocks that have crossed the link. Whoever holds values subscribes: `store(serial,
    block)` when a block leaves the GPU, `fetch(serial, block)` when it comes back, `forget(serial)` when it is dropped.

    >>> tier = HostTier(1)
    >>> tier.put((11, b"a", -1, 0), block=5); tier.put((12, b"b", 0, 1), block=6)
    >>> tier.find(11), tier.find(12), tier.stored
    (None, (12, b'b', 0, 1), 2)
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = whole_number("capacity", capacity, 1)
        self.loaded = 0
        self.stored = 0
        self._entries: OrderedDict[int, Entry] = OrderedDict()
        self._store: list[Callable[[int, int], None]] = []
        self._fetch: list[Callable[[int, int], None]] = []
        self._forget: list[Callable[[int], None]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def subscribe(
        self,
        *,
        store: Callable[[int, int], None],
        fetch: Callable[[int, int], None],
        forget: Callable[[int], None],
    ) -> None:
        """Have these called as blocks come and go."""
        self._store.append(store)
        self._fetch.append(fetch)
        self._forget.append(forget)

    def find(self, key: int) -> Entry | None:
        """The block of that key, if it is here."""
        return self._entries.get(key)

    def put(self, entry: Entry, block: int) -> None:
        """A block of the GPU is evicted to here."""
        key, _, _, serial = entry
        for store in self._store:
            store(serial, block)
        self.stored += 1
        gone = self._entries.pop(key, None)
        self._entries[key] = entry
        if len(self._entries) > self.capacity:
            _, gone = self._entries.popitem(last=False)
        if gone is not None:
            for forget in self._forget:
                forget(gone[3])

    def take(self, key: int) -> Entry:
        """A block leaves for the GPU; `bring` says into which block there."""
        return self._entries.pop(key)

    def bring(self, entry: Entry, block: int) -> None:
        """Its values arrive in a block of the GPU."""
        self.loaded += 1
        for fetch in self._fetch:
            fetch(entry[3], block)
