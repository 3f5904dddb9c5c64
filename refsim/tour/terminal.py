"""A chapter in the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from refsim.cli_table import print_table
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
                print_table(console, item.columns, item.rows, item.align)
            case Picture(name, _, caption):
                console.print(f"{name}.png: {caption}", style="dim", highlight=False, markup=False)


def _quote(given: str, added: str) -> object:
    from rich.padding import Padding
    from rich.text import Text

    return Padding(Text.assemble((given, "dim"), (added, "bold")), (0, 0, 0, 4))
