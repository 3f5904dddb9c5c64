"""What must hold between any two operations, recounted from scratch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from refsim.kvcache.sizing import blocks_for

if TYPE_CHECKING:
    from refsim.kvcache.manager import BlockManager


def check_invariants(manager: BlockManager) -> None:
    """Raise AssertionError unless the manager's books agree with a recount from its tables and its prefix cache.

    Each block's count is the tables and cache entries that hold it; free + used + evictable is the pool; and a
    block into which a sequence could write has no second holder, so that no two live sequences own one slot.
    """
    manager.pool.check_invariants()
    refs = np.zeros(manager.pool.num_blocks, np.int64)
    for seq_id, seq in manager._sequences.items():
        held = np.unique(seq.table)
        refs[held] += 1
        want = blocks_for(seq.tokens, manager.block_size)
        assert seq.blocks == want, f"sequence {seq_id!r} of {seq.tokens} tokens has {seq.blocks} blocks, not {want}"
        assert seq.cached * manager.block_size <= seq.computed <= seq.tokens, f"sequence {seq_id!r} overstates its work"
        if not seq.repeats:
            assert held.size == seq.table.size, f"sequence {seq_id!r} names a block twice: {seq.table.tolist()}"
    in_use = refs > 0
    if manager.prefix is not None:
        manager.prefix.check_invariants(in_use)
        in_use |= manager.prefix.pins > 0
        refs += manager.prefix.cached
    used = int(in_use.sum())
    assert np.array_equal(refs, manager.pool.refs), "reference counts differ from a recount of tables and cache entries"
    stats = manager.stats()
    assert stats.used == used, f"{used} blocks are in tables or pinned, but stats says {stats.used}"
    assert stats.free + stats.used + stats.evictable == stats.usable, f"blocks are lost: {stats}"
