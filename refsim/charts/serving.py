"""Figures of a replay: how full the pool was, who waited, how long they took, and what was wasted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from refsim.charts.style import FAINT, GREEN, GREY, INK, SERIES, legend, new_axes
from refsim.kvcache import story

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from matplotlib.axes import Axes

    from refsim.kvcache import BlockManager, Event
    from refsim.serving.measured import Comparison, MeasuredRun
    from refsim.serving.replay import Replay

BLUE, VERMILION = SERIES[0], SERIES[1]
# Uses of a slot in the order in which they are stacked, with colours from useful to wasted.
USES = {
    "written": ("token states", GREEN),
    "reserved": ("reserved, used later", SERIES[5]),
    "internal": ("reserved, never used", SERIES[3]),
    "external": ("free, fits nobody", VERMILION),
    "free": ("free", FAINT),
}
STATES = {
    story.FREE: "white",
    story.HELD: SERIES[5],
    story.SHARED: SERIES[4],
    story.CACHED: GREEN,
    story.RESTING: SERIES[3],
}
DASHES = ("-", "--", ":", "-.")  # for each round of colours
MOST_POINTS = 2000


def pool_fill(replay: Replay, measured: MeasuredRun | None = None, ax: Axes | None = None, name: str = "") -> Axes:
    """The part of the pool that live requests hold, over time; beside what was measured, where something was.

    `name` of the policy goes into the title, here and in `queue`.
    """
    ax = new_axes(ax, 8, 3)
    times, used = _line(replay, "used")
    ax.plot(times, 100 * used, color=BLUE, lw=1, label="replay")
    if measured is not None:
        ax.plot(measured.tick_s, 100 * measured.fill, color=INK, lw=1, ls=":", label="measured")
        ax.legend(loc="lower center", frameon=False)
    ax.set(xlabel="time (s)", ylabel="blocks in use (%)", ylim=(0, 105), title=_title("Pool fill", name))
    return ax


def queue(replay: Replay, measured: MeasuredRun | None = None, ax: Axes | None = None, name: str = "") -> Axes:
    """Requests running and waiting over time."""
    from matplotlib.ticker import MaxNLocator

    ax = new_axes(ax, 8, 3)
    for which, colour in (("running", BLUE), ("waiting", SERIES[3])):
        ax.plot(*_line(replay, which), color=colour, lw=1.5, label=which)
        if measured is not None:
            label = "measured" if which == "waiting" else None
            ax.plot(measured.tick_s, getattr(measured, which), color=INK, lw=1, ls=":", label=label)
    ax.set(xlabel="time (s)", ylabel="requests", title=_title("Running and waiting", name))
    ax.set_ylim(bottom=0)
    ax.yaxis.set_major_locator(MaxNLocator("auto", integer=True))
    ax.legend(frameon=False)
    return ax


def hit_rate(replays: Mapping[str, Replay], ax: Axes | None = None) -> Axes:
    """Prompt tokens found cached, of all prompt tokens of the requests admitted so far, a line a policy."""
    ax = new_axes(ax, 8, 3)
    for replay, style in _strands(replays):
        outcomes = sorted(replay.outcomes, key=lambda o: o.admitted_s)
        times = np.array([o.admitted_s for o in outcomes])
        prompts = np.cumsum([o.request.prompt_len for o in outcomes])
        hits = np.cumsum([o.cached_tokens for o in outcomes])
        ax.plot(*_thin(times, 100 * hits / np.maximum(prompts, 1)), **style)
    ax.set(xlabel="time (s)", ylabel="prompt tokens hit so far (%)", title="Prefix cache hit rate")
    ax.set_ylim(0, max(1, ax.get_ylim()[1]))
    if len(replays) > 1:
        legend(ax, len(replays))
    return ax


def latency(replays: Mapping[str, Replay], quantity: str, ax: Axes | None = None) -> Axes:
    """The distribution of `ttft_s` or `tpot_s` over requests, a line a policy.

    A request of one output token has no time per output token and is left out of that.
    """
    ax = new_axes(ax, 5, 3.2)
    title, unit = {"ttft_s": ("Time to first token", "s"), "tpot_s": ("Time per output token", "ms")}[quantity]
    middles = []
    for replay, style in _strands(replays, wider=0.9):
        asked = [o for o in replay.outcomes if quantity != "tpot_s" or o.request.output_len > 1]
        values = np.sort([getattr(o, quantity) for o in asked]) * (1000 if unit == "ms" else 1)
        share = 100 * np.arange(1, values.size + 1) / max(values.size, 1)
        ax.plot(*_thin(values, share), **style)
        middles += [np.median(values)] if values.size else []
    ax.set(xlabel=f"{title.lower()} ({unit})", ylabel="requests (%)", ylim=(0, 102), title=title)
    if middles and max(middles) > 50 * min(middles) > 0:
        ax.set_xscale("log")  # one policy's queue would press the others' lines against the axis
    else:
        ax.set_xlim(left=0)
    if len(replays) > 1:
        legend(ax, len(replays), loc="lower right")
    return ax


def slot_use(replays: Mapping[str, Replay], ax: Axes | None = None) -> Axes:
    """What the cache's slots were used for on average, a bar a policy: the three wastes of contiguous caches."""
    ax = new_axes(ax, 7, 1.9 + 0.45 * len(replays))
    names = list(replays)
    left = np.zeros(len(names))
    fills = [replays[n].mean_fill() for n in names]
    for use, (label, colour) in USES.items():
        width = np.array([100 * f[use] for f in fills])
        ax.barh(names, width, left=left, color=colour, edgecolor="white", lw=0.5, label=label)
        for row, (start, size) in enumerate(zip(left, width, strict=True)):
            if size >= 6:
                ink = INK if use in ("free", "reserved", "internal") else "white"
                ax.text(start + size / 2, row, f"{size:.1f}", ha="center", va="center", color=ink, fontsize=8)
        left += width
    ax.invert_yaxis()
    ax.set(xlabel="slots (%)", xlim=(0, 100), title="What the cache's slots hold, on average")
    ax.figure.legend(*ax.get_legend_handles_labels(), frameon=False, ncols=3, loc="outside lower center")
    return ax


