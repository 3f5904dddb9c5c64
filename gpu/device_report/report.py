"""The report: everything measured on one device in one run, as JSON, as Markdown, and drawn."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from gpu.crosscheck import CrossReport
from gpu.device_report.measure import Timing


@dataclass(frozen=True)
class DeviceReport:
    """Environment, correctness, the copy's bandwidth, and timings."""

    environment: dict[str, Any]
    correctness: CrossReport | None
    copy_bytes_per_s: float | None
    timings: tuple[Timing, ...]
    skipped: tuple[str, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        """No case of the cross-check failed. Times are never a failure."""
        return self.correctness is None or self.correctness.ok

    def to_json(self) -> str:
        """For tools."""
        checked = None if self.correctness is None else json.loads(self.correctness.to_json())
        return json.dumps(
            {
                "environment": self.environment,
                "correctness": checked,
                "copy_bytes_per_s": self.copy_bytes_per_s,
                "timings": [timing.to_dict() for timing in self.timings],
                "skipped": list(self.skipped),
                "seconds": round(self.seconds, 1),
            },
            indent=2,
        )

    def to_markdown(self) -> str:
        """For docs/results: a table of the environment, one of correctness, one of times."""
        lines = [f"# {self.environment.get('device', 'unknown device')}", ""]
        lines += [f"- {name}: {value}" for name, value in self.environment.items()]
        if not self.environment.get("measured_on_a_gpu"):
            lines += ["", "**No GPU: the times below are the emulator's, and say nothing about any device.**"]
        if self.correctness is not None:
            lines += ["", "## Correctness and bytes", "", *self._correctness_table()]
        if self.timings:
            lines += ["", "## Times", ""]
            if self.copy_bytes_per_s:
                lines += [f"A plain copy moves {self.copy_bytes_per_s / 1e9:,.0f} GB/s here.", ""]
            lines += self._timing_table()
        if self.skipped:
            lines += ["", "## Skipped", "", *(f"- {reason}" for reason in self.skipped)]
        return "\n".join(lines) + "\n"

    def _correctness_table(self) -> list[str]:
        assert self.correctness is not None
        rows = ["| op | cases | failed | largest error | in tolerances | bytes |", "|---|---|---|---|---|---|"]
        for row in self.correctness.summary():
            rows.append(
                f"| {row['op']} | {row['cases']} | {row['failed']} | {row['largest_error']:.2e} | "
                f"{row['error_in_tolerances']:.2f} | {'equal' if row['bytes_equal'] else 'DIFFER'} |"
            )
        return rows

    def _timing_table(self) -> list[str]:
        rows = [
            "| workload | median | predicted | bytes | of copy | TFLOP/s | beside |",
            "|---|---|---|---|---|---|---|",
        ]
        for timing in self.timings:
            if timing.median_s is None:
                why = (timing.skipped or "").partition("\n")[0].replace("|", "\\|")
                rows.append(f"| {timing.name} | skipped: {why} |||||| ")
                continue
            of_copy = self._of_copy(timing.nbytes, timing.median_s) if timing.kind == "memory" else ""
            tflops = f"{timing.tflops:,.1f}" if timing.kind == "matrix" and timing.tflops else ""
            predicted = "" if timing.predicted_s is None else microseconds(timing.predicted_s)
            beside = [f"{name} {microseconds(seconds)}" for name, seconds in timing.rivals_s.items()]
            for kernel, seconds in timing.kernels_s.items():
                share = self._of_copy(timing.kernels_nbytes.get(kernel, 0), seconds)
                beside.append(f"{kernel}: {microseconds(seconds)}" + f" ({share} of copy)" * bool(share))
            rows.append(
                f"| {timing.name} | {microseconds(timing.median_s)} | {predicted} | {timing.nbytes:,} | {of_copy} | "
                f"{tflops} | {'; '.join([*beside, *timing.notes])} |"
            )
        return rows

    def _of_copy(self, nbytes: int, seconds: float) -> str:
        """Bytes a second as a share of what the copy moved; nothing where either is not known."""
        return f"{nbytes / seconds / self.copy_bytes_per_s:.0%}" if nbytes and self.copy_bytes_per_s else ""


def microseconds(seconds: float) -> str:
    """A time in words.

    >>> microseconds(0.00123456)
    '1,235 us'
    """
    return f"{seconds * 1e6:,.0f} us" if seconds >= 1e-4 else f"{seconds * 1e6:,.1f} us"


def draw(report: DeviceReport, ax: Any = None) -> Any:
    """Predicted against measured, both logarithmic; on the diagonal the cost model is right. Returns the Axes."""
    import matplotlib.pyplot as plt

    ax = ax or plt.subplots(figsize=(6, 6))[1]
    points = [(t.predicted_s, t.median_s, t.name) for t in report.timings if t.predicted_s and t.median_s]
    for predicted, measured, name in points:
        ax.plot(predicted, measured, "o")
        ax.annotate(name, (predicted, measured), textcoords="offset points", xytext=(6, -3), fontsize=7)
    if points:
        ends = [min(min(p, m) for p, m, _ in points) / 2, max(max(p, m) for p, m, _ in points) * 2]
        ax.plot(ends, ends, "--", color="grey", linewidth=1)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("predicted, seconds")
    ax.set_ylabel("measured, seconds")
    ax.set_title(str(report.environment.get("device", "")))
    return ax
