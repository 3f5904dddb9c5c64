"""Paged KV cache: addresses, sizes, the block manager, the cache with values, and other people's layouts.

How the parts work together, for somebody who writes a decoder::

    manager = BlockManager(num_blocks=64, block_size=16)
    kv = PagedKV(manager, layers=2, num_kv_heads=4, head_dim=32, dtype=np.float32)

    manager.allocate("a", prompt_ids)          # or a number of tokens; takes blocks for all of them, or raises
    slots = kv.slot_mapping("a", 0, n)         # int64: block * block_size + offset, one a token
    for layer in range(2):
        kv.write(slots, k, v, layer=layer)     # k (n, G, D), v (n, G, Dv)
        k_pool, v_pool = kv.pools(layer)       # views (num_blocks, block_size, G, D or Dv): what a kernel reads
        tables = kv.block_tables(["a"])        # int32 (sequences, max_blocks), padded with -1
        lens = kv.seq_lens(["a"])              # int32 (sequences,)
    manager.commit("a")                        # with a prefix cache: full blocks may be shared from now on

    manager.append("a", 1)                     # one more token: a new block when full, a copy first when shared
    manager.fork("a", "b")                     # b holds the same blocks; whoever writes first copies
    manager.free("a")                          # drops the references; the last holder's blocks are recycled

`kv.append(seq_id, k, v)` does an append and the writes of all layers in one call. With `BlockManager(..., tables=L)`
each layer has a block table of its own, and all layers share one pool: pass `layer=` to the look-ups. By default
(`tables=1`) one table serves all layers.

With `BlockManager(..., prefix_cache=True)`, `allocate` with token ids shares leading blocks that are cached and returns
how many tokens that is: compute from there on. `pin(ids)` keeps a popular prompt; `host_blocks=N` adds a second tier;
`record=True` keeps `manager.events`, which `story.tell` tells again. The baselines are in `contiguous`.

Every failed call leaves the manager and the cache exactly as they were.
"""

from refsim.kvcache.address import byte_offset, element_offset, first_overflowing_block, locate, slot_to_block
from refsim.kvcache.books import Stats
from refsim.kvcache.chain import Chain
from refsim.kvcache.errors import DuplicateSequence, OutOfBlocks, UnknownSequence
from refsim.kvcache.events import Event
from refsim.kvcache.index_formats import check_tables
from refsim.kvcache.manager import BlockManager
from refsim.kvcache.paged_kv import PagedKV
from refsim.kvcache.pool import BlockPool
from refsim.kvcache.sizing import block_nbytes, blocks_for, pool_nbytes, token_nbytes

__all__ = [
    "BlockManager",
    "BlockPool",
    "Chain",
    "DuplicateSequence",
    "Event",
    "OutOfBlocks",
    "PagedKV",
    "Stats",
    "UnknownSequence",
    "block_nbytes",
    "blocks_for",
    "byte_offset",
    "check_tables",
    "element_offset",
    "first_overflowing_block",
    "locate",
    "pool_nbytes",
    "slot_to_block",
    "token_nbytes",
]
