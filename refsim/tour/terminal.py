"""A chapter in the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from refsim.tour.page import Chapter, Picture, Prose, Quote, Table

if TYPE_CHECKING:
    from rich.console import Console


def show(console: Console, chapter: Chapter) -> None:
    """Print a chapter. Pictures are named; they lie in the report's folder."""
    console.print()
    console.rule(f"[bold]{chapter.title}[/bold]", align="left")
    for item in chapter.items:
        match item:
            case Prose(text):
                console.print(text, highlight=False, markup=False)
            case Quote(given, added):
                console.print(_quote(given, added))
            case Table():
                console.print(_table(item))
            case Picture(name, _, caption):
                console.print(f"{name}.png: {caption}", style="dim", highlight=False, markup=False)


def _quote(given: str, added: str) -> object:
    from rich.padding import Padding
    from rich.text import Text

    return Padding(Text.assemble((given, "dim"), (added, "bold")), (0, 0, 0, 4))


def _table(table: Table) -> object:
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    grid = RichTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name, side in zip(table.columns, table.align, strict=True):
        grid.add_column(name, justify="left" if side == "l" else "right")
    for row in table.rows:
        grid.add_row(*map(Text, row))
    return grid
