"""`python -m gpu.device_report`: write a report of this machine's GPU to a folder."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gpu import runtime as runtimes
from gpu.crosscheck import LEVELS
from gpu.device_report import device_report, draw
from refsim.cost import devices


def main(words: list[str] | None = None) -> int:
    """0: every correctness case agrees. 1: some don't."""
    parser = argparse.ArgumentParser(
        prog="python -m gpu.device_report",
        description="Check every kernel on this machine's GPU, time it beside a copy, beside what a user would pick "
        "instead and beside the cost model, and write report.json, report.md and predicted-measured.svg to a folder. "
        "Under 5 minutes; nothing is downloaded; what is skipped is named.",
        epilog="example: python -m gpu.device_report --out docs/results/h200",
    )
    parser.add_argument("--runtime", default="auto", help="auto, cupy or emulator (a rehearsal, with tiny sizes)")
    parser.add_argument("--level", default="quick", choices=LEVELS, help="of the cross-check (default: quick)")
    parser.add_argument("--device", default=None, help="the cost model's name of this device, for predictions")
    parser.add_argument("--budget", type=float, default=280.0, help="seconds; what doesn't fit is skipped by name")
    parser.add_argument("--out", type=Path, default=Path("device-report"), help="folder for the JSON, table and chart")
    chosen = parser.parse_args(words)
    try:  # what would fail at the end had better fail now
        runtimes.get(chosen.runtime)
        if chosen.device is not None:
            devices.get(chosen.device)
        chosen.out.mkdir(parents=True, exist_ok=True)
    except (ValueError, LookupError, RuntimeError, OSError) as error:
        parser.error(str(error))
    report = device_report(
        chosen.runtime,
        level=chosen.level,
        device=chosen.device,
        budget_s=chosen.budget,
        say=lambda what: print(what, file=sys.stderr, flush=True),
    )
    (chosen.out / "report.json").write_text(report.to_json() + "\n")
    (chosen.out / "report.md").write_text(report.to_markdown())
    try:
        import matplotlib

        matplotlib.use("Agg")
        draw(report).figure.savefig(chosen.out / "predicted-measured.svg")
    except ImportError as error:
        print(f"no chart: {error}", file=sys.stderr)
    print(report.to_markdown())
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
