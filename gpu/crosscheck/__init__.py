"""Hold every kernel against its NumPy twin: values within derived tolerances, and bytes of every tensor exactly.

>>> from gpu.crosscheck import crosscheck
>>> report = crosscheck(ops=("rope",), runtime="emulator")
>>> report.ok, report.summary()[0]["bytes_equal"]
(True, True)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gpu import runtime as runtimes
from gpu.crosscheck.cases import LEVELS, OPS, Case, cases
from gpu.crosscheck.judge import CaseReport, device_arrays, run_case
from gpu.crosscheck.problem import Problem
from gpu.crosscheck.report import CrossReport
from gpu.runtime import Runtime

__all__ = ["LEVELS", "OPS", "Case", "CaseReport", "CrossReport", "cases", "crosscheck", "run_case"]

COMPILERS = 2  # at a time


def crosscheck(
    ops: Iterable[str] = OPS,
    *,
    runtime: str | Runtime = "auto",
    level: str = "quick",
    counted: bool = False,
    progress: Callable[[int, int, str], None] | None = None,
) -> CrossReport:
    """Run the cases of a level by oracle, reference and kernel.

    runtime: "auto", "cupy" or "emulator", or a Runtime.  counted: run the counted build as well, on any runtime.
    progress: called with cases done, cases in all, and what comes next.

    Raises ValueError for an op, level or runtime that doesn't exist.
    """
    where = runtimes.get(runtime) if isinstance(runtime, str) else runtime
    todo = cases(level, tuple(ops))
    begin = time.perf_counter()
    if progress is not None:
        progress(0, len(todo), "compiling kernels")
    compile_all(todo, where)
    reports = []
    for done, case in enumerate(todo):
        if progress is not None:
            progress(done, len(todo), str(case))
        reports.append(run_case(case, where, counted=counted))
    if progress is not None:
        progress(len(todo), len(todo), "")
    device = getattr(where, "device_name", where.name)
    return CrossReport(level, where.name, device, tuple(reports), time.perf_counter() - begin)


def compile_all(todo: Iterable[Case], runtime: Runtime) -> None:
    """Compile every kernel that the cases need, several at a time; failures wait until their cases run."""
    modules: dict[int, Any] = {}
    for case in todo:
        problem = Problem.of(case)
        try:
            prepared = problem.prepare(runtime, device_arrays(runtime, problem.fresh()))
        except Exception:  # reported by its case
            continue
        modules |= {id(launch.module): launch.module for launch in prepared.launches}

    def compile_one(module: Any) -> None:
        try:
            module.compile()
        except Exception:  # reported by its case
            return

    with ThreadPoolExecutor(COMPILERS) as pool:
        list(pool.map(compile_one, modules.values()))
