"""A trace run through the scheduler, step by step, in simulated time."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from refsim.serving.request import Outcome, Request

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jaxtyping import Float

    from refsim.serving.memory import Fill, State
    from refsim.serving.scheduler import Scheduler
    from refsim.serving.step_time import StepTime


@dataclass(frozen=True)
class Series:
    """The state during each step: from when to when, how full the cache was, who ran and waited, new tokens."""

    start_s: Float[np.ndarray, "steps"]
    time_s: Float[np.ndarray, "steps"]
    used: Float[np.ndarray, "steps"]
    running: Float[np.ndarray, "steps"]
    waiting: Float[np.ndarray, "steps"]
    tokens: Float[np.ndarray, "steps"]
    decodes: Float[np.ndarray, "steps"]

    def at(self, name: str, times_s: Float[np.ndarray, "n"]) -> Float[np.ndarray, "n"]:
        """A quantity at given times: that of the step which runs then, or 0 between steps."""
        if not self.time_s.size:
            return np.zeros(np.shape(times_s))
        index = np.minimum(np.searchsorted(self.time_s, times_s, side="left"), self.time_s.size - 1)
        runs = (self.start_s[index] < times_s) & (times_s <= self.time_s[index])
        return np.where(runs, getattr(self, name)[index], 0.0)


@dataclass(frozen=True)
class Replay:
    """What became of a trace. `fills` holds (time, Fill) every `fill_every_s`; `refused` could never fit."""

    outcomes: list[Outcome]
    refused: list[Request]
    series: Series
    fills: list[tuple[float, Fill]]
    preemptions: int
    admission_order: list[int] = field(default_factory=list)

    @property
    def makespan_s(self) -> float:
        """From the trace's start to the last token."""
        return max((o.finished_s for o in self.outcomes), default=0.0)

    @property
    def mean_ttft_s(self) -> float:
        """Mean time to first token."""
        return float(np.mean([o.ttft_s for o in self.outcomes])) if self.outcomes else 0.0

    @property
    def mean_tpot_s(self) -> float:
        """Mean time per output token after the first, over requests that have more than one."""
        times = [o.tpot_s for o in self.outcomes if o.request.output_len > 1]
        return float(np.mean(times)) if times else 0.0

    @property
    def hit_rate(self) -> float:
        """Prompt tokens found cached at first admission, of all prompt tokens."""
        total = sum(o.request.prompt_len for o in self.outcomes)
        return sum(o.cached_tokens for o in self.outcomes) / total if total else 0.0

    @property
    def mean_batch(self) -> float:
        """Requests running, averaged over the time in which any were."""
        spans = self.series.time_s - self.series.start_s
        return float((self.series.running * spans).sum() / spans.sum()) if spans.size else 0.0

    def mean_fill(self) -> dict[str, float]:
        """Fractions of the cache by use, averaged over the samples at which it held anything."""
        names = ("written", "reserved", "internal", "external", "free")
        rows = [[getattr(f, n) / f.total for n in names] for _, f in self.fills if f.written]
        return dict(zip(names, np.mean(rows, axis=0).tolist() if rows else [0.0] * len(names), strict=True))


def replay(
    requests: Sequence[Request],
    scheduler: Scheduler,
    step_time: StepTime,
    *,
    fill_every_s: float = 1.0,
    progress: Callable[[int], None] | None = None,
) -> Replay:
    """Run requests (in order of arrival) to their end.

    The scheduler and its cache are used up. `progress` is called with the number of requests finished or refused.
    Raises ValueError when a request waits for room that others than these requests hold: it would wait for ever.
    """
    arrivals = deque(requests)
    outcomes: list[Outcome] = []
    refused: list[Request] = []
    fills: list[tuple[float, Fill]] = []
    rows: list[tuple[float, float, float, int, int, int, int]] = []
    order: list[int] = []
    now, next_fill, done = 0.0, 0.0, 0
    while arrivals or scheduler.waiting or scheduler.running:
        if not scheduler.waiting and not scheduler.running:
            now = max(now, arrivals[0].arrival_s)
        while arrivals and arrivals[0].arrival_s <= now:
            request = arrivals.popleft()
            if not scheduler.add(request):
                refused.append(request)
        preemptions = scheduler.preemptions
        step = scheduler.schedule(now)
        if not step.scheduled:
            if not scheduler.running and scheduler.preemptions == preemptions and scheduler.waiting:
                raise ValueError(
                    f"request {scheduler.waiting[0].request.index} waits for ever: nobody runs, and what is pinned or "
                    "held by sequences outside the replay leaves it no room. Free that, or give the cache more blocks"
                )
            continue
        order.extend(state.request.index for state in step.admitted if not state.preemptions)
        start, now = now, now + step_time.seconds(step)
        used, seats, queue = scheduler.memory.used_fraction(), len(scheduler.running), len(scheduler.waiting)
        rows.append((start, now, used, seats, queue, step.tokens, step.decodes))
        if now >= next_fill:
            head = scheduler.waiting[0].request if scheduler.waiting else None
            fills.append((now, scheduler.memory.fill(scheduler.running, head)))
            next_fill = now + fill_every_s
        for state in scheduler.complete(step, now):
            outcomes.append(_outcome(state, now))
        if progress is not None and len(outcomes) + len(refused) > done:
            done = len(outcomes) + len(refused)
            progress(done)
    table = np.array(rows, dtype=np.float64).reshape(-1, 7)
    return Replay(outcomes, refused, Series(*table.T), fills, scheduler.preemptions, order)


def _outcome(state: State, now_s: float) -> Outcome:
    return Outcome(state.request, state.admitted_s, state.first_token_s, now_s, state.cached_tokens, state.preemptions)
