"""Time two things in one run, turn by turn, and print how they compare. Nothing is asserted: machines are noisy."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def best_of_each(rounds: int, *functions: Callable[[], Any]) -> list[float]:
    """The shortest of `rounds` timings of each function, in seconds, taken in turns after one warm-up each."""
    for function in functions:
        function()
    best = [float("inf")] * len(functions)
    for _ in range(rounds):
        for i, function in enumerate(functions):
            start = time.perf_counter()
            function()
            best[i] = min(best[i], time.perf_counter() - start)
    return best


def report(what: str, seconds: float, against: str, base: float, target: str) -> None:
    """One line: `what` takes so many times as long as `against`."""
    print(f"\n{what}: {seconds:.4f} s, {against}: {base:.4f} s, ratio {seconds / base:.2f} (aim: {target})")
