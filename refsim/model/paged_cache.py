"""A run's cache in blocks: `kvcache.PagedKV` behind the protocol of `caches.Cache`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from refsim.kvcache import BlockManager, PagedKV

if TYPE_CHECKING:
    from jaxtyping import Float

    from refsim.model.config import Config


class PagedCache:
    """Sequences as block tables over pools shared by all of them; a fork shares blocks until it writes.

    >>> from refsim import model
    >>> decoder = model.random_decoder(seed=0)
    >>> cache = PagedCache.of(decoder.config, num_blocks=4, block_size=2)
    >>> run = decoder.start(attention="oracle", cache=cache)
    >>> _ = run.prefill(a := run.open(), [1, 2, 3])
    >>> b = run.fork(a)  # holds the blocks of a; its first write copies the half-filled one
    >>> _ = run.step({b: 4})
    >>> cache.kv.table(a), cache.kv.table(b)
    (array([0, 1], dtype=int32), array([0, 2], dtype=int32))
    """

    def __init__(self, kv: PagedKV) -> None:
        self.kv = kv
        self.manager = kv.manager
        self._next = 0
        self._slots: list[np.ndarray] = []

    @classmethod
    def of(cls, config: Config, num_blocks: int, block_size: int, **manager: Any) -> PagedCache:
        """A cache for a decoder's sizes, float32; further keywords are `BlockManager`'s (tables, record ...)."""
        blocks = BlockManager(num_blocks, block_size, **manager)
        return cls(PagedKV(blocks, config.num_layers, config.num_kv_heads, config.head_dim))

    def open(self) -> int:
        seq, self._next = self._next, self._next + 1
        self.manager.allocate(seq, 0)
        return seq

    def fork(self, seq: int) -> int:
        child, self._next = self._next, self._next + 1
        self.manager.fork(seq, child)
        return child

    def close(self, seq: int) -> None:
        self.manager.free(seq)

    def length(self, seq: int) -> int:
        return self.manager.length(seq)

    def extend(self, counts: Mapping[int, int]) -> None:
        before = {seq: self.length(seq) for seq in counts}
        try:
            for seq, count in counts.items():
                self.manager.append(seq, count)
        except BaseException:
            self.truncate(before)
            raise
        self._slots = [
            np.concatenate([self.manager.slot_mapping(seq, before[seq], count, table) for seq, count in counts.items()])
            for table in range(self.manager.tables)
        ]

    def truncate(self, lengths: Mapping[int, int]) -> None:
        for seq, length in lengths.items():
            self.manager.truncate(seq, length)

    def write(
        self, layer: int, k: Float[np.ndarray, "tokens kv_heads d"], v: Float[np.ndarray, "tokens kv_heads d"]
    ) -> None:
        self.kv.write(self._slots[layer if self.manager.tables > 1 else 0], k, v, layer=layer)

    def gather(
        self, layer: int, seq: int
    ) -> tuple[Float[np.ndarray, "length kv_heads d"], Float[np.ndarray, "length kv_heads d"]]:
        return self.kv.gather(seq, layer)
