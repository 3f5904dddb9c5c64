"""The prefix cache: full blocks kept under a chained hash, shared by later sequences, evicted least recently used.

A cached block holds one reference for the cache. While a table holds it too it is in use and can't be evicted; with the
cache's reference alone it rests, and may be. Source: the attention text, prefix caching; PagedAttention, SOSP 2023.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Bool, Int32, UInt64

    from refsim.kvcache.chain import Chain
    from refsim.kvcache.pool import BlockPool

_NONE = np.empty(0, np.int32)


class PrefixCache:
    """The cached blocks of one pool.

    Each entry remembers its token ids and its parent, the entry of the block before it, so that a hit is certain:
    hashes only say where to look. A holder of a block always holds its cached parent as well, so that a parent is
    never evicted before its children.
    """

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self.pool = pool
        self.block_size = block_size
        self.evictable = 0
        self.cached: Bool[np.ndarray, "num_blocks"] = np.zeros(pool.num_blocks, bool)
        self._by_hash: dict[int, int] = {}
        self._hash: UInt64[np.ndarray, "num_blocks"] = np.zeros(pool.num_blocks, np.uint64)
        self._ids = np.empty((pool.num_blocks, block_size), np.int64)
        self._parent = np.full(pool.num_blocks, -1, np.int64)
        self._serial = np.full(pool.num_blocks, -1, np.int64)
        self._next_serial = 0

    def match(self, chain: Chain) -> Int32[np.ndarray, "hit"]:
        """Cached blocks that a sequence of these ids begins with, leaving at least one token to compute."""
        raise NotImplementedError

    def resting(self, ids: Int32[np.ndarray, "blocks"]) -> int:
        """How many of these blocks are evictable now."""
        raise NotImplementedError

    def hold(self, ids: Int32[np.ndarray, "blocks"]) -> None:
        """One more table holds these blocks."""
        raise NotImplementedError

    def rest(self, ids: Int32[np.ndarray, "blocks"]) -> None:
        """Tables dropped these blocks, in this order; those that only the cache holds become evictable."""
        raise NotImplementedError

    def evict(self, count: int) -> Int32[np.ndarray, "count"]:
        """Forget the least recently used resting blocks; the caller drops the cache's reference."""
        raise NotImplementedError

    def insert(
        self, chain: Chain, table: Int32[np.ndarray, "blocks"], first: int, last: int
    ) -> tuple[Int32[np.ndarray, "entered"], Int32[np.ndarray, "twins"]]:
        """Enter blocks `first .. last - 1` of a table."""
        raise NotImplementedError

    def check_invariants(self, in_use: Bool[np.ndarray, "num_blocks"]) -> None:
        """Raise AssertionError unless every entry can be found and no resting block is in use."""
        raise NotImplementedError
