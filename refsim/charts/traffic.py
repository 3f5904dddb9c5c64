"""How many bytes cross HBM: by algorithm and tensor, and against the length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from refsim.charts.style import (
    INK,
    SERIES,
    human_nbytes,
    new_axes,
    round_nbytes,
    tensor_colour,
    tensor_group,
    tensor_hatch,
    tensor_place,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from refsim.machine import Ledger

DASHES = ("-", (0, (6, 3)), (0, (2, 2)), "-", (0, (6, 3)), (0, (1, 2)))


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

    Raises ValueError without ledgers.

    >>> from refsim.machine import Key, Ledger
    >>> ax = traffic_by_algorithm({"flash": Ledger({Key("flash", "q", "HBM", "read"): 2000})})
    >>> [text.get_text() for text in ax.texts]
    ['2.00 kB']
    """
    if not ledgers:
        raise ValueError("traffic_by_algorithm needs at least one ledger: {'flash': result.ledger, ...}")
    ax = new_axes(ax, 8, 1.2 + 0.5 * len(ledgers))
    totals = {name: ledger.hbm_nbytes for name, ledger in ledgers.items()}
    shares = {name: by_tensor(ledger) for name, ledger in ledgers.items()}
    groups = sorted({group for share in shares.values() for group in share}, key=tensor_place)
    left = dict.fromkeys(ledgers, 0)
    for group in groups:
        widths = [shares[name].get(group, 0) for name in ledgers]
        ax.barh(
            list(ledgers),
            widths,
            left=list(left.values()),
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
    ax.invert_yaxis()
    _bytes_axis(ax.xaxis)
    ax.set_xlabel("bytes read from and written to HBM")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(fontsize=8, ncols=min(len(groups), 5), loc="lower left", bbox_to_anchor=(0, 1.01), frameon=False)
    return ax


def traffic_by_length(
    lengths: Sequence[int], nbytes: Mapping[str, Sequence[int]], *, xlabel: str = "tokens", ax: Axes | None = None
) -> Axes:
    """One line an algorithm: HBM bytes against the length, both axes logarithmic, so that slopes are powers.

    Raises ValueError when a series hasn't one value for each length, or a value isn't positive.

    >>> ax = traffic_by_length([1, 2], {"flash": [10, 20]})
    >>> ax.get_lines()[0].get_ydata().tolist()
    [10, 20]
    """
    ax = new_axes(ax, 7, 4.2)
    for i, (name, values) in enumerate(nbytes.items()):
        if len(values) != len(lengths):
            raise ValueError(f"{name!r} has {len(values)} values for {len(lengths)} lengths")
        if min(*values, *lengths) <= 0:
            raise ValueError(f"{name!r}: logarithmic axes need lengths and bytes above 0")
        # Algorithms may move nearly the same: where one line lies on another, its gaps show the one beneath.
        ax.plot(
            lengths, values, color=SERIES[i % len(SERIES)], label=name, linewidth=2, linestyle=DASHES[i % len(DASHES)]
        )
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
    _bytes_axis(ax.yaxis)
    ax.set_xlabel(xlabel)
    ax.set_ylabel("bytes through HBM")
    ax.grid(alpha=0.3, which="major")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(fontsize=9, frameon=False)
    return ax


def _bytes_axis(axis: object) -> None:
    axis.set_major_formatter(lambda x, _: round_nbytes(x))  # type: ignore[attr-defined]
