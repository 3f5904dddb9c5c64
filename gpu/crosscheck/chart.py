"""The cross-check drawn: bytes of each tensor by closed form, reference and kernel, side by side."""

from __future__ import annotations

from typing import Any

from gpu.crosscheck.report import CrossReport


def draw_bytes(report: CrossReport, op: str, ax: Any = None) -> Any:
    """Bars of one op, a group a tensor and direction, on a logarithmic scale. Returns the matplotlib Axes."""
    import matplotlib.pyplot as plt

    ax = ax or plt.subplots(figsize=(9, 4))[1]
    rows = report.bytes_of(op)
    who = [("closed form", "closed_form"), ("reference", "reference"), ("kernel", "emulated"), ("own count", "counted")]
    who = [(label, name) for label, name in who if any(getattr(row, name) is not None for row in rows)]
    for i, (label, name) in enumerate(who):
        heights = [getattr(row, name) or 0 for row in rows]
        ax.bar([at + (i - (len(who) - 1) / 2) * 0.2 for at in range(len(rows))], heights, 0.18, label=label)
    ax.set_xticks(range(len(rows)), [f"{row.kernel}\n{row.tensor} {row.direction}" for row in rows], rotation=90)
    ax.set_yscale("log")
    ax.set_ylabel("bytes")
    ax.set_title(f"{op}: {'equal' if all(row.agree for row in rows) else 'NOT equal'}, tensor by tensor")
    ax.legend()
    return ax


def save_chart(report: CrossReport, path: str) -> None:
    """Draw every op of a report, one below the other, to a file."""
    import matplotlib.pyplot as plt

    ops = [op for op, _ in report.by_op()]
    figure, axes = plt.subplots(len(ops), 1, figsize=(10, 5 * len(ops)), squeeze=False, layout="constrained")
    for op, ax in zip(ops, axes[:, 0], strict=True):
        draw_bytes(report, op, ax)
    figure.savefig(path)
    plt.close(figure)
