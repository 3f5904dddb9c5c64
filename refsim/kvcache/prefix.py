"""The prefix cache: full blocks kept under a chained hash, shared by later sequences, evicted least recently used.

A cached block holds one reference for the cache. While a table holds it too it is in use and can't be evicted; with the
cache's reference alone it rests, and may be. Source: the attention text, prefix caching; PagedAttention, SOSP 2023.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from refsim.kvcache.chain import chained, root_hash
from refsim.kvcache.lru import RestingQueue

if TYPE_CHECKING:
    from jaxtyping import Bool, Int32, Int64, UInt64

    from refsim.kvcache.chain import Chain
    from refsim.kvcache.pool import BlockPool


class PrefixCache:
    """The cached blocks of one pool.

    Each entry remembers its token ids and its parent (the serial number of the entry before it, or a root for each
    salt), so that a hit is certain: hashes only say where to look. Whoever holds a block holds its cached parent too,
    and drops the tail first, so that a parent is never evicted before its children.

    >>> from refsim.kvcache import BlockManager
    >>> m = BlockManager(8, 4, prefix_cache=True)
    >>> m.allocate("a", range(9)), m.commit("a"), m.allocate("b", [0, 1, 2, 3, 9, 9, 9, 9, 9])
    (0, None, 4)
    >>> m.table("a"), m.table("b")
    (array([0, 1, 2], dtype=int32), array([0, 3, 4], dtype=int32))
    """

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self.pool = pool
        self.block_size = block_size
        self.cached: Bool[np.ndarray, "num_blocks"] = np.zeros(pool.num_blocks, bool)
        self.pins: Int32[np.ndarray, "num_blocks"] = np.zeros(pool.num_blocks, np.int32)
        self._queue = RestingQueue(pool.num_blocks)
        self._by_hash: dict[int, int] = {}
        self._hash: UInt64[np.ndarray, "num_blocks"] = np.zeros(pool.num_blocks, np.uint64)
        self._ids: Int64[np.ndarray, "num_blocks block_size"] = np.empty((pool.num_blocks, block_size), np.int64)
        self._parent = np.zeros(pool.num_blocks, np.int64)
        self._serial = np.zeros(pool.num_blocks, np.int64)
        self._next_serial = 0
        self._roots: dict[int, int] = {}

    @property
    def evictable(self) -> int:
        """Blocks that only the cache holds, and that are not pinned."""
        return self._queue.size

    def match(self, chain: Chain, tokens: int) -> Int32[np.ndarray, "hit"]:
        """Cached blocks that a sequence of so many of these ids begins with, leaving at least one token to compute."""
        found: list[int] = []
        get = self._by_hash.get
        for key in chain.hashes()[: max(0, tokens - 1) // self.block_size].tolist():
            block = get(key)
            if block is None:
                break
            found.append(block)
        ids = np.array(found, np.int32)
        if ids.size:
            parents = np.concatenate([[self._root(chain.salt)], self._serial[ids[:-1]]])
            same = (self._ids[ids] == chain.blocks(0, ids.size)).all(axis=1) & (self._parent[ids] == parents)
            if not same.all():
                ids = ids[: int(np.argmin(same))]
        return ids

    def resting(self, ids: Int32[np.ndarray, "blocks"]) -> int:
        """How many of these blocks are evictable now."""
        return self._queue.count(ids)

    def hold(self, ids: Int32[np.ndarray, "blocks"]) -> None:
        """One more table holds these blocks."""
        self.pool.refs[ids] += 1
        self._queue.remove(ids)

    def rest(self, ids: Int32[np.ndarray, "blocks"]) -> None:
        """A table dropped these blocks, in this order; those that only the cache holds become evictable."""
        alone = self.cached[ids] & (self.pool.refs[ids] == 1) & (self.pins[ids] == 0)
        self._queue.push(ids[alone])

    def evict(self, count: int) -> Int32[np.ndarray, "count"]:
        """Forget the least recently used resting blocks; the caller drops the cache's reference."""
        ids = self._queue.pop(count)
        for key in self._hash[ids].tolist():
            del self._by_hash[key]
        self.cached[ids] = False
        return ids

    def insert(
        self, chain: Chain, table: Int32[np.ndarray, "blocks"], first: int, last: int
    ) -> tuple[Int32[np.ndarray, "entered"], Int32[np.ndarray, "twins"], int]:
        """Enter blocks `first .. last - 1` of a table, of which the blocks before are entered.

        Returns the blocks entered, the twins, and the number of leading blocks now in the cache. A twin is a block
        whose content another block is cached for; the table is pointed at that one, and the caller drops the twin.
        """
        ids, keys = table[first:last], chain.hashes()[first:last].tolist()
        parent = int(self._serial[table[first - 1]]) if first else self._root(chain.salt)
        tokens = chain.blocks(first, last)
        if self._by_hash.keys().isdisjoint(keys) and len(set(keys)) == len(keys):
            self._enter(ids, keys, tokens, parent)
            return ids, ids[:0], last
        entered, twins = [], []
        for i, key in enumerate(keys):
            own, known = int(ids[i]), self._by_hash.get(key)
            if known is None:
                self._enter(ids[i : i + 1], [key], tokens[i : i + 1], parent)
                entered.append(own)
                known = own
            elif self._parent[known] != parent or not np.array_equal(self._ids[known], tokens[i]):
                last = first + i  # another content has this hash: the rest stays uncached
                break
            elif known != own:
                self.hold(np.array([known]))
                ids[i] = known
                twins.append(own)
            parent = int(self._serial[known])
        return np.array(entered, np.int32), np.array(twins, np.int32), last

    def pin(self, ids: Int32[np.ndarray, "blocks"]) -> None:
        """Keep these cached blocks, a prefix from its head, until they are unpinned as often."""
        self.pins[ids] += 1
        self._queue.remove(ids)

    def unpin(self, ids: Int32[np.ndarray, "blocks"]) -> None:
        """Let these blocks be evicted again once nobody holds them."""
        self.pins[ids] -= 1
        self.rest(ids[::-1])

    def check_invariants(self, in_use: Bool[np.ndarray, "num_blocks"]) -> None:
        """Raise AssertionError unless hashes match tokens, entries their parents, and only what rests may go."""
        blocks = np.flatnonzero(self.cached).tolist()
        assert self._by_hash == {int(self._hash[b]): b for b in blocks}, "the hash map and the cached blocks differ"
        hashes = {int(self._serial[b]): int(self._hash[b]) for b in blocks}
        hashes.update({root: root_hash(salt) for salt, root in self._roots.items()})
        for b in blocks:
            parent = hashes.get(int(self._parent[b]))
            assert parent is not None, f"block {b} is cached, but the block before it is not"
            assert chained(self._ids[b : b + 1], parent)[0] == self._hash[b], f"block {b}'s hash is not of its tokens"
        resting = self.cached & ~in_use & (self.pins == 0)
        assert not (self.pins[~self.cached] != 0).any(), "a pinned block is not cached"
        assert np.array_equal(self._queue.members(), np.flatnonzero(resting)), "the evictable blocks are miscounted"

    def _enter(
        self,
        ids: Int32[np.ndarray, "blocks"],
        keys: list[int],
        tokens: Int64[np.ndarray, "blocks block_size"],
        parent: int,
    ) -> None:
        serials = np.arange(self._next_serial, self._next_serial + ids.size)
        self._next_serial += ids.size
        self._by_hash.update(zip(keys, ids.tolist(), strict=True))
        self._hash[ids] = keys
        self._ids[ids] = tokens
        self._serial[ids] = serials
        self._parent[ids[1:]] = serials[:-1]
        self._parent[ids[0]] = parent
        self.cached[ids] = True
        self.pool.refs[ids] += 1

    def _root(self, salt: int) -> int:
        return self._roots.setdefault(salt, -1 - len(self._roots))
