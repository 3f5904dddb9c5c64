"""One command for a machine with a GPU: `python -m gpu.device_report`.

Every correctness case by CuPy with the kernels' own byte counts, then times beside a copy, beside what a user would
pick instead, and beside the cost model's prediction. It needs a checkout on PYTHONPATH, numpy, ml_dtypes, matplotlib
and CuPy, and downloads nothing.
"""

from __future__ import annotations

import platform
import re
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from gpu import runtime as runtimes
from gpu.crosscheck import OPS, crosscheck
from gpu.device_report.measure import Timing, copy_bandwidth, measure
from gpu.device_report.report import DeviceReport, draw
from gpu.device_report.workloads import FULL, SMOKE, workloads
from gpu.runtime import Runtime
from refsim.cost import devices

__all__ = ["DeviceReport", "Timing", "device_report", "draw"]


def device_report(
    runtime: str | Runtime = "auto",
    *,
    level: str = "quick",
    device: str | None = None,
    budget_s: float = 280.0,
    say: Callable[[str], None] = lambda _: None,
) -> DeviceReport:
    """Check and time everything on one device, within a budget of seconds; what didn't fit is named.

    device: the cost model's name of the device, where it isn't found by the GPU's own.
    """
    begin = time.perf_counter()
    where = runtimes.get(runtime) if isinstance(runtime, str) else runtime
    sizes = FULL if where.name == "cupy" else SMOKE
    modelled, skipped = find_device(where, device)
    if runtime == "auto" and (missing := runtimes.why_no_gpu()):
        skipped.append(f"the GPU: {missing}")
    say("checking values and bytes")
    checked = crosscheck(OPS, runtime=where, level=level, counted=where.name == "cupy")
    say("timing a copy")
    copied = None
    try:
        copied = copy_bandwidth(where)
    except Exception as error:  # the timings are worth having without it
        skipped.append(f"the copy: {type(error).__name__}: {error}")
    timings = []
    for workload in workloads(sizes):
        if time.perf_counter() - begin > budget_s:
            timings.append(Timing(workload.name, workload.kind, skipped=f"the budget of {budget_s:.0f} s was used up"))
            continue
        say(workload.name)
        timings.append(measure(workload, where, sizes, modelled, repeats=15 if where.name == "cupy" else 1))
        release(where)
    skipped += [f"{timing.name}: {timing.skipped}" for timing in timings if timing.skipped]
    return DeviceReport(
        environment(where), checked, copied, tuple(timings), tuple(skipped), time.perf_counter() - begin
    )


def find_device(runtime: Runtime, name: str | None) -> tuple[Any, list[str]]:
    """The cost model's device: by name, or the one of whose name most words (and all) are in the GPU's own."""
    if name is not None:
        return devices.get(name), []
    own = str(getattr(runtime, "device_name", ""))
    words = {word.removesuffix("gb") for word in re.findall(r"\w+", own.lower())}
    found = [known for known in devices.names() if set(known.lower().split("-")) <= words]
    if found:
        return devices.get(max(found, key=lambda known: known.count("-"))), []
    return None, [f"predictions: the cost model has no device for {own or 'a machine without a GPU'}; give --device"]


def release(runtime: Runtime) -> None:
    """Give the memory of a workload back before the next one asks for its own."""
    if runtime.name == "cupy":
        import cupy

        cupy.get_default_memory_pool().free_all_blocks()


def environment(runtime: Runtime) -> dict[str, Any]:
    """What the figures were made with."""
    found = {
        "device": getattr(runtime, "device_name", "the emulator, on the CPU"),
        "measured_on_a_gpu": runtime.name == "cupy",
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }
    if runtime.name == "cupy":
        import cupy

        found |= {
            "cupy": cupy.__version__,
            "driver": cupy.cuda.runtime.driverGetVersion(),
            "cuda runtime": cupy.cuda.runtime.runtimeGetVersion(),
            "multiprocessors": getattr(runtime, "multiprocessors", None),
        }
    return found
