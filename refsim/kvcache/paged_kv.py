"""K and V values in the manager's blocks: pools of all layers, written through slot mappings.

Source: the paged KV cache text. Layout of a layer's pool: (num_blocks, block_size, num_kv_heads, head_dim).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from refsim.checks import is_real, whole_number
from refsim.kvcache.address import check_no_slot_twice, slot_to_block
from refsim.kvcache.manager import BlockManager
from refsim.numerics import DTYPES, dtype_of

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from jaxtyping import Float, Int32, Int64
    from numpy.typing import DTypeLike


class PagedKV:
    """The cache with its values. The manager decides which blocks; this holds what is in them.

    `k` is (layers, num_blocks, block_size, num_kv_heads, head_dim), `v` the same with `v_head_dim`. When the manager
    gives each layer its own table (`manager.tables == layers`), layers share one pool and the first axis is 1.
    `dtype` is one of the floating types in `numerics.DTYPES`, or its name there.
    With `poison` every slot that no token was written to holds NaN, and freed blocks are poisoned again, so that
    reading what one shouldn't shows. Copies before a write and frees follow from the manager by subscription.

    >>> from refsim.kvcache import BlockManager
    >>> kv = PagedKV(BlockManager(4, 2), layers=1, num_kv_heads=1, head_dim=1)
    >>> kv.manager.allocate("a", 0)
    0
    >>> kv.append("a", np.array([[[[1.0]], [[2.0]], [[3.0]]]]), np.array([[[[4.0]], [[5.0]], [[6.0]]]]))
    >>> kv.gather("a")[1].ravel(), kv.table("a"), int(np.isnan(kv.k).sum())
    (array([4., 5., 6.], dtype=float32), array([0, 1], dtype=int32), 5)
    """

    def __init__(
        self,
        manager: BlockManager,
        layers: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: DTypeLike = np.float32,
        *,
        v_head_dim: int | None = None,
        poison: bool = True,
    ) -> None:
        if not isinstance(manager, BlockManager):
            raise TypeError(f"manager is {manager!r}; expected a BlockManager, which decides on the blocks")
        layers, num_kv_heads = whole_number("layers", layers, 1), whole_number("num_kv_heads", num_kv_heads, 1)
        head_dim = whole_number("head_dim", head_dim, 1)
        v_head_dim = head_dim if v_head_dim is None else whole_number("v_head_dim", v_head_dim, 0)  # 0: K only
        try:
            self.dtype = dtype_of(dtype)
        except TypeError:
            raise ValueError(f"dtype {dtype!r} can't be cached; expected one of {', '.join(DTYPES)}") from None
        if manager.tables not in (1, layers):
            raise ValueError(f"the manager has {manager.tables} tables a sequence; {layers} layers need 1 or {layers}")
        self.manager = manager
        self.layers = layers
        self.poison = poison
        pools = layers if manager.tables == 1 else 1
        shape = (pools, manager.pool.num_blocks, manager.block_size, num_kv_heads)
        fill = np.nan if poison else 0
        self.k: Float[np.ndarray, "pools num_blocks block_size heads head_dim"]
        self.v: Float[np.ndarray, "pools num_blocks block_size heads v_head_dim"]
        self.k = np.full((*shape, head_dim), fill, self.dtype)
        self.v = np.full((*shape, v_head_dim), fill, self.dtype)
        manager.subscribe(copied=self._copy, freed=self._clear, trimmed=self._trim)
        self._host: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        if manager.prefix is not None and manager.prefix.host is not None:
            manager.prefix.host.subscribe(store=self._store, fetch=self._fetch, forget=self._host.__delitem__)

    @property
    def nbytes(self) -> int:
        """Bytes of all pools."""
        return self.k.nbytes + self.v.nbytes

    def append(
        self,
        seq_id: Hashable,
        k: Float[np.ndarray, "layers n heads head_dim"],
        v: Float[np.ndarray, "layers n heads v_head_dim"],
    ) -> None:
        """Take room for n more tokens and write their K and V in all layers. All or nothing.

        Raises UnknownSequence, OutOfBlocks, and ValueError for shapes that don't fit and for what are no real numbers.
        """
        k, v = np.asarray(k), np.asarray(v)
        start = self.manager.length(seq_id)
        for name, rows in (("k", k), ("v", v)):
            if rows.ndim != 4 or rows.shape[0] != self.layers:
                raise ValueError(f"{name} is {rows.shape}; expected ({self.layers} layers, tokens, heads, head_dim)")
        self._check_rows(k[0], v[0], k.shape[1])
        if v.shape[1] != k.shape[1]:
            raise ValueError(f"k has {k.shape[1]} tokens and v {v.shape[1]}; expected as many")
        k, v = self._rounded("k", k), self._rounded("v", v)
        self.manager.append(seq_id, k.shape[1])
        try:
            for layer in range(self.layers):
                self.write(self.slot_mapping(seq_id, start, k.shape[1], layer), k[layer], v[layer], layer=layer)
        except BaseException:  # an interrupt between two layers: no token may be there in some of them only
            self.manager.truncate(seq_id, start)
            raise

    def write(
        self,
        slot_mapping: Int64[np.ndarray, "n"],
        k: Float[np.ndarray, "rows heads head_dim"],
        v: Float[np.ndarray, "rows heads v_head_dim"],
        *,
        layer: int = 0,
    ) -> None:
        """Write row i of K and V to slot `slot_mapping[i]` of a layer, rounded to the cache's type.

        -1 skips a row, and rows beyond the mapping (padding) are not written. Raises ValueError, and writes nothing,
        for any other slot out of range, a slot named twice, what are no real numbers, and a block that is free, shared
        or in the prefix cache: nobody may write into what another holder reads.
        """
        pool = self._pool(layer)
        slots = np.asarray(slot_mapping)
        blocks, offsets = slot_to_block(slots, self.manager.block_size, self.manager.pool.num_blocks)
        k, v = np.asarray(k), np.asarray(v)
        self._check_rows(k, v, slots.size)
        real = np.flatnonzero(blocks >= 0)
        blocks, offsets = blocks[real], offsets[real]
        refs, prefix = self.manager.pool.refs, self.manager.prefix
        for block in set(blocks.tolist()):
            cached = prefix is not None and prefix.caches(block)
            if refs[block] != 1 or cached:
                why = "in the prefix cache" if cached else f"held by {refs[block]}" if refs[block] else "free"
                raise ValueError(f"block {block} is {why}; allocate or append first, which also copies what is shared")
        check_no_slot_twice(slots[real])
        rounded_k, rounded_v = self._rounded("k", k[real]), self._rounded("v", v[real])
        self.k[pool, blocks, offsets] = rounded_k
        self.v[pool, blocks, offsets] = rounded_v

    def gather(
        self, seq_id: Hashable, layer: int = 0
    ) -> tuple[Float[np.ndarray, "tokens heads head_dim"], Float[np.ndarray, "tokens heads v_head_dim"]]:
        """A contiguous copy of a sequence's K and V: what stage A does, and what it costs."""
        slots = self.slot_mapping(seq_id, 0, self.manager.length(seq_id), layer)
        blocks, offsets = slots // self.manager.block_size, slots % self.manager.block_size
        pool = self._pool(layer)
        return self.k[pool, blocks, offsets], self.v[pool, blocks, offsets]

    def pools(
        self, layer: int = 0
    ) -> tuple[
        Float[np.ndarray, "num_blocks block_size heads head_dim"],
        Float[np.ndarray, "num_blocks block_size heads v_head_dim"],
    ]:
        """A layer's K and V pools, not copied: what a kernel reads through `block_tables`."""
        return self.k[self._pool(layer)], self.v[self._pool(layer)]

    def table(self, seq_id: Hashable, layer: int = 0) -> Int32[np.ndarray, "blocks"]:
        """The block table a layer uses for a sequence."""
        return self.manager.table(seq_id, self._table(layer))

    def block_tables(self, seq_ids: Sequence[Hashable], layer: int = 0) -> Int32[np.ndarray, "sequences max_blocks"]:
        """The block tables a layer uses, padded with -1."""
        return self.manager.block_tables(seq_ids, self._table(layer))

    def seq_lens(self, seq_ids: Sequence[Hashable]) -> Int32[np.ndarray, "sequences"]:
        """Tokens of each sequence that have a slot."""
        return self.manager.seq_lens(seq_ids)

    def slot_mapping(self, seq_id: Hashable, start: int, count: int, layer: int = 0) -> Int64[np.ndarray, "count"]:
        """Slots of tokens `start .. start + count - 1` in a layer."""
        return self.manager.slot_mapping(seq_id, start, count, self._table(layer))

    def _layer(self, given: int) -> int:
        layer = whole_number("layer", given)
        if not 0 <= layer < self.layers:
            raise ValueError(f"layer is {layer}; the cache has {self.layers}, counted from 0")
        return layer

    def _table(self, layer: int) -> int:
        layer = self._layer(layer)
        return layer if self.manager.tables > 1 else 0

    def _pool(self, layer: int) -> int:
        layer = self._layer(layer)
        return 0 if self.manager.tables > 1 else layer

    def _check_rows(self, k: np.ndarray, v: np.ndarray, count: int) -> None:
        for name, rows, pool in [("k", k, self.k), ("v", v, self.v)]:
            if rows.ndim != 3 or rows.shape[1:] != pool.shape[3:] or rows.shape[0] < count:
                raise ValueError(
                    f"{name} is {rows.shape}; expected (at least {count} rows, {pool.shape[3]} heads, {pool.shape[4]})"
                )

    def _rounded(self, name: str, rows: np.ndarray) -> np.ndarray:
        """In the cache's type, as `numerics.round_to` does: what is too large becomes inf, or NaN, and no warning."""
        if rows.dtype == self.dtype:
            return rows
        if not is_real(rows.dtype):
            raise ValueError(f"{name} is {rows.dtype}; expected real numbers")
        with np.errstate(over="ignore", invalid="ignore"):
            return rows.astype(self.dtype)

    def _copy(self, sources: list[int], targets: list[int]) -> None:
        self.k[:, targets] = self.k[:, sources]
        self.v[:, targets] = self.v[:, sources]

    def _store(self, serial: int, block: int) -> None:
        self._host[serial] = self.k[:, block].copy(), self.v[:, block].copy()

    def _fetch(self, serial: int, block: int) -> None:
        self.k[:, block], self.v[:, block] = self._host.pop(serial)

    def _trim(self, ids: list[int], slot: int) -> None:
        if self.poison:
            self.k[:, ids, slot:] = np.nan
            self.v[:, ids, slot:] = np.nan

    def _clear(self, ids: list[int]) -> None:
        if self.poison:
            self.k[:, ids] = np.nan
            self.v[:, ids] = np.nan
