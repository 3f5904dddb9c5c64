"""What copy-on-write saves when several outputs share a prompt: parallel samples and beams, on the real manager.

Source: the paged KV cache text, sharing; PagedAttention, SOSP 2023, whose figure of merit is
blocks saved by sharing, of the blocks that would be needed without, averaged over the request's life.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from refsim.kvcache import BlockManager, blocks_for

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Sharing:
    """Blocks held, summed over the steps of a request: with sharing, and as if each sequence had its own."""

    shared: int
    separate: int
    copies: int

    @property
    def saving(self) -> float:
        """Part of the blocks that sharing saves."""
        return 1 - self.shared / self.separate if self.separate else 0.0


def parallel_sampling(prompt_len: int, output_len: int, samples: int, block_size: int = 16) -> Sharing:
    """One prompt, `samples` outputs: each forks the prompt and copies its last block when it first writes.

    >>> round(parallel_sampling(160, 0, 4).saving, 2)  # the prompt alone: three of four
    0.75
    """
    manager, ids = _start(prompt_len, output_len, samples, block_size)
    shared = separate = 0
    for step in range(output_len + 1):
        if step:
            for seq in ids:
                manager.append(seq)
        shared += manager.stats().used
        separate += samples * blocks_for(prompt_len + step, block_size)
    return Sharing(shared, separate, _copies(manager))


def beam_search(
    prompt_len: int, output_len: int, beams: int, rng: np.random.Generator, block_size: int = 16
) -> Sharing:
    """Beams that each step descend from a beam drawn by chance: those without heirs are freed, others forked.

    Real beams prefer few parents, and share more; how much depends on the model.
    """
    manager, ids = _start(prompt_len, output_len, beams, block_size)
    shared = separate = 0
    names = iter(range(beams, (output_len + 1) * beams * 2))
    for step in range(output_len + 1):
        if step:
            heirs = []
            for parent in rng.integers(0, beams, beams).tolist():
                child = next(names)
                manager.fork(ids[parent], child)
                heirs.append(child)
            for old in ids:
                manager.free(old)
            ids = heirs
            for seq in ids:
                manager.append(seq)
        shared += manager.stats().used
        separate += beams * blocks_for(prompt_len + step, block_size)
    return Sharing(shared, separate, _copies(manager))


def _start(prompt_len: int, output_len: int, count: int, block_size: int) -> tuple[BlockManager, list[int]]:
    if prompt_len < 1 or output_len < 0 or count < 1:
        raise ValueError(f"{prompt_len} in, {output_len} out, {count} sequences; expected at least 1, 0 and 1")
    manager = BlockManager(2 * count * blocks_for(prompt_len + output_len, block_size) + count, block_size, record=True)
    manager.allocate(0, prompt_len)
    for seq in range(1, count):
        manager.fork(0, seq)
    return manager, list(range(count))


def _copies(manager: BlockManager) -> int:
    return sum(len(e.blocks) for e in manager.events or [] if e.kind == "copy")
