"""The roofline: what bandwidth and matrix units allow at each intensity, and where algorithms come to lie under it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from refsim.charts.style import INK, SERIES, check_ledgers, label_log_axis, new_axes
from refsim.cost import Device, devices, estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from refsim.machine import Ledger

MARKERS = "osD^vP*X"


def roofline(
    ledgers: Mapping[str, Ledger], device: Device | str, *, dtype: Any = "float16", ax: Axes | None = None
) -> Axes:
    """A point an algorithm: matrix FLOPs a byte of HBM against matrix FLOPs a second, by `cost.estimate`.

    What lies below the roof waits for something else than HBM's or the matrix units' peak: idle multiprocessors,
    exponentials, launches. Both axes are logarithmic.

    Raises ValueError for a ledger without bytes or matrix products, TypeError for what is no ledger or device, and
    UnknownDevice.

    Source: "Roofline: An Insightful Visual Performance Model for Multicore Architectures".

    >>> from refsim.machine import Key, Ledger, Work
    >>> ledger = Ledger({Key("k", "q", "HBM", "read"): 10**9}, {"k": Work(1, 10**6, matmul_flops=10**10)})
    >>> roofline({"mine": ledger}, "A100-80").get_lines()[-1].get_xdata().tolist()
    [10.0]
    """
    check_ledgers(ledgers)
    device = devices.device_of(device)
    ax = new_axes(ax, 7, 4.2)
    peak = device.matrix_flops_per_s(dtype)
    points = {}
    for name, ledger in ledgers.items():
        if not ledger.hbm_nbytes or not ledger.matmul_flops:
            raise ValueError(f"{name!r} has no HBM bytes or no matrix products; a roofline needs both")
        seconds = estimate(ledger, device, dtype=dtype).total_s
        points[name] = (ledger.matmul_flops / ledger.hbm_nbytes, ledger.matmul_flops / seconds)
    ridge = peak / device.hbm_bytes_per_s
    drawn = [ridge, *(at for at, _ in points.values())]
    x = np.array([min(drawn) / 2, ridge, max(drawn) * 4])
    ax.plot(x, np.minimum(x * device.hbm_bytes_per_s, peak), color=INK, linewidth=1.5)
    ax.annotate("HBM", (x[0], x[0] * device.hbm_bytes_per_s), (0, 26), textcoords="offset points", color=INK)
    ax.annotate("matrix units", (x[-1], peak), (0, 5), textcoords="offset points", ha="right", color=INK)
    for i, (name, (at, flops_per_s)) in enumerate(points.items()):
        # After each round of colours, every colour takes the next marker.
        colour, marker = SERIES[i % len(SERIES)], MARKERS[(i + i // len(SERIES)) % len(MARKERS)]
        # Algorithms may share a place: hollow marks of different shapes stay apart.
        style: dict[str, Any] = {"linestyle": "none", "markerfacecolor": "none", "markeredgewidth": 1.8}
        ax.plot([at], [flops_per_s], marker=marker, color=colour, label=name, markersize=9, **style)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_ylim(top=peak * max(2, (peak / ax.get_ylim()[0]) ** 0.1))
    label_log_axis(ax.yaxis, lambda y: f"{y / 1e12:g}")
    label_log_axis(ax.xaxis, lambda x: f"{x:g}")
    ax.set_xlabel("matrix FLOPs a byte of HBM")
    ax.set_ylabel("matrix TFLOP/s")
    ax.set_title(device.title, loc="left", fontsize=10)
    ax.grid(alpha=0.3, which="major")
    ax.spines[["top", "right"]].set_visible(False)
    if points:
        ax.legend(fontsize=9, frameon=False, loc="lower right")
    return ax