def waste(replays: Mapping[str, Replay], ax: Axes | None = None) -> Axes:
    """Slots held by nobody's tokens, now or later, over time: internal and external waste together."""
    ax = new_axes(ax, 8, 3)
    for replay, style in _strands(replays):
        times = np.array([t for t, _ in replay.fills])
        wasted = np.array([100 * (f.internal + f.external) / f.total for _, f in replay.fills])
        ax.plot(*_with_idle(replay, *_thin(times, wasted)), drawstyle="steps-post", **style)
    ax.set(xlabel="time (s)", ylabel="slots wasted (%)", title="Waste over time")
    ax.set_ylim(bottom=0)
    if len(replays) > 1:
        legend(ax, len(replays))
    return ax


def capacity_curve(
    rates: Mapping[int, float], infinite: float | None = None, ax: Axes | None = None, block_size: int | None = None
) -> Axes:
    """Token hit rate against the cache's size in blocks (of `block_size` tokens), and where it ends."""
    ax = new_axes(ax, 5, 3.2)
    sizes = sorted(rates)
    ax.plot(sizes, [100 * rates[s] for s in sizes], "o-", color=BLUE, label="least recently used")
    if infinite is not None:
        ax.axhline(100 * infinite, color=GREY, ls="--", lw=1, label="cache without end")
    of = "" if block_size is None else f" of {block_size} tokens"
    ax.set(xscale="log", xlabel=f"blocks{of} in the cache", ylabel="prompt tokens hit (%)")
    ax.set_title("Hit rate by capacity")
    ax.set_ylim(bottom=0)
    ax.legend(frameon=False, loc="lower right")
    return ax


