"""Measuring: device times of workloads, beside a copy on the same device and the cost model's prediction."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from gpu.device_report.rivals import RIVALS, Missing, torch_seconds
from gpu.device_report.workloads import DTYPE, Sizes, Workload
from gpu.runtime import Runtime
from refsim.cost import estimate
from refsim.machine import Ledger

COPY_NBYTES, REPEATS = 1 << 30, 15
FLUSH_NBYTES = 1 << 28  # more than any L2 cache holds


@dataclass(frozen=True)
class Timing:
    """One workload's figures. Times in seconds; None: not measured, and `skipped` says why."""

    name: str
    kind: str
    nbytes: int = 0
    flops: int = 0
    median_s: float | None = None
    fastest_s: float | None = None
    kernels_s: dict[str, float] = field(default_factory=dict)
    kernels_nbytes: dict[str, int] = field(default_factory=dict)
    predicted_s: float | None = None
    rivals_s: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    skipped: str | None = None

    @property
    def bandwidth(self) -> float | None:
        """Bytes of the ledger a second."""
        return None if not self.median_s else self.nbytes / self.median_s

    @property
    def tflops(self) -> float | None:
        """Matrix FLOPs of the ledger a second, in 10^12."""
        return None if not self.median_s else self.flops / self.median_s / 1e12

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        fields: dict[str, Any] = asdict(self)
        return fields | {"bytes_per_s": self.bandwidth, "tflops": self.tflops}


def wall_seconds(run: Callable[[], object], *, repeats: int = 2, **_: Any) -> list[float]:
    """Wall-clock times, for a runtime that has no device: they say how long the emulator takes, and no more."""
    times: list[float] = []
    while len(times) < repeats:
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return times


def timer(runtime: Runtime) -> Callable[..., list[float]]:
    """How this runtime tells the time."""
    clock: Callable[..., list[float]] = getattr(runtime, "seconds", wall_seconds)
    return clock


def copy_bandwidth(runtime: Runtime, nbytes: int = COPY_NBYTES) -> float:
    """Bytes a second of a plain copy on the device, read and write together: the yardstick for memory-bound kernels."""
    if runtime.name != "cupy":
        source = np.zeros(1 << 20, np.uint8)
        target = np.empty_like(source)
        return 2 * source.nbytes / min(wall_seconds(lambda: np.copyto(target, source), repeats=5))
    import cupy

    a, b = cupy.zeros(nbytes, np.uint8), cupy.empty(nbytes, np.uint8)
    times = timer(runtime)(lambda: cupy.copyto(b, a), repeats=REPEATS)
    return 2 * nbytes / statistics.median(times)


def measure(workload: Workload, runtime: Runtime, sizes: Sizes, device: Any, *, repeats: int = REPEATS) -> Timing:
    """Prepare, run once, time the call and each of its kernels, predict, and time what a user would pick instead.

    Before each call that is judged by bytes, the L2 cache is flushed. A call's kernels are timed by themselves without
    that: in the call, each finds in the cache what the one before it left there.
    """
    try:
        return _measured(workload, runtime, sizes, device, repeats)
    except Exception as error:  # the other workloads go on
        return Timing(workload.name, workload.kind, skipped=f"{type(error).__name__}: {error}")


def _measured(workload: Workload, runtime: Runtime, sizes: Sizes, device: Any, repeats: int) -> Timing:
    prepared = workload.prepare(runtime)
    prepared.run()
    getattr(runtime, "synchronize", lambda: None)()
    ledger, clock = workload.ledger(prepared), timer(runtime)
    cold = runtime.name == "cupy" and workload.kind == "memory"
    times = clock(prepared.run, repeats=repeats, flush=runtime.empty((FLUSH_NBYTES,), np.uint8) if cold else None)
    kernels = {}
    if len(prepared.launches) > 1:
        kernels = {launch.kernel: statistics.median(clock(launch.run, repeats=repeats)) for launch in prepared.launches}
    found, notes = rivals(workload, sizes) if runtime.name == "cupy" else ({}, ("rivals: no GPU",))
    return Timing(
        workload.name,
        workload.kind,
        nbytes=ledger.hbm_nbytes,
        flops=ledger.matmul_flops,
        median_s=statistics.median(times),
        fastest_s=min(times),
        kernels_s=kernels,
        kernels_nbytes={kernel: ledger.total(kernel=kernel) for kernel in kernels},
        predicted_s=predict(ledger, device),
        rivals_s=found,
        notes=tuple(notes),
    )


def predict(ledger: Ledger, device: Any) -> float | None:
    """The cost model's time; None where it doesn't know the device."""
    return None if device is None else estimate(ledger, device, dtype=DTYPE).total_s


def rivals(workload: Workload, sizes: Sizes) -> tuple[dict[str, float], list[str]]:
    """Median times of what a user would pick instead, and why some are missing."""
    found: dict[str, float] = {}
    notes = []
    for name, make in RIVALS.get(workload.rival or "", {}).items():
        try:
            found[name] = statistics.median(torch_seconds(make(sizes)))
        except Missing as missing:
            notes.append(f"{name} skipped: {missing}")
        except Exception as error:  # out of memory, an unsupported shape: a rival's failure is no failure of ours
            notes.append(f"{name} failed: {type(error).__name__}: {str(error).splitlines()[0]}")
    return found, notes
