"""Serving: traces of requests, a continuous-batching scheduler over any cache, and replays in simulated time."""

from refsim.serving.contiguous import ContiguousMemory
from refsim.serving.memory import Fill, Memory, PagedMemory
from refsim.serving.replay import Replay, replay
from refsim.serving.request import Outcome, Request
from refsim.serving.scheduler import Scheduler, Step
from refsim.serving.step_time import Linear, Roofline, StepTime
from refsim.serving.synthetic import Workload
from refsim.serving.trace import TraceError, load

__all__ = [
    "ContiguousMemory",
    "Fill",
    "Linear",
    "Memory",
    "Outcome",
    "PagedMemory",
    "Replay",
    "Request",
    "Roofline",
    "Scheduler",
    "Step",
    "StepTime",
    "TraceError",
    "Workload",
    "load",
    "replay",
]
