"""The pool of a paged cache as a map: which physical block is whose, how full it is, and who shares it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from refsim.charts.style import BRICK, FAINT, GREY, INK, SERIES, new_axes
from refsim.checks import whole_number
from refsim.kvcache import BlockManager, blocks_for

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIDE, ALPHA = 0.9, 0.7
HATCHES = (None, "///", "...", "xxx")  # for each round of colours


@dataclass(frozen=True)
class BlockOnMap:
    """A physical block: the sequences whose tables name it, its place in their tables, references, slots in use."""

    holders: tuple[Hashable, ...]
    logical: int | None
    refs: int
    used_slots: int


def blocks_on_map(manager: BlockManager) -> list[BlockOnMap]:
    """What `pool_map` draws, block by block: the manager's state now.

    >>> manager = BlockManager(3, 4)
    >>> _ = manager.allocate("a", 6); manager.fork("a", "b")
    >>> blocks_on_map(manager)[1]
    BlockOnMap(holders=('a', 'b'), logical=1, refs=2, used_slots=2)
    """
    B = manager.block_size
    holders: dict[int, list[Hashable]] = {}
    place: dict[int, int] = {}
    used: dict[int, int] = {}
    for seq in manager.sequences:
        tokens = manager.length(seq)
        for table in range(manager.tables):
            for logical, block in enumerate(manager.table(seq, table)[: blocks_for(tokens, B)].tolist()):
                if seq not in holders.setdefault(block, []):
                    holders[block].append(seq)
                place.setdefault(block, logical)
                used[block] = max(used.get(block, 0), min(tokens - logical * B, B))
    return [
        BlockOnMap(tuple(holders.get(block, ())), place.get(block), int(refs), used.get(block, 0))
        for block, refs in enumerate(manager.pool.refs)
    ]


def pool_map(
    manager: BlockManager, *, names: Mapping[Any, str] | None = None, columns: int = 8, ax: Axes | None = None
) -> Axes:
    """One square a physical block, filled from below by slots in use, a stripe for each sequence that holds it.

    Each says its physical id, its place in its holder's table ("block 0" is the first), and its references where it
    is shared. names: what to call the sequences in the legend.

    >>> manager = BlockManager(3, 4)
    >>> _ = manager.allocate("a", 6); manager.fork("a", "b")
    >>> [text.get_text() for text in pool_map(manager, columns=3).texts]
    ['P0\\nblock 0\\n2 refs', 'P1\\nblock 1\\n2 refs', 'P2\\nfree']
    """
    columns = whole_number("columns", columns, 1)
    from matplotlib.patches import Patch
    from matplotlib.patheffects import withStroke

    blocks = blocks_on_map(manager)
    columns = min(columns, max(len(blocks), 1))
    rows = -(-len(blocks) // columns)
    labels = {seq: str((names or {}).get(seq, seq)) for seq in manager.sequences}
    # Room for the legend: a name of nine letters takes about an inch, with its mark.
    name_width = 0.6 + 0.09 * max(map(len, labels.values()), default=0)
    width = max(0.95 * columns + 0.2, name_width if labels else 0)
    abreast = max(1, min(len(labels), 4, int(width / name_width)))
    ax = new_axes(ax, width, 0.95 * rows + 0.5 + 0.2 * max(0, -(-len(labels) // abreast) - 1))
    looks: dict[Hashable, dict[str, Any]] = {
        seq: {"facecolor": SERIES[i % len(SERIES)], "hatch": HATCHES[i // len(SERIES) % len(HATCHES)]}
        for i, seq in enumerate(manager.sequences)
    }
    halo = [withStroke(linewidth=2, foreground="white", alpha=0.6)]
    for number, block in enumerate(blocks):
        at = (number % columns, -(number // columns))
        _draw_block(ax, at, block, block.used_slots / manager.block_size, looks)
        ax.text(
            at[0] + SIDE / 2,
            at[1] + SIDE / 2,
            "\n".join([f"P{number}", *_words(block)]),
            ha="center",
            va="center",
            fontsize=8,
            color=INK if block.refs else GREY,
            path_effects=halo if _is_busy(block, looks) else None,
        )
    ax.set_xlim(-0.1, columns)
    ax.set_ylim(-rows + 0.9, 1)
    ax.set_aspect("equal", anchor="SW")
    ax.axis("off")
    if looks:
        handles = [Patch(**look, edgecolor="white", alpha=ALPHA, label=labels[seq]) for seq, look in looks.items()]
        ax.legend(
            handles=handles,
            ncols=abreast,
            loc="lower left",
            bbox_to_anchor=(0, 1.0),
            frameon=False,
            fontsize=9,
        )
    return ax


def _is_busy(block: BlockOnMap, looks: Mapping[Hashable, Any]) -> bool:
    """Whether words would be lost on it: on many stripes, on hatches, on dark colours."""
    own = [looks[seq] for seq in block.holders]
    return len(own) > 2 or any(look["hatch"] or look["facecolor"] in (BRICK, INK) for look in own)


def _draw_block(ax: Axes, at: tuple[int, int], block: BlockOnMap, full: float, looks: Mapping[Hashable, Any]) -> None:
    from matplotlib.patches import Rectangle

    x, y = at
    stripe = SIDE / max(len(block.holders), 1)
    for i, seq in enumerate(block.holders):
        corner = (x + i * stripe, y)
        ax.add_patch(Rectangle(corner, stripe, SIDE * full, **looks[seq], edgecolor="white", alpha=ALPHA, linewidth=0))
    edge, width = INK if block.refs else FAINT, 2.4 if block.refs > 1 else 1.0
    ax.add_patch(Rectangle(at, SIDE, SIDE, fill=False, edgecolor=edge, linewidth=width))


def _words(block: BlockOnMap) -> list[str]:
    if not block.refs:
        return ["free"]
    place = [] if block.logical is None else [f"block {block.logical}"]
    return place + ([f"{block.refs} refs"] if block.refs > 1 else [])
