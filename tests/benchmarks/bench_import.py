"""What `import refsim` adds to `import numpy`. Run: `python tests/benchmarks/bench_import.py`.

Each is timed in fresh interpreters, in turn; the medians are compared. Aim: less than 0.15 s more.
"""

from __future__ import annotations

import statistics
import subprocess
import sys

ROUNDS = 9
CLOCK = "import time; start = time.perf_counter(); import {}; print(time.perf_counter() - start)"


def seconds(modules: str) -> float:
    """The time of one import in a fresh interpreter."""
    run = subprocess.run([sys.executable, "-c", CLOCK.format(modules)], capture_output=True, text=True, check=True)
    return float(run.stdout)


def main() -> None:
    """Print both medians, what refsim adds, and the ratio."""
    pairs = [(seconds("numpy"), seconds("numpy, refsim")) for _ in range(ROUNDS)]
    numpy, both = (statistics.median(times) for times in zip(*pairs, strict=True))
    print(f"import numpy {numpy:.3f} s, with refsim {both:.3f} s: {both - numpy:+.4f} s, {both / numpy:.2f} times")


if __name__ == "__main__":
    main()
