"""`python -m gpu.gates`: lint the kernels, compile them for every architecture, and print what they take."""

from __future__ import annotations

import argparse
import sys

from gpu import nvrtc
from gpu.gates.lint import lint_folder
from gpu.gates.nvrtc import ARCHITECTURES, DTYPES, GateRow, gate, jobs
from gpu.ops.modules import KERNELS


def table(rows: list[GateRow]) -> str:
    """A Markdown table, a line a kernel, type and architecture."""
    lines = [
        "| kernel | type | arch | rows | registers | spilled B | shared B | blocks an SM | limited by |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if row.error is not None:
            lines.append(f"| {row.kernel} | {row.dtype} | {row.architecture} | does not compile |||||| ")
            continue
        shared = row.static_shared_nbytes + row.dynamic_shared_nbytes
        blocks, why = (row.occupancy.blocks, row.occupancy.limited_by) if row.occupancy else ("", "")
        lines.append(
            f"| {row.kernel} | {row.dtype} | {row.architecture} | {row.rows} | {row.registers} | {row.spill_nbytes} | "
            f"{shared:,} | {blocks} | {why} |"
        )
    return "\n".join(lines)


def main(words: list[str] | None = None) -> int:
    """0: no remark, all compiled, nothing spilled. 1: otherwise. 2: the compiler is not installed."""
    parser = argparse.ArgumentParser(
        prog="python -m gpu.gates", description="Lint the kernels, compile them and print what they take."
    )
    for option, known in (("--arch", ARCHITECTURES), ("--dtype", DTYPES)):
        parser.add_argument(option, nargs="+", choices=known, default=list(known), help="some of them (default: all)")
    chosen = parser.parse_args(words)
    remarks = lint_folder(KERNELS)
    for remark in remarks:
        print(remark)
    if not nvrtc.available() or not nvrtc.headers_available():
        print("NVRTC or the headers are missing: pip install nvidia-cuda-nvrtc nvidia-cuda-runtime nvidia-cuda-cccl")
        return 2
    rows = gate(jobs(chosen.arch, chosen.dtype))
    print(table(rows))
    for row in rows:
        if row.error is not None:
            print(f"\n{row.kernel} {row.dtype} {row.architecture}:\n{row.error}")
    bad = [row for row in rows if not row.ok]
    print(f"\n{len(rows)} kernels compiled, {len(bad)} do not compile or spill; {len(remarks)} remarks of the lint")
    return 1 if bad or remarks else 0


if __name__ == "__main__":
    sys.exit(main())
