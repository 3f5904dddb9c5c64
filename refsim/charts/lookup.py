"""The path of an address: a position, its logical block and slot, the table's entry, the physical block in the pool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from refsim.charts.style import BLUE, FAINT, GREY, INK, VERMILION, new_axes
from refsim.kvcache import locate

if TYPE_CHECKING:
    from matplotlib.axes import Axes


CROWDED = 24  # blocks of a pool, from which their names no longer fit side by side


def block_lookup(
    table: Sequence[int], position: int, *, block_size: int, num_blocks: int, ax: Axes | None = None
) -> Axes:
    """A sequence's blocks in order above, the pool below, a line for each table entry; the position's path in red.

    A table may end in -1s, which pad it. In a pool of more than 24 blocks only those of the sequence say their names.

    Raises ValueError for a position that the table doesn't reach, and for an entry that the pool doesn't have.

    >>> ax = block_lookup([4, 1, 6], 9, block_size=4, num_blocks=8)
    >>> ax.get_title()
    'position 9 is slot 1 of logical block 2, which lies in P6'
    """
    logical, slot = locate(position, block_size)
    table = [int(block) for block in table]
    while table and table[-1] == -1:
        table.pop()
    for entry, block in enumerate(table):
        if not 0 <= block < num_blocks:
            raise ValueError(f"block table entry {entry} is {block}; the pool has {num_blocks} blocks")
    if logical >= len(table):
        raise ValueError(f"position {position} is in logical block {logical}; the table has {len(table)} entries")
    from matplotlib.patches import Rectangle

    ax = new_axes(ax, min(max(8, 0.25 * num_blocks), 20), 2.9)
    left = (num_blocks - len(table)) / 2
    side, above, below = 0.86, 2.0, 0.0
    for entry, block in enumerate(table):
        colour = VERMILION if entry == logical else BLUE
        ax.plot(
            [left + entry + side / 2, block + side / 2],
            [above, below + side],
            color=colour,
            linewidth=2 if entry == logical else 1,
        )
        _block(ax, left + entry, above, side, f"{entry}", colour, Rectangle)
    for block in range(num_blocks):
        held = block in table
        colour = VERMILION if block == table[logical] else BLUE if held else FAINT
        label = f"P{block}" if held or num_blocks <= CROWDED else ""
        _block(ax, block, below, side, label, colour, Rectangle, faint=not held)
    for x, y in ((left + logical, above), (table[logical], below)):
        ax.add_patch(
            Rectangle(
                (x + side * slot / block_size, y), side / block_size, 0.35 * side, facecolor=VERMILION, linewidth=0
            )
        )
    edge = min(left, 0) - 0.4
    ax.text(edge, above + side / 2, "the sequence's\nblocks", ha="right", va="center", fontsize=8, color=INK)
    ax.text(edge, below + side / 2, "the pool", ha="right", va="center", fontsize=8, color=INK)
    ax.text(edge, (above + below + side) / 2, "block table", ha="right", va="center", fontsize=8, color=GREY)
    ax.set_title(
        f"position {position} is slot {slot} of logical block {logical}, which lies in P{table[logical]}", fontsize=9
    )
    ax.set_xlim(edge - 1.6, max(num_blocks, left + len(table)) + 0.1)
    ax.set_ylim(below - 0.15, above + side + 0.15)
    ax.axis("off")
    return ax


def _block(
    ax: Axes, x: float, y: float, side: float, label: str, colour: str, rectangle: type, *, faint: bool = False
) -> None:
    ax.add_patch(rectangle((x, y), side, side, fill=False, edgecolor=colour, linewidth=1.6))
    if label:
        ax.text(
            x + side / 2, y + 0.65 * side, label, ha="center", va="center", fontsize=9, color=GREY if faint else INK
        )