def residuals(comparison: Comparison, measured: MeasuredRun, ax: Axes | None = None) -> Axes:
    """Replay minus measurement for each request's first and last token, in order of arrival."""
    ax = new_axes(ax, 8, 3)
    order: Sequence[int] = np.argsort(measured.arrival_s).tolist()
    ax.axhline(0, color=INK, lw=0.8)
    ax.plot(comparison.first_token_s[order], ".", ms=4, color=BLUE, label="first token")
    ax.plot(comparison.last_token_s[order], ".", ms=4, color=VERMILION, label="last token")
    ax.set(xlabel="request, by arrival", ylabel="replay - measured (s)", title="Residuals of each request")
    ax.legend(frameon=False, ncols=2)
    return ax


def block_story(manager: BlockManager, ax: Axes | None = None) -> Axes:
    """The state of every block after each recorded event: who was free, held, shared, cached.

    Raises ValueError when the manager keeps no record.
    """
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    if manager.events is None:
        raise ValueError("the manager keeps no record; build it with record=True")
    pages = list(story.tell(manager.events, manager.pool.num_blocks))
    states = list(STATES)
    grid = np.array([[states.index(p.state(b)) for p in pages] for b in range(manager.pool.num_blocks)])
    ax = new_axes(ax, 8, 1.8 + 0.2 * manager.pool.num_blocks)
    colours = ListedColormap(list(STATES.values()))
    ax.pcolormesh(grid, cmap=colours, vmin=-0.5, vmax=len(states) - 0.5, edgecolors="white", lw=0.4)
    ax.invert_yaxis()
    ax.set(xlabel="event", ylabel="physical block", title="What became of each block")
    if len(pages) <= 40:
        ax.set_xticks(np.arange(len(pages)) + 0.5, [f"{p.event.kind} {_who(p.event)}" for p in pages], rotation=90)
        ax.tick_params(axis="x", labelsize=7)
    ax.set_yticks(np.arange(manager.pool.num_blocks) + 0.5, [str(b) for b in range(manager.pool.num_blocks)])
    keys = [Patch(facecolor=colour, edgecolor=GREY, label=state) for state, colour in STATES.items()]
    ax.figure.legend(handles=keys, frameon=False, ncols=len(keys), loc="outside lower center")
    return ax


def _strands(replays: Mapping[str, Replay], wider: float = 0.4) -> Iterator[tuple[Replay, dict[str, Any]]]:
    """Each replay with its line's style: later ones are thinner, so that of lines on each other all are seen."""
    last = len(replays) - 1
    for i, (name, replay) in enumerate(replays.items()):
        look = {"color": SERIES[i % len(SERIES)], "ls": DASHES[i // len(SERIES) % len(DASHES)]}
        yield replay, {**look, "lw": 1 + wider * min(last - i, 3), "label": name}


def _title(what: str, name: str) -> str:
    return f"{what}: {name}" if name else what


def _who(event: Event) -> str:
    return "" if event.seq_id is None else str(event.seq_id)


def _line(replay: Replay, name: str) -> tuple[np.ndarray, np.ndarray]:
    """A quantity over time, which is 0 while no step runs."""
    return _with_idle(replay, *_thin(replay.series.time_s, getattr(replay.series, name)))


def _with_idle(replay: Replay, times: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A line with zeros where the engine falls idle, and where it starts again."""
    series = replay.series
    idle = np.flatnonzero(series.start_s[1:] > series.time_s[:-1])
    gaps = np.concatenate([series.time_s[idle], series.start_s[idle + 1]])
    order = np.argsort(np.concatenate([times, gaps]), kind="stable")
    return np.concatenate([times, gaps])[order], np.concatenate([values, np.zeros(gaps.size)])[order]


def _thin(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """At most `MOST_POINTS` of a line's points, evenly by number; the last is always kept."""
    if len(x) <= MOST_POINTS:
        return x, y
    keep = np.unique(np.linspace(0, len(x) - 1, MOST_POINTS).astype(int))
    return x[keep], y[keep]
