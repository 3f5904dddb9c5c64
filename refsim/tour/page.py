"""What a chapter is made of, before anyone decides whether it is printed in a terminal or written as HTML."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Prose:
    """A paragraph of plain words."""

    text: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", visible(self.text))


@dataclass(frozen=True)
class Quote:
    """Text that the model read or wrote: what it was given, and what it added."""

    given: str
    added: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "given", visible(self.given))
        object.__setattr__(self, "added", visible(self.added))


@dataclass(frozen=True)
class Table:
    """Rows of text under column names. `align` has a letter a column: l or r."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    align: str

    @classmethod
    def of(cls, columns: Sequence[str], rows: Sequence[Sequence[Any]], align: str) -> Table:
        """A table from any cells; whole numbers get thousands separators.

        >>> Table.of(("what", "bytes"), [("q", 12000)], "lr").rows
        (('q', '12,000'),)

        Raises ValueError when a row has more or fewer cells than there are columns.
        """
        if len(align) != len(columns) or any(len(row) != len(columns) for row in rows):
            raise ValueError(f"{len(columns)} columns need as many letters in align and cells in each row")
        return cls(tuple(columns), tuple(tuple(map(_cell, row)) for row in rows), align)


@dataclass(frozen=True)
class Picture:
    """A PNG: its file's name without the ending, its bytes, and what it shows, in words."""

    name: str
    png: bytes
    caption: str

    @classmethod
    def of(cls, name: str, ax: Axes, caption: str) -> Picture:
        """The figure that an Axes is on."""
        figure, file = ax.get_figure(root=True), BytesIO()
        assert figure is not None
        figure.savefig(file, format="png")
        return cls(name, file.getvalue(), caption)


@dataclass(frozen=True)
class Chapter:
    """A title, and what follows under it."""

    title: str
    items: tuple[Prose | Quote | Table | Picture, ...]


def visible(text: str) -> str:
    r"""Text of a model or a user with its control characters spelled out, since a terminal would obey them; and half
    characters (lone surrogates, what bytes that are no UTF-8 become), since no file would take them.

    >>> visible("plain " + chr(27) + "[31mred")
    'plain \\x1b[31mred'
    """
    hidden = ("Cc", "Cs")
    return "".join(repr(c)[1:-1] if unicodedata.category(c) in hidden and c not in "\n\t" else c for c in text)


def count(number: int, what: str) -> str:
    """A number of things: "1 block", "2 blocks"."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _cell(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
