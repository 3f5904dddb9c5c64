"""Tables in a terminal of any width: no number is ever cut, and columns that don't fit go below."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

GAP = 3  # blanks between columns


def print_table(
    console: Console, columns: Sequence[str], rows: Sequence[Sequence[str]], align: str, *, sections: Sequence[int] = ()
) -> None:
    """Print rows of text under column names. Where they are too wide, print several tables, each with the first column.

    align: a letter a column; text (l) may wrap between words, numbers (r) never do.
    sections: the numbers of the rows before which a line is left blank.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    for number, widths in enumerate(parts(columns, rows, align, console.width)):
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
        for i, width in widths.items():
            table.add_column(Text(columns[i]), justify="left" if align[i] == "l" else "right", width=width)
        for at, row in enumerate(rows):
            if at in sections:
                table.add_section()
            table.add_row(*(Text(row[i]) for i in widths))
        if number:
            console.print()
        console.print(table)


def parts(columns: Sequence[str], rows: Sequence[Sequence[str]], align: str, width: int) -> Iterator[dict[int, int]]:
    """The columns of each table, by number, with their widths: as many as fit, at least one beside the first.

    >>> list(parts(("bytes", "flash", "paged"), [("k", "1,000,000", "20")], "lrr", width=20))
    [{0: 5, 1: 9}, {0: 5, 2: 5}]
    """
    texts = [[heading, *(row[i] for row in rows)] for i, heading in enumerate(columns)]
    most = [max(map(len, column)) for column in texts]
    # The longest word; where cells don't wrap, the longest cell.
    least = [
        max(
            [
                1,
                *(len(word) for text in column for word in text.split()),
                *(map(len, column[1:]) if side == "r" else ()),
            ]
        )
        for column, side in zip(texts, align, strict=True)
    ]
    shown = {0: least[0]}
    for i in range(1, len(columns)):
        if len(shown) > 1 and sum(shown.values()) + GAP * len(shown) + least[i] > width:
            yield widened(shown, most, width)
            shown = {0: least[0]}
        shown[i] = least[i]
    yield widened(shown, most, width)


def widened(widths: dict[int, int], most: Sequence[int], width: int) -> dict[int, int]:
    """What is left of a line, given to the narrowest columns that can use it."""
    widths = dict(widths)
    for _ in range(width - sum(widths.values()) - GAP * (len(widths) - 1)):
        wanting = [i for i in widths if widths[i] < most[i]]
        if not wanting:
            break
        widths[min(wanting, key=widths.__getitem__)] += 1
    return widths
