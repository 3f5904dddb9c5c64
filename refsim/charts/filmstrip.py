"""A film strip: the frames of a walk side by side, drawn from what its steps recorded.

Any frames will do, with a function that draws one of them on an Axes. `softmax_frames` makes frames of an attention
walk: what each key seen so far weighs, measured against the running maximum of that moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from refsim.charts.style import BLUE, GREY, INK, VERMILION
from refsim.checks import whole_number

if TYPE_CHECKING:
    from jaxtyping import Float
    from matplotlib.axes import Axes

    from refsim.machine import Step

T = TypeVar("T")


def filmstrip(
    frames: Sequence[T],
    draw: Callable[[Axes, T], Any],
    *,
    titles: Sequence[str] | None = None,
    columns: int = 4,
    size: tuple[float, float] = (2.5, 1.9),
) -> list[Axes]:
    """One Axes a frame, `columns` of them in a row, each `size` inches; `draw(ax, frame)` draws one.

    Raises ValueError without frames, or when titles don't match them.

    >>> axes = filmstrip([1, 2, 3], lambda ax, n: ax.set_title(f"frame {n}"), columns=2)
    >>> [ax.get_title() for ax in axes], axes[0].figure.get_size_inches()
    (['frame 1', 'frame 2', 'frame 3'], array([5. , 3.8]))
    """
    if not frames:
        raise ValueError("a film strip needs at least one frame")
    if titles is not None and len(titles) != len(frames):
        raise ValueError(f"{len(titles)} titles for {len(frames)} frames")
    columns = whole_number("columns", columns, 1)
    from matplotlib.figure import Figure

    columns = min(columns, len(frames))
    rows = -(-len(frames) // columns)
    figure = Figure(figsize=(columns * size[0], rows * size[1]), dpi=110, layout="constrained")
    axes = []
    for number, frame in enumerate(frames):
        ax = figure.add_subplot(rows, columns, number + 1)
        draw(ax, frame)
        if titles is not None:
            ax.set_title(titles[number], fontsize=8)
        axes.append(ax)
    return axes


@dataclass(frozen=True)
class SoftmaxFrame:
    """One step of one query row.

    weights (T,): what each key weighs now, NaN where no key was seen: e^(s - m) while a state is kept, and shares of 1
    once it is finished.  new: the keys that this step took in.  m, l, lse: the row's statistics, NaN where the step
    doesn't keep them.  out (Dv,): the answer if the walk ended here.
    """

    name: str
    split: int | None
    new: range
    weights: Float[np.ndarray, " T"]
    m: float
    l: float
    lse: float
    out: Float[np.ndarray, " Dv"]
    hbm_nbytes: int

    @property
    def title(self) -> str:
        """What happened, and the statistics."""
        where = "" if self.split is None else f"split {self.split}: "
        if self.name == "absorb":
            keys = f"keys {self.new.start}–{self.new.stop - 1}" if len(self.new) > 1 else f"key {self.new.start}"
            return f"{where}{keys}\nm {self.m:.2f}   l {self.l:.2f}"
        return f"{where}{self.name}\nLSE {self.lse:.2f}"


def softmax_frames(
    steps: Iterable[Step], *, row: int = 0, program: tuple[int, int] = (0, 0), query_tile: int = 0, sequence: int = 0
) -> list[SoftmaxFrame]:
    """A frame for each step of flash, paged or split_kv that concerns one row of one query tile.

    program: the KV head and the program among those that share it; row: a row of its tile (token times packed heads).

    Raises ValueError when no step absorbs keys, as in standard attention, or the walk has no such row, program, query
    tile or sequence.

    >>> from refsim import attention
    >>> x = np.log([[[1.0]], [[2.0]], [[5.0]]])
    >>> for frame in softmax_frames(attention.flash.steps(np.ones((1, 1, 1)), x, x, tile=(1, 2))):
    ...     print(frame.name, frame.weights.round(2), round(frame.l, 2))
    absorb [0.5 1.  nan] 1.5
    absorb [0.2 0.4 1. ] 1.6
    write [0.12 0.25 0.62] nan
    """
    steps = list(steps)
    if all(s.name != "absorb" for s in steps):
        raise ValueError("none of these steps absorbs keys; walk flash, paged or split_kv")
    mine = [s for s in steps if s.index.get("sequence") == sequence and s.index.get("query_tile") == query_tile]
    absorbed = [s for s in mine if s.name == "absorb"]
    if not absorbed:
        raise ValueError(f"no step absorbs keys for query tile {query_tile} of sequence {sequence}")
    T = max(s.index["stop_key"] for s in absorbed)
    G, A, rows_of_tile = absorbed[0].after["m"].shape[:3]
    if not (0 <= program[0] < G and 0 <= program[1] < A):
        raise ValueError(f"program must be (KV head, program) below ({G}, {A}), got {program}")
    if not 0 <= row < rows_of_tile:
        raise ValueError(f"row must be from 0 to {rows_of_tile - 1}, got {row}")
    rows = _Row(row, program, np.full(T, np.nan))
    return [frame for step in mine if (frame := rows.frame(step)) is not None]


class _Row:
    """Follows one row through a walk: the weights of its keys, and how finished splits were weighed."""

    def __init__(self, row: int, program: tuple[int, int], unseen: np.ndarray) -> None:
        self.row, self.program, self.unseen = row, program, unseen
        self.split: int | None = None
        self.weights, self.m, self.l = unseen.copy(), -np.inf, 0.0
        self.handed_over: list[np.ndarray] = []

    def frame(self, step: Step) -> SoftmaxFrame | None:
        split = step.index.get("split")
        if split != self.split:
            self.weights, self.split, self.m, self.l = self.unseen.copy(), split, -np.inf, 0.0
        make = {"absorb": self._absorb, "hand over": self._hand_over, "write": self._write, "reduce": self._reduce}
        return make[step.name](step) if step.name in make else None

    def _of(self, step: Step, name: str) -> Any:
        """This row of a recorded state (G, A, rows, ...)."""
        return step.after[name][self.program][self.row]

    def _absorb(self, step: Step) -> SoftmaxFrame:
        m, l = float(self._of(step, "m")), float(self._of(step, "l"))
        new = range(step.index["first_key"], step.index["stop_key"])
        self.weights *= np.exp(self.m - m) if np.isfinite(m) else 1
        self.weights[new.start : new.stop] = self._of(step, "p")
        self.m, self.l = m, l
        out = self._of(step, "o") / max(l, np.finfo(float).tiny)
        return self._made(step, new, self.weights, out, m=m, l=l)

    def _hand_over(self, step: Step) -> SoftmaxFrame:
        out = np.array(self._of(step, "o_partial"))
        if "lse_partial" in step.after:
            weights, lse = self.weights / max(self.l, np.finfo(float).tiny), float(self._of(step, "lse_partial"))
            self.handed_over.append(weights)
            return self._made(step, range(0), weights, out, lse=lse)
        self.handed_over.append(self.weights.copy())
        return self._made(step, range(0), self.weights, out / max(self.l, np.finfo(float).tiny), m=self.m, l=self.l)

    def _write(self, step: Step) -> SoftmaxFrame:
        weights = self.weights / max(self.l, np.finfo(float).tiny)
        return self._made(step, range(0), weights, self._of(step, "out"), lse=float(self._of(step, "lse")))

    def _reduce(self, step: Step) -> SoftmaxFrame:
        shares = step.after["weights"][self.program][:, self.row]
        weights = self.unseen.copy()
        for share, split in zip(shares, self.handed_over, strict=True):
            weights[~np.isnan(split)] = share * split[~np.isnan(split)]
        return self._made(step, range(0), weights, self._of(step, "out"), lse=float(self._of(step, "lse")))

    def _made(
        self, step: Step, new: range, weights: Any, out: Any, *, m: float = np.nan, l: float = np.nan, lse: Any = None
    ) -> SoftmaxFrame:
        if lse is None:
            lse = m + np.log(l) if l > 0 else -np.inf
        return SoftmaxFrame(
            step.name, self.split, new, weights.copy(), m, l, float(lse), np.array(out), step.delta.hbm_nbytes
        )


def draw_softmax_frame(ax: Axes, frame: SoftmaxFrame) -> Axes:
    """A bar a key: this step's keys in red, those seen before in blue; keys not seen yet leave a dot."""
    keys = np.arange(len(frame.weights))
    seen = ~np.isnan(frame.weights)
    colours = [VERMILION if key in frame.new else BLUE for key in keys[seen]]
    ax.bar(keys[seen], frame.weights[seen], color=colours, width=0.85)
    if not seen.all():
        ax.plot(keys[~seen], np.full((~seen).sum(), 0.03), ".", color=GREY, markersize=2)
    ax.set_xlim(-0.7, len(keys) - 0.3)
    ax.set_ylim(0, 1.05)
    ax.set_yticks([0, 1])
    if len(keys) <= 6:
        ax.set_xticks(keys)
    else:
        ax.locator_params(axis="x", integer=True, nbins=6)
    ax.set_title(frame.title, fontsize=8, color=INK)
    ax.tick_params(labelsize=7, length=2)
    ax.spines[["top", "right"]].set_visible(False)
    return ax
