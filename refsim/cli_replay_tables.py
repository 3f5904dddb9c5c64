"""The tables that `refsim replay` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console

    from refsim.serving import Replay, Request
    from refsim.serving.measured import Comparison, MeasuredRun


def print_summary(console: Console, results: dict[str, Replay], count: int) -> None:
    """What became of the requests, a column a policy."""
    from rich.table import Table

    table = Table(title=_requests(count))
    table.add_column("")
    for name in results:
        table.add_column(name, justify="right")

    def row(label: str, values: list[str]) -> None:
        table.add_row(label, *values)

    runs = list(results.values())
    fills = [r.mean_fill() for r in runs]
    row("finished / refused", [f"{len(r.outcomes):,} / {len(r.refused):,}" for r in runs])

    def means(label: str, show: Callable[[Replay], str]) -> None:
        row(label, [show(r) if r.outcomes else "-" for r in runs])

    means("makespan", lambda r: f"{r.makespan_s:,.1f} s")
    means("output tokens a second", lambda r: f"{_output(r) / max(r.makespan_s, 1e-9):,.0f}")
    means("mean requests running", lambda r: f"{r.mean_batch:.1f}")
    means("time to first token, mean", lambda r: f"{r.mean_ttft_s:,.3f} s")
    means("  99th percentile", lambda r: f"{_percentile(r):,.3f} s")
    means("time per output token, mean", lambda r: f"{1000 * r.mean_tpot_s:,.2f} ms")
    means("prefix cache hit rate (tokens)", lambda r: f"{100 * r.hit_rate:.2f} %")
    row("prefill tokens saved", [f"{sum(o.cached_tokens for o in r.outcomes):,}" for r in runs])
    row("preemptions", [f"{r.preemptions:,}" for r in runs])
    for use, label in (("written", "slots with token states"), ("reserved", "slots reserved, used later")):
        row(label, [f"{100 * f[use]:.2f} %" for f in fills])
    for use, label in (("internal", "slots reserved, never used"), ("external", "slots free, but fitting nobody")):
        row(label, [f"{100 * f[use]:.2f} %" for f in fills])
    console.print(table)


def print_remarks(console: Console, results: dict[str, Replay], requests: Sequence[Request]) -> None:
    """What one would otherwise wonder about: who was refused, and why nothing was hit."""
    for name, result in results.items():
        if result.refused:
            least = min(r.total_len for r in result.refused)
            count = len(result.refused)
            console.print(f"{name} refused {_requests(count)} that it could never hold, of {least:,} tokens and more")
    if len({len(r.refused) for r in results.values()}) > 1:
        console.print("policies that refuse other requests served other work: a larger --max-len makes them comparable")
    if not any(r.hash_ids for r in requests):
        console.print("the trace doesn't say which prompts begin alike, so a prefix cache can hit nothing")


def _requests(count: int) -> str:
    return "1 request" if count == 1 else f"{count:,} requests"


def _output(replay: Replay) -> int:
    return sum(o.request.output_len for o in replay.outcomes)


def _percentile(replay: Replay) -> float:
    return float(np.percentile([o.ttft_s for o in replay.outcomes], 99)) if replay.outcomes else 0.0


def print_comparison(console: Console, c: Comparison, measured: MeasuredRun, result: Replay) -> None:
    """The replay beside what was measured, with the error of each quantity."""
    from rich.table import Table

    table = Table("", "replay", "measured", "error", title="Against the measured run")
    rows = [
        ("makespan (s)", result.makespan_s, measured.makespan_s, f"{100 * c.makespan:+.2f} %"),
        ("mean time to first token (s)", result.mean_ttft_s, measured.mean_ttft_s, f"{100 * c.ttft:+.2f} %"),
        (
            "mean time per output token (ms)",
            1000 * result.mean_tpot_s,
            1000 * measured.mean_tpot_s,
            f"{100 * c.tpot:+.2f} %",
        ),
        (
            "mean pool fill (%)",
            100 * float(c.fill_at_ticks.mean()),
            100 * float(measured.fill.mean()),
            f"{100 * c.fill:.2f} points on average",
        ),
        ("most requests running", float(result.series.running.max()), float(measured.running.max()), ""),
    ]
    for label, ours, theirs, error in rows:
        table.add_row(label, f"{ours:,.2f}", f"{theirs:,.2f}", error)
    order = "first come, first served" if result.admission_order == sorted(result.admission_order) else "not FCFS"
    console.print(table)
    console.print(
        f"order of admission: {order}; first tokens {np.abs(c.first_token_s).mean():.2f} s off on average, "
        f"running {c.running:.1f} and waiting {c.waiting:.1f} requests off"
    )
