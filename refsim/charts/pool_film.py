"""Frames of a pool at work: after each thing that happens, which block is whose. Small enough for a film strip."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from refsim.charts.pool import BlockOnMap, blocks_on_map
from refsim.charts.style import FAINT, GREY, INK, SERIES, folded

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from refsim.kvcache import BlockManager


@dataclass(frozen=True)
class PoolFrame:
    """The pool at one moment."""

    title: str
    blocks: tuple[BlockOnMap, ...]


class PoolFilm:
    """Keeps frames of a manager and draws them, each sequence in one colour throughout.

    >>> from refsim.kvcache import BlockManager
    >>> manager = BlockManager(4, 2)
    >>> film = PoolFilm(manager)
    >>> _ = manager.allocate("a", 3); film.keep("a arrives")
    >>> manager.free("a"); film.keep("a ends")
    >>> [(frame.title, sum(block.refs for block in frame.blocks)) for frame in film.frames]
    [('a arrives', 2), ('a ends', 0)]
    """

    def __init__(self, manager: BlockManager, *, columns: int = 4) -> None:
        self.manager, self.columns = manager, columns
        self.frames: list[PoolFrame] = []
        self._colours: dict[Hashable, str] = {}

    def keep(self, title: str) -> None:
        """Keep a frame of the pool as it is now."""
        for seq in self.manager.sequences:
            self._colours.setdefault(seq, SERIES[len(self._colours) % len(SERIES)])
        self.frames.append(PoolFrame(title, tuple(blocks_on_map(self.manager))))

    def draw(self, ax: Axes, frame: PoolFrame) -> Axes:
        """One square a block, with a stripe for each holder, as high as its slots are used, and its references."""
        from matplotlib.patches import Rectangle

        side = 0.92
        for number, block in enumerate(frame.blocks):
            x, y = number % self.columns, -(number // self.columns)
            width, height = side / max(len(block.holders), 1), side * block.used_slots / self.manager.block_size
            for i, seq in enumerate(block.holders):
                corner, middle = (x + i * width, y), (x + (i + 0.5) * width, y + 0.16)
                ax.add_patch(Rectangle(corner, width, height, facecolor=self._colours[seq], alpha=0.6, linewidth=0))
                stripe = Rectangle(corner, width, side, transform=ax.transData)
                # A name that is wider than its stripe begins at its left edge, and is cut at its right one.
                long = len(str(seq)) > 39 * width / self.columns  # letters, in a frame of 2.5 inches
                where = (corner[0] + 0.03, middle[1]) if long else middle
                name = ax.text(
                    *where, str(seq), ha="left" if long else "center", va="center", fontsize=8, color=INK, clip_on=True
                )
                name.set_clip_path(stripe)
            ax.add_patch(
                Rectangle((x, y), side, side, fill=False, edgecolor=INK if block.refs else FAINT, linewidth=1.2)
            )
            label = f"P{number}" + (f" · {block.refs} refs" if block.refs > 1 else "")
            ax.text(x + 0.05, y + side - 0.06, label, va="top", fontsize=6.5, color=INK if block.refs else GREY)
        rows = -(-len(frame.blocks) // self.columns)
        ax.set_xlim(-0.06, self.columns)
        ax.set_ylim(0.92 - rows, 1)
        ax.set_aspect("equal")
        ax.axis("off")
        ax.set_title(folded(frame.title, 32), fontsize=9, color=INK)
        return ax
