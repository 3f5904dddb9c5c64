"""What must hold between any two operations, recounted from scratch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from refsim.kvcache.sizing import blocks_for

if TYPE_CHECKING:
    from refsim.kvcache.manager import BlockManager


def check_invariants(manager: BlockManager) -> None:
    """Raise AssertionError unless the manager's books agree with a recount from its tables and its prefix cache.

    Each block's count is the tables and cache entries that hold it; free + used + evictable is the pool; and a
    block into which a sequence could write has no second holder, so that no two live sequences own one slot.
    """
    manager.pool.check_invariants()
    refs = [0] * manager.pool.num_blocks
    for seq_id, seq in manager._sequences.items():
        entries = [b for row in seq.rows for b in row]
        for block in set(entries):
            refs[block] += 1
        want = blocks_for(seq.tokens, manager.block_size)
        assert all(len(row) == want for row in seq.rows), f"sequence {seq_id!r} of {seq.tokens} tokens: {seq.rows}"
        assert seq.cached * manager.block_size <= seq.computed <= seq.tokens, f"sequence {seq_id!r} overstates its work"
        assert seq.repeats or len(set(entries)) == len(entries), f"sequence {seq_id!r} names a block twice: {seq.rows}"
        tails = [row[-1] for row in seq.rows] if seq.tokens % manager.block_size else []
        assert seq.tail_shared or all(manager.pool.refs[b] == 1 and seq.named_once(b) for b in tails), (
            f"sequence {seq_id!r} writes to others"
        )
    in_use = {b for b, count in enumerate(refs) if count}
    if manager.prefix is not None:
        manager.prefix.check_invariants(in_use)
        in_use |= {b for b, count in enumerate(manager.prefix.pins) if count}
        for block in manager.prefix.entries:
            refs[block] += 1
    assert refs == manager.pool.refs, "reference counts differ from a recount of tables and cache entries"
    stats = manager.stats()
    assert stats.used == len(in_use), f"{len(in_use)} blocks are in tables or pinned, but stats says {stats.used}"
    assert stats.free + stats.used + stats.evictable == stats.usable, f"blocks are lost: {stats}"
