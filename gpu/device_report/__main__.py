"""`python -m gpu.device_report`: write a report of this machine's GPU to a folder."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gpu.device_report import device_report, draw


def main(words: list[str] | None = None) -> int:
    """0: every correctness case agrees. 1: some don't."""
    parser = argparse.ArgumentParser(prog="python -m gpu.device_report", description=__doc__)
    parser.add_argument("--runtime", default="auto", help="auto, cupy or emulator (a rehearsal, with tiny sizes)")
    parser.add_argument("--level", default="quick", help="level of the cross-check: quick, standard or exhaustive")
    parser.add_argument("--device", default=None, help="the cost model's name of this device, for predictions")
    parser.add_argument("--budget", type=float, default=280.0, help="seconds; what doesn't fit is skipped by name")
    parser.add_argument("--out", type=Path, default=Path("device-report"), help="folder for the JSON, table and chart")
    chosen = parser.parse_args(words)
    report = device_report(
        chosen.runtime,
        level=chosen.level,
        device=chosen.device,
        budget_s=chosen.budget,
        say=lambda what: print(what, file=sys.stderr, flush=True),
    )
    chosen.out.mkdir(parents=True, exist_ok=True)
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
