"""Keys and values in a paged cache: a program reads its block ids from the table, then the slots they name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from refsim.attention.plan import Sequence
from refsim.machine import Machine, Programs
from refsim.machine.tile import Buffer

if TYPE_CHECKING:
    from jaxtyping import Float, Int


class PagedKeys:
    """Caches (num_blocks, block_size, G, D) in HBM with their block tables and lengths."""

    def __init__(
        self,
        machine: Machine,
        k_cache: Float[np.ndarray, "num_blocks block_size G D"],
        v_cache: Float[np.ndarray, "num_blocks block_size G Dv"],
        block_tables: Int[np.ndarray, "S max_blocks"],
        seq_lens: Int[np.ndarray, " S"],
    ) -> None:
        self.block_size = k_cache.shape[1]
        self.k = machine.hbm("k_cache", k_cache.transpose(2, 0, 1, 3)[:, None])
        self.v = machine.hbm("v_cache", v_cache.transpose(2, 0, 1, 3)[:, None])
        self.k_dtype, self.v_dtype = k_cache.dtype, v_cache.dtype
        self.block_tables = machine.hbm("block_tables", block_tables)
        self.seq_lens = machine.hbm("seq_lens", seq_lens)
        self._slots: tuple[np.ndarray, np.ndarray] | None = None

    def load_lengths(self, prog: Programs, seq: Sequence) -> None:
        """The sequence's entry of seq_lens."""
        prog.load_index(self.seq_lens, seq.index)

    def load_k(self, prog: Programs, seq: Sequence, keys: range, into: Buffer) -> Any:
        """Read the block ids of a tile, then its keys."""
        self._slots = self._find(prog, seq, keys)
        return prog.load(self.k, (slice(None), slice(None), *self._slots), into=into)

    def load_v(self, prog: Programs, seq: Sequence, keys: range, into: Buffer) -> Any:
        """The values at the slots that `load_k` has just found: block ids are read once a tile."""
        assert self._slots is not None
        return prog.load(self.v, (slice(None), slice(None), *self._slots), into=into)

    def _find(self, prog: Programs, seq: Sequence, keys: range) -> tuple[np.ndarray, np.ndarray]:
        B = self.block_size
        first, stop = keys.start // B, -(-keys.stop // B)
        ids = prog.load_index(self.block_tables, (seq.index, slice(first, stop)))
        at = np.arange(keys.start, keys.stop)
        return ids[at // B - first].astype(np.int64), at % B
