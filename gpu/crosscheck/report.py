"""What a cross-check found, as text, as JSON, as rows."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Any

from gpu.crosscheck.judge import CaseReport
from gpu.crosscheck.traffic import Bytes, add_up


@dataclass(frozen=True)
class CrossReport:
    """All cases of a cross-check."""

    level: str
    runtime: str
    device: str
    cases: tuple[CaseReport, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        """Every case agrees, in values and in bytes."""
        return all(case.ok for case in self.cases)

    def by_op(self) -> list[tuple[str, list[CaseReport]]]:
        """The cases of each op."""
        names = dict.fromkeys(report.case.op for report in self.cases)
        return [(name, [report for report in self.cases if report.case.op == name]) for name in names]

    def summary(self) -> list[dict[str, Any]]:
        """A row for each op: cases, failures, largest error, that in units of its tolerance, bytes."""
        rows = []
        for op, reports in self.by_op():
            errors = [error for report in reports for error in report.errors]
            rows.append(
                {
                    "op": op,
                    "cases": len(reports),
                    "failed": sum(not report.ok for report in reports),
                    "largest_error": max((error.largest for error in errors), default=0.0),
                    "error_in_tolerances": max((error.units for error in errors), default=0.0),
                    "bytes_equal": all(report.bytes_agree for report in reports),
                    "nbytes": sum(row.reference for report in reports for row in report.bytes),
                    "seconds": sum(report.seconds for report in reports),
                }
            )
        return rows

    def bytes_of(self, op: str) -> list[Bytes]:
        """Bytes of an op over all its cases, a row for each kernel, tensor and direction."""
        return add_up(row for report in self.cases if report.case.op == op for row in report.bytes)

    def to_json(self) -> str:
        """For tools."""
        return json.dumps(
            {
                "ok": self.ok,
                "level": self.level,
                "runtime": self.runtime,
                "device": self.device,
                "seconds": round(self.seconds, 3),
                "ops": [
                    finite(row) | {"bytes": [asdict(b) for b in self.bytes_of(row["op"])]} for row in self.summary()
                ],
                "failures": [
                    {"case": str(report.case), "complaints": report.complaints()}
                    for report in self.cases
                    if not report.ok
                ],
            },
            indent=2,
            allow_nan=False,
        )

    def to_markdown(self) -> str:
        """For docs/results: a line for each op, then every kernel's bytes, tensor by tensor."""
        lines = [
            f"{len(self.cases)} cases at level {self.level} on {self.device}.",
            "",
            "| op | cases | failed | largest error | in tolerances | bytes |",
            "|---|---|---|---|---|---|",
        ]
        for row in self.summary():
            lines.append(
                f"| {row['op']} | {row['cases']} | {row['failed']} | {row['largest_error']:.2e} | "
                f"{row['error_in_tolerances']:.2f} | {row['nbytes']:,} {'equal' if row['bytes_equal'] else 'DIFFER'} |"
            )
        for op, _ in self.by_op():
            lines += [
                "",
                f"## {op}",
                "",
                "| kernel | tensor | | closed form | reference | kernel | own count | useful |",
            ]
            lines.append("|---|---|---|---|---|---|---|---|")
            for b in self.bytes_of(op):
                counts = (b.closed_form, b.reference, b.emulated, b.counted)
                numbers = " | ".join("" if n is None else f"{n:,}" for n in counts)
                useful = "" if b.useful is None else f"{b.useful:.0%}"
                lines.append(f"| {b.kernel} | {b.tensor} | {b.direction} | {numbers} | {useful} |")
        return "\n".join(lines) + "\n"


def finite(row: dict[str, Any]) -> dict[str, Any]:
    """The row with None for errors that no number tells, as of an answer that is NaN: JSON has no infinity.

    >>> finite({"op": "flash", "largest_error": float("inf")})
    {'op': 'flash', 'largest_error': None}
    """
    return {key: None if isinstance(x, float) and not math.isfinite(x) else x for key, x in row.items()}
