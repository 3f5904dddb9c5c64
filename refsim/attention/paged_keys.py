"""Keys and values in a paged cache: a program reads its block ids from the table, then the slots they name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from refsim.attention.call import Keys
from refsim.attention.plan import Sequence
from refsim.machine import Machine, Programs

if TYPE_CHECKING:
    from jaxtyping import Float, Int


class PagedKeys(Keys):
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
        self.block_tables = machine.hbm("block_tables", block_tables)
        self.seq_lens = machine.hbm("seq_lens", seq_lens)

    def load_lengths(self, prog: Programs, seq: Sequence) -> None:
        """The sequence's entry of seq_lens."""
        prog.load_index(self.seq_lens, seq.index)

    def locate(self, prog: Programs, seq: Sequence, keys: range) -> Any:
        """Read the block ids of a tile: its keys and values lie in these blocks and slots."""
        B = self.block_size
        first, stop = keys.start // B, -(-keys.stop // B)
        ids = prog.load_index(self.block_tables, (seq.index, slice(first, stop)))
        at = np.arange(keys.start, keys.stop)
        return slice(None), slice(None), ids[at // B - first].astype(np.int64), at % B
