"""What the figures share: one colour a tensor everywhere, units that people read, and where an Axes comes from."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from typing import TYPE_CHECKING, Any

from refsim.machine import Ledger

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

# The eight colours of Okabe and Ito, which colour-blind readers tell apart, and two darker ones.
BLUE, ORANGE, GREEN, VERMILION, SKY, PURPLE, YELLOW, GREY = (
    *("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#F0E442", "#999999"),
)
INK, FAINT, BRICK = "#222222", "#DDDDDD", "#8C2D04"

# In the order in which they are stacked; K and V keep their colours in a cache, where they are hatched.
_TENSORS = {
    "q": BLUE,
    "k_cache": ORANGE,
    "v_cache": GREEN,
    "k": ORANGE,
    "v": GREEN,
    "s": VERMILION,
    "p": BRICK,
    "o_partial": PURPLE,
    "out": SKY,
}
# Lengths, tables and row statistics: counted like everything else, and too small to tell apart.
METADATA = "tables, lengths, statistics"
SERIES = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY, BRICK, INK)

# An algorithm's place among SERIES, and so its colour, is the same in every figure.
_ALGORITHMS = ("standard", "flash", "paged_gather", "paged", "split_kv")


def tensor_group(tensor: str) -> str:
    """The name under which a tensor is drawn: its own, or `METADATA` for the small ones.

    >>> tensor_group("k_cache"), tensor_group("seq_lens")
    ('k_cache', 'tables, lengths, statistics')
    """
    return tensor if tensor in _TENSORS else METADATA


def tensor_colour(group: str) -> str:
    """The colour of a group of `tensor_group`: K is one colour in every figure, cached or not."""
    return _TENSORS.get(group, GREY)


def tensor_hatch(group: str) -> str | None:
    """The hatching of a group: blocks of a paged cache are hatched."""
    return "///" if group.endswith("_cache") else None


def tensor_place(group: str) -> int:
    """Where a group stands in stacks and tables: q first, then keys and values, metadata last."""
    return [*_TENSORS, METADATA].index(group)


def new_axes(ax: Axes | None, width: float, height: float) -> Axes:
    """The given Axes, or one on a new figure (inches) that pyplot doesn't keep."""
    if ax is not None:
        return ax
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=110, layout="constrained").add_subplot()


def series_places(names: Iterable[str]) -> dict[str, int]:
    """Which of SERIES each name takes: an algorithm its own; beside algorithms, other names come after all of them.

    >>> series_places(["mine", "flash", "yours"]), series_places(["mine", "yours"])
    ({'mine': 5, 'flash': 1, 'yours': 6}, {'mine': 0, 'yours': 1})
    """
    names = list(names)
    own = {name: _ALGORITHMS.index(name) for name in names if name in _ALGORITHMS}
    others = count(len(_ALGORITHMS) if own else 0)
    return {name: own[name] if name in own else next(others) for name in names}


MANY = 6  # lines whose names find room between them


def legend(ax: Axes, entries: int, **look: Any) -> None:
    """The names of lines: in the plot, or beside it where they are many."""
    beside: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.01, 1)} if entries > MANY else {}
    ax.legend(frameon=False, handlelength=3, **look | beside)  # room for a dash and a dot


def check_ledgers(ledgers: Mapping[str, Any]) -> None:
    """TypeError for what is no ledger, such as a result."""
    for name, ledger in ledgers.items():
        if not isinstance(ledger, Ledger):
            raise TypeError(f"{name!r} must be a ledger, such as result.ledger; got a {type(ledger).__name__}")


def label_log_axis(axis: Axis, show: Callable[[float], str], *, base: float = 10) -> None:
    """Ticks of a logarithmic axis as `show` has them, also those between powers, where these are too few."""
    from matplotlib.ticker import LogFormatterSciNotation

    class Between(LogFormatterSciNotation):
        def __call__(self, x: float, pos: int | None = None) -> str:
            return show(x) if super().__call__(x, pos) else ""  # matplotlib decides which are worth a word

    axis.set_major_formatter(lambda x, _: show(x))
    axis.set_minor_formatter(Between(base))


def folded(text: str, letters: int) -> str:
    """Text in lines of at most so many letters; the breaks it has already stay.

    >>> folded("two\\nlines, of which one is long", 16)
    'two\\nlines, of which\\none is long'
    """
    return "\n".join(textwrap.fill(line, letters) for line in text.splitlines())


def round_nbytes(nbytes: float) -> str:
    """As `human_nbytes`, without digits that are zero: for ticks.

    >>> round_nbytes(2_000_000), round_nbytes(1500), round_nbytes(100_000)
    ('2 MB', '1.5 kB', '100 kB')
    """
    number, unit = human_nbytes(nbytes).split()
    return f"{float(number):g} {unit}"


def human_nbytes(nbytes: float) -> str:
    """Bytes with a decimal unit and three digits: 1 kB is 1000 B.

    >>> human_nbytes(0), human_nbytes(999), human_nbytes(1234), human_nbytes(52_000_000_000)
    ('0 B', '999 B', '1.23 kB', '52.0 GB')
    """
    units = ("B", "kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB")
    size, unit = float(nbytes), 0
    while size >= 999.5 and unit < len(units) - 1:
        size, unit = size / 1000, unit + 1
    if unit == 0:
        return f"{size:.0f} B"
    return f"{size:.{2 if size < 9.995 else 1 if size < 99.95 else 0}f} {units[unit]}"
