"""How many bytes cross HBM: by algorithm and tensor, and against the length."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from refsim.charts.style import (
    INK,
    MANY,
    SERIES,
    check_ledgers,
    folded,
    human_nbytes,
    label_log_axis,
    legend,
    new_axes,
    round_nbytes,
    series_places,
    tensor_colour,
    tensor_group,
    tensor_hatch,
    tensor_place,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from refsim.machine import Ledger

# Algorithms may move nearly the same: where one line lies on another, its gaps show the one beneath.
DASHES = ("-", (0, (6, 3)), (0, (2, 2)), (0, (8, 2, 2, 2)), (0, (4, 5)), (0, (1, 2)))


def by_tensor(ledger: Ledger) -> dict[str, int]:
    """HBM bytes of a ledger by drawn group.

    >>> from refsim.machine import Key, Ledger
    >>> by_tensor(Ledger({Key("flash", "q", "HBM", "read"): 8, Key("flash", "lse", "HBM", "write"): 2}))
    {'q': 8, 'tables, lengths, statistics': 2}
    """
    sums: dict[str, int] = {}
    for (_, tensor, _), nbytes in ledger.hbm_only().items():
        group = tensor_group(tensor)
        sums[group] = sums.get(group, 0) + nbytes
    return {group: sums[group] for group in sorted(sums, key=tensor_place)}


def traffic_by_algorithm(ledgers: Mapping[str, Ledger], *, ax: Axes | None = None) -> Axes:
    """One bar an algorithm, its HBM bytes stacked by tensor; the total is written at its end.

    Raises ValueError without ledgers, TypeError for what is no ledger.

    >>> from refsim.machine import Key, Ledger
    >>> ax = traffic_by_algorithm({"flash": Ledger({Key("flash", "q", "HBM", "read"): 2000})})
    >>> [text.get_text() for text in ax.texts]
    ['2.00 kB']
    """
    if not ledgers:
        raise ValueError("traffic_by_algorithm needs at least one ledger: {'flash': result.ledger, ...}")
    check_ledgers(ledgers)
    from matplotlib.ticker import MaxNLocator

    ax = new_axes(ax, 8, 1.2 + 0.5 * len(ledgers))
    totals = {name: ledger.hbm_nbytes for name, ledger in ledgers.items()}
    shares = {name: by_tensor(ledger) for name, ledger in ledgers.items()}
    groups = sorted({group for share in shares.values() for group in share}, key=tensor_place)
    rows = range(len(ledgers))
    left = dict.fromkeys(ledgers, 0)
    for group in groups:
        widths = [shares[name].get(group, 0) for name in ledgers]
        ax.barh(
            rows,
            widths,
            left=[float(at) for at in left.values()],  # may be more than 64 bits count
            height=0.7,
            label=group,
            color=tensor_colour(group),
            hatch=tensor_hatch(group),
            edgecolor="white",
            linewidth=0,
        )
        left = {name: left[name] + width for name, width in zip(ledgers, widths, strict=True)}
    longest = max(totals.values()) or 1
    for row, total in enumerate(totals.values()):
        ax.text(total + 0.01 * longest, row, human_nbytes(total), va="center", color=INK, fontsize=9)
    ax.set_xlim(0, 1.14 * longest)
    ax.set_ylim(len(ledgers) - 0.4, -0.6)
    ax.set_yticks(rows, [folded(name, 28) for name in ledgers])
    ax.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 2.5, 5, 10], integer=longest < 10))
    ax.xaxis.set_major_formatter(lambda x, _: round_nbytes(x))
    ax.set_xlabel("bytes read from and written to HBM")
    ax.spines[["top", "right"]].set_visible(False)
    if groups:
        ax.legend(fontsize=8, ncols=min(len(groups), 5), loc="lower left", bbox_to_anchor=(0, 1.01), frameon=False)
    return ax


def traffic_by_length(
    lengths: Sequence[int], nbytes: Mapping[str, Sequence[int]], *, xlabel: str = "tokens", ax: Axes | None = None
) -> Axes:
    """One line an algorithm: HBM bytes against the length, both axes logarithmic, so that slopes are powers.

    Raises ValueError without lengths or series, when a series hasn't one value for each length, or a value isn't
    positive and finite.

    >>> ax = traffic_by_length([1, 2], {"flash": [10, 20]})
    >>> ax.get_lines()[0].get_ydata().tolist()
    [10, 20]
    """
    if not len(lengths) or not nbytes:
        raise ValueError("traffic_by_length needs at least one length and one series: [1024], {'flash': [nbytes]}")
    from matplotlib.ticker import LogLocator, NullLocator

    many = len(nbytes) > MANY
    ax = new_axes(ax, 7.7 + 0.08 * max(map(len, nbytes)) if many else 7, max(4.2, 0.4 + 0.2 * len(nbytes)))
    places = series_places(nbytes)
    for name, values in nbytes.items():
        if len(values) != len(lengths):
            raise ValueError(f"{name!r} has {len(values)} values for {len(lengths)} lengths")
        if not all(0 < number < math.inf for number in (*values, *lengths)):
            raise ValueError(f"{name!r}: logarithmic axes need lengths and bytes above 0, and finite")
        style: dict[str, Any] = {
            "color": SERIES[places[name] % len(SERIES)],
            "linestyle": DASHES[places[name] % len(DASHES)],
            "zorder": 2 + places[name] / 100,  # the line without gaps lies beneath
        }
        marker = "o" if len(lengths) == 1 else None
        ax.plot(lengths, values, label=name, linewidth=2, marker=marker, **style)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    if len(lengths) <= 6 and max(lengths) < 4 * min(lengths):
        ax.set_xticks(lengths)  # there may be no power of 2 among them
        ax.xaxis.set_minor_locator(NullLocator())
    elif max(lengths) >= 10**7:
        ax.xaxis.set_major_locator(LogLocator(base=2, numticks=6))  # such numbers are wide
    label_log_axis(ax.xaxis, lambda x: f"{x:,.0f}", base=2)
    bottom, top = ax.get_ylim()
    label_log_axis(ax.yaxis, round_nbytes if top > 1.5 * bottom else _whole_nbytes)
    ax.set_xlabel(xlabel)
    ax.set_ylabel("bytes through HBM")
    ax.grid(alpha=0.3, which="major")
    ax.spines[["top", "right"]].set_visible(False)
    legend(ax, len(nbytes), fontsize=9)
    return ax


def _whole_nbytes(nbytes: float) -> str:
    """For ticks so near each other that three digits don't tell them apart."""
    return f"{nbytes:,.0f} B" if nbytes >= 1000 or abs(nbytes - round(nbytes)) < 1e-6 else ""
