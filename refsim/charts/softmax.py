"""The online softmax on its way: how the running maximum and the running sum move as key tiles are absorbed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from refsim.charts.style import BLUE, GREEN, INK, VERMILION, new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from refsim.machine import Step


def softmax_walk(steps: Iterable[Step], *, row: int = 0, ax: Axes | None = None) -> Axes:
    """m, ln l and m + ln l of one row after each "absorb" step, in the first program of the batch.

    The dashed line is the LSE of all keys: m may jump and l fall, their sum only ever grows towards it. A split of
    split-KV knows only its own keys and begins anew, so that lines have gaps between splits.

    Raises ValueError when no step absorbs keys, as in standard attention, and for a row that the tile doesn't have.

    >>> from refsim import attention
    >>> x = np.arange(12.0).reshape(6, 1, 2) / 10
    >>> ax = softmax_walk(attention.flash.steps(x[:1], x, x, tile=(1, 2)))
    >>> [len(line.get_xdata()) for line in ax.get_lines()][:3]
    [3, 3, 3]
    """
    absorbed = [step for step in steps if step.name == "absorb"]
    if not absorbed:
        raise ValueError("none of these steps absorbs keys; walk flash, paged or split_kv")
    absorbed = [step for step in absorbed if _tile(step) == _tile(absorbed[0])]
    if not 0 <= row < (rows := _first_program(absorbed[0].after["m"]).size):
        raise ValueError(f"row must be from 0 to {rows - 1}, got {row}")
    m, l = (np.array([_first_program(step.after[name])[row] for step in absorbed]) for name in ("m", "l"))
    seen = np.array([step.index["stop_key"] for step in absorbed], float)
    splits = np.array([step.index.get("split", 0) for step in absorbed])
    with np.errstate(divide="ignore"):
        log_l = np.log(l)
    lse = m + log_l
    last = np.append(splits[1:] != splits[:-1], True)  # of each split
    gaps = np.flatnonzero(last[:-1]) + 1
    of_all_keys = np.logaddexp.reduce(lse[last])
    seen, m, log_l, lse = (np.insert(each, gaps, np.nan) for each in (seen, m, log_l, lse))
    ax = new_axes(ax, 7, 3.6)
    mark: dict[str, Any] = {"marker": "o", "markersize": 4} if len(seen) == 1 else {}
    ax.step(seen, m, where="post", color=BLUE, label="m, largest score so far", **mark)
    ax.plot(seen, log_l, color=GREEN, marker="o", markersize=4, label="ln l, sum of $e^{s-m}$ so far")
    ax.plot(seen, lse, color=VERMILION, marker="o", markersize=4, label="LSE = m + ln l")
    if np.isfinite(of_all_keys):
        ax.axhline(of_all_keys, color=INK, linewidth=0.8, linestyle="--")
    if len(seen) == 1:
        ax.set_xticks(seen)
    ax.set_xlabel("keys seen")
    ax.grid(alpha=0.3)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(fontsize=9, frameon=False)
    return ax


def _tile(step: Step) -> tuple[int, int]:
    return step.index["sequence"], step.index["query_tile"]


def _first_program(state: np.ndarray) -> np.ndarray:
    """The rows of the first program: the grid's two axes are in front."""
    return state.reshape(-1, *state.shape[2:])[0]
