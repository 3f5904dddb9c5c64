"""The prefix cache: full blocks kept under a chained key, shared by later sequences, evicted least recently used.

A cached block holds one reference for the cache. While a table holds it too it is in use and can't be evicted; with the
cache's reference alone it rests, and may be. Source: the attention text, prefix caching; PagedAttention, SOSP 2023.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from typing import TYPE_CHECKING, Any

from refsim.kvcache import chain as chains
from refsim.kvcache.tiered import Entry

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from refsim.kvcache.chain import Chain
    from refsim.kvcache.pool import BlockPool
    from refsim.kvcache.tiered import HostTier


class PrefixCache:
    """The cached blocks of one pool.

    Each entry remembers its token ids and its parent (the serial number of the entry before it, or a root for each
    salt), so that a hit is certain: keys only say where to look. Whoever holds a block holds its cached parent too,
    and drops the tail first, so that a parent is never evicted before its children.

    >>> from refsim.kvcache import BlockManager
    >>> m = BlockManager(8, 4, prefix_cache=True)
    >>> m.allocate("a", range(9)), m.commit("a"), m.allocate("b", [0, 1, 2, 3, 9, 9, 9, 9, 9])
    (0, None, 4)
    >>> m.table("a"), m.table("b")
    (array([0, 1, 2], dtype=int32), array([0, 3, 4], dtype=int32))
    """

    def __init__(self, pool: BlockPool, host: HostTier | None = None) -> None:
        self.pool = pool
        self.host = host
        self.pins = [0] * pool.num_blocks
        self._by_key: dict[int, int] = {}
        self._resting: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._entry: list[Entry | None] = [None] * pool.num_blocks
        self._next_serial = 0
        self._roots: dict[int, int] = {}

    @property
    def evictable(self) -> int:
        """Blocks that only the cache holds, and that are not pinned."""
        return len(self._resting)

    @property
    def entries(self) -> list[int]:
        """The cached blocks."""
        return [b for b, entry in enumerate(self._entry) if entry is not None]

    def caches(self, block: int) -> bool:
        """Whether the block is cached, in use or not."""
        return self._entry[block] is not None

    def match(self, chain: Chain, tokens: int) -> tuple[list[int], list[int]]:
        """Cached blocks that a sequence of so many of these ids begins with, leaving at least one token to compute.

        Returns the blocks, and the keys of those that follow in the host tier.
        """
        keys, limit = chain.keys(), (tokens - 1) // chain.block_size
        if limit < 1 or (keys[0] not in self._by_key and self.host is None):
            return [], []  # what most prompts without a common beginning meet: no time is spent on them
        found: list[int] = []
        parent = self._root(chain.salt)
        find, entries, contents = self._by_key.get, self._entry, chain.contents
        for i in range(limit):
            block = find(keys[i])
            if block is None:
                break
            _, content, before, serial = entries[block]  # type: ignore[misc]
            if before != parent or content != contents[i]:
                break
            found.append(block)
            parent = serial
        below: list[int] = []
        if self.host is not None:
            for i in range(len(found), limit):
                entry = None if keys[i] in self._by_key else self.host.find(keys[i])
                if entry is None or entry[1:3] != (contents[i], parent):
                    break
                below.append(keys[i])
                parent = entry[3]
        return found, below

    def restore(self, entries: Sequence[Entry], ids: Sequence[int]) -> None:
        """Blocks taken from the host tier are cached again, in these fresh blocks."""
        assert self.host is not None
        for entry, block in zip(entries, ids, strict=True):
            self._by_key[entry[0]], self._entry[block] = block, entry
            self.pool.refs[block] += 1
            self.host.bring(entry, block)

    def resting(self, ids: Iterable[int]) -> int:
        """How many of these blocks are evictable now."""
        return sum(map(self._resting.__contains__, ids))

    def hold(self, ids: Iterable[int]) -> None:
        """One more table holds these blocks."""
        refs, wake = self.pool.refs, self._resting.pop
        for block in ids:
            refs[block] += 1
            wake(block, None)

    def drop(self, ids: Iterable[int]) -> list[int]:
        """A table drops these blocks, in this order: free again, or evictable where only the cache holds them.

        Returns those that are free.
        """
        refs, entries, pins, resting = self.pool.refs, self._entry, self.pins, self._resting
        freed = []
        for block in ids:
            refs[block] = left = refs[block] - 1
            if left == 1:
                if entries[block] is not None and not pins[block]:
                    resting[block] = None
            elif not left:
                freed.append(block)
        if freed:
            self.pool.push(freed)
        return freed

    def evict(self, count: int) -> list[int]:
        """Forget the least recently used resting blocks; the cache's reference to them passes to the caller."""
        ids = list(islice(self._resting, count))
        entries: list[Any] = self._entry
        if self.host is not None:
            for block in ids:
                self.host.put(entries[block], block)
        resting, by_key = self._resting, self._by_key
        for block in ids:
            del resting[block], by_key[entries[block][0]]
            entries[block] = None
        return ids

    def insert(
        self, chain: Chain, table: list[int], first: int, last: int, entered: list[int] | None = None
    ) -> tuple[dict[int, int], int]:
        """Enter blocks `first .. last - 1` of a table; those that weren't cached before are added to `entered`.

        Returns the twins, and the number of leading blocks now in the cache. A twin is a block
        whose content another block is cached for; the table is pointed at that one, and the caller drops the twin. A
        twin that other tables hold as well stays what it is, and with it what follows.
        """
        keys, contents, entries, refs = chain.keys(), chain.contents, self._entry, self.pool.refs
        parent = entries[table[first - 1]][3] if first else self._root(chain.salt)  # type: ignore[index]
        find_or_set, serial = self._by_key.setdefault, self._next_serial
        twins: dict[int, int] = {}
        end = last
        for i in range(first, last):
            own, key = table[i], keys[i]
            known = find_or_set(key, own)
            entry = entries[known]
            if entry is None:
                entries[own] = (key, contents[i], parent, serial)
                parent = serial
                serial += 1
                refs[own] += 1
                if entered is not None:
                    entered.append(own)
                continue
            if entry[1] != contents[i] or entry[2] != parent:
                end = i  # another content has this key: the rest stays uncached
                break
            if known != own:
                if refs[own] > 1:  # who shares it would hold the next block, but not its cached parent
                    end = i
                    break
                self.hold([known])
                table[i] = known
                twins[own] = known
            parent = entry[3]
        self._next_serial = serial
        return twins, end

    def pin(self, ids: Iterable[int]) -> None:
        """Keep these cached blocks, a prefix from its head, until they are unpinned as often."""
        for block in ids:
            self.pins[block] += 1
            self._resting.pop(block, None)

    def unpin(self, ids: Sequence[int]) -> None:
        """Let these blocks be evicted again once nobody holds them."""
        for block in reversed(ids):
            self.pins[block] -= 1
            if not self.pins[block] and self.pool.refs[block] == 1:
                self._resting[block] = None

    def check_invariants(self, in_use: set[int]) -> None:
        """Raise AssertionError unless keys match ids, entries their parents, and only what rests may go."""
        entries = {b: entry for b, entry in enumerate(self._entry) if entry is not None}
        assert self._by_key == {entry[0]: b for b, entry in entries.items()}, "the key map and the cached blocks differ"
        keys = {serial: key for key, _, _, serial in entries.values()}
        keys.update({root: chains.root_key(salt) for salt, root in self._roots.items()})
        for b, (key, content, before, _) in entries.items():
            parent = keys.get(before)
            assert parent is not None, f"block {b} is cached, but the block before it is not"
            assert chains.key_of((parent, content)) == key, f"block {b}'s key is not of its ids"
        pinned = {b for b, count in enumerate(self.pins) if count}
        assert pinned <= set(entries), "a pinned block is not cached"
        assert set(self._resting) == set(entries) - in_use - pinned, "the evictable blocks are miscounted"

    def _root(self, salt: int) -> int:
        return self._roots.setdefault(salt, -1 - len(self._roots))
