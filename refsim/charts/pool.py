"""The pool of a paged cache as a map: which physical block is whose, how full it is, and who shares it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from refsim.charts.style import FAINT, INK, SERIES, new_axes
from refsim.kvcache import BlockManager, blocks_for

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class BlockOnMap:
    """A physical block: the sequences whose tables name it, its references, and its slots in use."""

    holders: tuple[Hashable, ...]
    refs: int
    used_slots: int


def blocks_on_map(manager: BlockManager) -> list[BlockOnMap]:
    """What `pool_map` draws, block by block: the manager's state now.

    >>> manager = BlockManager(3, 4)
    >>> _ = manager.allocate("a", 6); manager.fork("a", "b")
    >>> blocks_on_map(manager)[1]
    BlockOnMap(holders=('a', 'b'), refs=2, used_slots=2)
    """
    B = manager.block_size
    holders: dict[int, list[Hashable]] = {}
    used: dict[int, int] = {}
    for seq in manager.sequences:
        tokens = manager.length(seq)
        for table in range(manager.tables):
            for logical, block in enumerate(manager.table(seq, table)[: blocks_for(tokens, B)].tolist()):
                if seq not in holders.setdefault(block, []):
                    holders[block].append(seq)
                used[block] = max(used.get(block, 0), min(tokens - logical * B, B))
    return [
        BlockOnMap(tuple(holders.get(block, ())), int(refs), used.get(block, 0))
        for block, refs in enumerate(manager.pool.refs)
    ]


def pool_map(
    manager: BlockManager,
    *,
    names: Mapping[Hashable, str] | None = None,
    columns: int = 8,
    ax: Axes | None = None,
) -> Axes:
    """One square a physical block, filled from below by slots in use, a stripe for each sequence that holds it.

    names: what to call the sequences in the legend. Shared blocks say how many references they have.

    >>> manager = BlockManager(3, 4)
    >>> _ = manager.allocate("a", 6); manager.fork("a", "b")
    >>> [text.get_text() for text in pool_map(manager, columns=3).texts]
    ['P0\\n2 refs', 'P1\\n2 refs', 'P2']
    """
    if columns < 1:
        raise ValueError(f"columns must be 1 or more, got {columns}")
    from matplotlib.patches import Patch, Rectangle

    blocks = blocks_on_map(manager)
    rows = -(-len(blocks) // columns)
    ax = new_axes(ax, 0.95 * columns + 0.2, 0.95 * rows + 0.7)
    colours = {seq: SERIES[i % len(SERIES)] for i, seq in enumerate(manager.sequences)}
    side = 0.9
    for number, block in enumerate(blocks):
        x, y = number % columns, -(number // columns)
        height = side * block.used_slots / manager.block_size
        for i, seq in enumerate(block.holders):
            stripe = side / len(block.holders)
            ax.add_patch(
                Rectangle((x + i * stripe, y), stripe, height, facecolor=colours[seq], alpha=0.75, linewidth=0)
            )
        edge = INK if block.refs else FAINT
        ax.add_patch(Rectangle((x, y), side, side, fill=False, edgecolor=edge, linewidth=2.4 if block.refs > 1 else 1))
        label = f"P{number}" + (f"\n{block.refs} refs" if block.refs > 1 else "")
        ax.text(
            x + side / 2,
            y + side / 2,
            label,
            ha="center",
            va="center",
            fontsize=8,
            color=INK if block.refs else "#999999",
        )
    ax.set_xlim(-0.1, columns)
    ax.set_ylim(-rows + 0.9, 1)
    ax.set_aspect("equal")
    ax.axis("off")
    if colours:
        handles = [Patch(color=c, alpha=0.75, label=str((names or {}).get(seq, seq))) for seq, c in colours.items()]
        ax.legend(
            handles=handles,
            ncols=min(len(handles), 4),
            loc="lower left",
            bbox_to_anchor=(0, 1.0),
            frameon=False,
            fontsize=9,
        )
    return ax
