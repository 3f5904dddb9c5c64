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

    Raises FileNotFoundError, and TraceError for a file that is malformed and when the lengths aren't the requests'.
    """
    rows = sorted(_rows(folder / "requests.jsonl"))
    lengths = [(int(tokens_in), int(tokens_out)) for _, tokens_in, tokens_out, *_ in rows]
    if lengths != [(r.prompt_len, r.output_len) for r in requests]:
        raise TraceError(f"{folder.name} is not a run of these {len(requests)} requests: their lengths differ")
    arrival = np.array([r.arrival_s for r in requests])
    _, _, _, queued, scheduled, first, last = np.array(rows).T
    origin = (queued - arrival).min()
    tick, running, waiting, percent = np.array(_ticks(folder / "timeseries.csv")).T
    output = np.array([r.output_len for r in requests], dtype=np.float64)
    return MeasuredRun(
        arrival, scheduled - origin, first - origin, last - origin, output, tick, running, waiting, percent / 100
    )


def _rows(path: Path) -> list[list[float]]:
    """A request's number, tokens in and out, and when it was queued, scheduled, and gave its first and last token."""
    names = ("input_toks", "output_toks", "queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")
    rows = []
    for line, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if text.strip():
            try:
                row = json.loads(text)
                rows.append([float(row["request_id"].split("-")[1]), *(float(row[name]) for name in names)])
            except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
                raise TraceError(
                    f"{path}, line {line}: {type(error).__name__} {error}; expected an object with "
                    f"request_id (such as bench-0), {', '.join(names)}"
                ) from error
    return rows


def _ticks(path: Path) -> list[list[float]]:
    """The engine's state, a row a second."""
    names = ("t", "running", "waiting", "kv_cache_pct")
    ticks = []
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        for row in reader:
            try:
                ticks.append([float(row[name]) for name in names])
            except (KeyError, TypeError, ValueError) as error:
                raise TraceError(
                    f"{path}, line {reader.line_num}: {type(error).__name__} {error}; expected numbers in the columns "
                    f"{', '.join(names)}"
                ) from error
    if not ticks:
        raise TraceError(f"{path} has no rows; expected the columns {', '.join(names)}, a row a second")
    return ticks


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
    """Hold a replay against the run. Raises ValueError when the replay refused some of its requests."""
    if len(replay.outcomes) != run.arrival_s.size:
        raise ValueError(
            f"the replay served {len(replay.outcomes)} of the run's {run.arrival_s.size} requests and refused the "
            "others as too long; to be compared it needs more blocks, or a larger max_len"
        )
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
