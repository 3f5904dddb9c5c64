"""The prefix cache: full blocks kept under a chained key, shared by later sequences, evicted least recently used.

A cached block holds one reference for the cache. While a table holds it too it is in use and can't be evicted; with the
cache's reference alone it rests, and may be. Source: the attention text, prefix caching; PagedAttention, SOSP 2023.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

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
        # Of each block: its key (None: not cached), the bytes of its ids, its own number and its parent's.
        self._key: list[int | None] = [None] * pool.num_blocks
        self._content = [b""] * pool.num_blocks
        self._serial = [0] * pool.num_blocks
        self._parent = [0] * pool.num_blocks
        self._next_serial = 0
        self._roots: dict[int, int] = {}

    @property
    def evictable(self) -> int:
        """Blocks that only the cache holds, and that are not pinned."""
        return len(self._resting)

    @property
    def entries(self) -> list[int]:
        """The cached blocks."""
        return [b for b, key in enumerate(self._key) if key is not None]

    def match(self, chain: Chain, tokens: int) -> tuple[list[int], list[int]]:
        """Cached blocks that a sequence of so many of these ids begins with, leaving at least one token to compute.

        Returns the blocks, and the keys of those that follow in the host tier.
        """
        found: list[int] = []
        parent = self._root(chain.salt)
        find, parents, serials, contents = self._by_key.get, self._parent, self._serial, self._content
        keys = chain.keys()[: max(0, tokens - 1) // chain.block_size]
        for key, content in zip(keys, chain.contents, strict=False):
            block = find(key)
            if block is None or parents[block] != parent or contents[block] != content:
                break
            found.append(block)
            parent = serials[block]
        below: list[int] = []
        if self.host is not None:
            for key, content in zip(keys[len(found) :], chain.contents[len(found) :], strict=False):
                entry = None if key in self._by_key else self.host.find(key)
                if entry is None or entry.parent != parent or entry.content != content:
                    break
                below.append(key)
                parent = entry.serial
        return found, below

    def restore(self, keys: Sequence[int], entries: Sequence[Entry], ids: Sequence[int]) -> None:
        """Blocks taken from the host tier are cached again, in these fresh blocks."""
        assert self.host is not None
        for key, entry, block in zip(keys, entries, ids, strict=True):
            self._by_key[key], self._key[block] = block, key
            self._content[block], self._parent[block], self._serial[block] = entry
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
        refs, keys, pins, resting = self.pool.refs, self._key, self.pins, self._resting
        freed = []
        for block in ids:
            left = refs[block] - 1
            refs[block] = left
            if left == 0:
                freed.append(block)
            elif left == 1 and keys[block] is not None and not pins[block]:
                resting[block] = None
        self.pool.push(freed)
        return freed

    def evict(self, count: int) -> list[int]:
        """Forget the least recently used resting blocks; the cache's reference to them passes to the caller."""
        keys, oldest = self._key, self._resting.popitem
        ids = [oldest(last=False)[0] for _ in range(count)]
        for block in ids:
            key = keys[block]
            assert key is not None
            if self.host is not None:
                self.host.put(key, Entry(self._content[block], self._parent[block], self._serial[block]), block)
            del self._by_key[key]
            keys[block] = None
        return ids

    def insert(self, chain: Chain, table: list[int], first: int, last: int) -> tuple[list[int], dict[int, int], int]:
        """Enter blocks `first .. last - 1` of a table.

        Returns the blocks entered, the twins, and the number of leading blocks now in the cache. A twin is a block
        whose content another block is cached for; the table is pointed at that one, and the caller drops the twin. A
        twin that other tables hold as well stays what it is, and with it what follows.
        """
        parent = self._serial[table[first - 1]] if first else self._root(chain.salt)
        chain_keys, contents = chain.keys(), chain.contents
        keys, held_contents, parents, serials = self._key, self._content, self._parent, self._serial
        refs, find_or_set = self.pool.refs, self._by_key.setdefault
        entered: list[int] = []
        twins: dict[int, int] = {}
        for i in range(first, last):
            own, key, content = table[i], chain_keys[i], contents[i]
            known = find_or_set(key, own)
            if known == own and keys[own] is None:
                keys[own], held_contents[own], parents[own] = key, content, parent
                serials[own] = parent = self._next_serial
                self._next_serial = parent + 1
                refs[own] += 1
                entered.append(own)
                continue
            if parents[known] != parent or held_contents[known] != content:
                return entered, twins, i  # another content has this key: the rest stays uncached
            if known != own:
                if refs[own] > 1:  # who shares it would hold the next block, but not its cached parent
                    return entered, twins, i
                self.hold([known])
                table[i] = known
                twins[own] = known
            parent = serials[known]
        return entered, twins, last

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
        blocks = self.entries
        assert self._by_key == {self._key[b]: b for b in blocks}, "the key map and the cached blocks differ"
        keys = {self._serial[b]: self._key[b] for b in blocks}
        keys.update({root: chains.root_key(salt) for salt, root in self._roots.items()})
        for b in blocks:
            parent = keys.get(self._parent[b])
            assert parent is not None, f"block {b} is cached, but the block before it is not"
            assert chains.key_of((parent, self._content[b])) == self._key[b], f"block {b}'s key is not of its ids"
        pinned = {b for b, count in enumerate(self.pins) if count}
        assert pinned <= set(blocks), "a pinned block is not cached"
        assert set(self._resting) == set(blocks) - in_use - pinned, "the evictable blocks are miscounted"

    def _root(self, salt: int) -> int:
        return self._roots.setdefault(salt, -1 - len(self._roots))
