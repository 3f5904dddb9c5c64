"""A run that was measured, and how far a replay of its requests is from it."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from refsim.serving.trace import TraceError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from jaxtyping import Float

    from refsim.serving.replay import Replay
    from refsim.serving.request import Request


@dataclass(frozen=True)
class MeasuredRun:
    """Times in seconds since the workload's start, one a request; and the engine's state each second.

    The engine's clock has another origin than the workload's; the smallest delay between arriving and being queued is
    taken as zero.
    """

    arrival_s: Float[np.ndarray, "requests"]
    scheduled_s: Float[np.ndarray, "requests"]
    first_token_s: Float[np.ndarray, "requests"]
    last_token_s: Float[np.ndarray, "requests"]
    output_len: Float[np.ndarray, "requests"]
    tick_s: Float[np.ndarray, "ticks"]
    running: Float[np.ndarray, "ticks"]
    waiting: Float[np.ndarray, "ticks"]
    fill: Float[np.ndarray, "ticks"]

    @property
    def makespan_s(self) -> float:
        """To the last token."""
        return float(self.last_token_s.max())

    @property
    def mean_ttft_s(self) -> float:
        """From arrival."""
        return float((self.first_token_s - self.arrival_s).mean())

    @property
    def mean_tpot_s(self) -> float:
        """After the first token."""
        return float(((self.last_token_s - self.first_token_s) / np.maximum(self.output_len - 1, 1)).mean())


def load_run(folder: Path, requests: Sequence[Request]) -> MeasuredRun:
    """Read `requests.jsonl` and `timeseries.csv` of a run of these requests.

    Raises FileNotFoundError, and TraceError when the lengths are not those of the requests.
    """
    lines = (folder / "requests.jsonl").read_text(encoding="utf-8").splitlines()
    rows = sorted(
        (json.loads(line) for line in lines if line.strip()), key=lambda r: int(r["request_id"].split("-")[1])
    )
    lengths = [(r["input_toks"], r["output_toks"]) for r in rows]
    if lengths != [(r.prompt_len, r.output_len) for r in requests]:
        raise TraceError(f"{folder.name} is not a run of these {len(requests)} requests: their lengths differ")
    arrival = np.array([r.arrival_s for r in requests])
    origin = min(row["queued_ts"] - a for row, a in zip(rows, arrival, strict=True))
    scheduled, first, last = (
        np.array([row[name] for row in rows]) - origin for name in ("scheduled_ts", "first_token_ts", "last_token_ts")
    )
    with (folder / "timeseries.csv").open(encoding="utf-8", newline="") as file:
        ticks = [[float(row[c]) for c in ("t", "running", "waiting", "kv_cache_pct")] for row in csv.DictReader(file)]
    tick, running, waiting, percent = np.array(ticks).T
    output = np.array([r.output_len for r in requests], dtype=np.float64)
    return MeasuredRun(arrival, scheduled, first, last, output, tick, running, waiting, percent / 100)


@dataclass(frozen=True)
class Comparison:
    """A replay minus what was measured: the first three relative, the next three mean distances over the ticks.

    `fill` is a fraction of the pool. `first_token_s` and `last_token_s` are the residuals of each request,
    `fill_at_ticks` is the replay's fill each second.
    """

    makespan: float
    ttft: float
    tpot: float
    fill: float
    running: float
    waiting: float
    first_token_s: Float[np.ndarray, "requests"]
    last_token_s: Float[np.ndarray, "requests"]
    fill_at_ticks: Float[np.ndarray, "ticks"]


def compare(replay: Replay, run: MeasuredRun) -> Comparison:
    """Hold a replay against the run."""
    outcomes = sorted(replay.outcomes, key=lambda o: o.request.index)
    fill = replay.series.at("used", run.tick_s)
    return Comparison(
        makespan=replay.makespan_s / run.makespan_s - 1,
        ttft=replay.mean_ttft_s / run.mean_ttft_s - 1,
        tpot=replay.mean_tpot_s / run.mean_tpot_s - 1,
        fill=float(np.abs(fill - run.fill).mean()),
        running=float(np.abs(replay.series.at("running", run.tick_s) - run.running).mean()),
        waiting=float(np.abs(replay.series.at("waiting", run.tick_s) - run.waiting).mean()),
        first_token_s=np.array([o.first_token_s for o in outcomes]) - run.first_token_s,
        last_token_s=np.array([o.finished_s for o in outcomes]) - run.last_token_s,
        fill_at_ticks=fill,
    )
