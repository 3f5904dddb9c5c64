"""The online softmax on its way: how the running maximum and the running sum move as key tiles are absorbed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from refsim.charts.style import BLUE, GREEN, INK, VERMILION, new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from refsim.machine import Step


def softmax_walk(steps: Iterable[Step], *, row: int = 0, ax: Axes | None = None) -> Axes:
    """m, ln l and m + ln l of one row after each "absorb" step, in the first program of the batch.

    The dashed line is the LSE of the last step: m may jump and l fall, their sum only ever grows towards it.

    Raises ValueError when no step absorbs keys, as in standard attention.

    >>> from refsim import attention
    >>> x = np.arange(12.0).reshape(6, 1, 2) / 10
    >>> ax = softmax_walk(attention.flash.steps(x[:1], x, x, tile=(1, 2)))
    >>> [len(line.get_xdata()) for line in ax.get_lines()][:3]
    [3, 3, 3]
    """
    absorbed = [step for step in steps if step.name == "absorb"]
    if not absorbed:
        raise ValueError("none of these steps absorbs keys; walk flash, paged or split_kv")
    m, l = (np.array([_first_program(step.after[name])[row] for step in absorbed]) for name in ("m", "l"))
    seen = [step.index["stop_key"] for step in absorbed]
    with np.errstate(divide="ignore"):
        lse = m + np.log(l)
        log_l = np.log(l)
    ax = new_axes(ax, 7, 3.6)
    ax.step(seen, m, where="post", color=BLUE, label="m, largest score so far")
    ax.plot(seen, log_l, color=GREEN, marker="o", markersize=4, label="ln l, sum of $e^{s-m}$ so far")
    ax.plot(seen, lse, color=VERMILION, marker="o", markersize=4, label="LSE = m + ln l")
    ax.axhline(lse[-1], color=INK, linewidth=0.8, linestyle="--")
    ax.set_xlabel("keys seen")
    ax.grid(alpha=0.3)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(fontsize=9, frameon=False)
    return ax


def _first_program(state: np.ndarray) -> np.ndarray:
    """The rows of the first program: the grid's two axes are in front."""
    return state.reshape(-1, *state.shape[2:])[0]
