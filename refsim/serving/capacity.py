"""What a prefix cache of a given size would hit, without time: requests come one after another and leave."""

from __future__ import annotations

from typing import TYPE_CHECKING

from refsim.kvcache import BlockManager, blocks_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from refsim.serving.request import Request


def token_hit_rate(requests: Sequence[Request], block_size: int, num_blocks: int | None = None) -> float:
    """Prompt tokens found cached, of all prompt tokens; full blocks only, and at least one token computed.

    Only prompts are cached, in a cache of `num_blocks` with least-recently-used eviction, or of any size (None). A
    prompt larger than the cache hits nothing and leaves nothing.

    >>> from refsim.serving.request import Request
    >>> twins = [Request(i, 0.0, 10, 1, hash_ids=(0, 1, 2), hash_block=4, hashed_len=10) for i in range(2)]
    >>> token_hit_rate(twins, 4)
    0.4
    """
    if num_blocks is None:
        num_blocks = max(1, sum(blocks_for(r.prompt_len, block_size) for r in requests))
    manager = BlockManager(num_blocks, block_size, prefix_cache=True)
    hit = 0
    for request in requests:
        ids = request.token_ids()
        if ids is None or blocks_for(request.prompt_len, block_size) > num_blocks:
            continue
        hit += manager.allocate(request.index, ids[: request.prompt_len])
        manager.commit(request.index)
        manager.free(request.index)
    total = sum(r.prompt_len for r in requests)
    return hit / total if total else 0.0
