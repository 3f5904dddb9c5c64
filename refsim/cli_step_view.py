"""How a step looks in the terminal."""

from __future__ import annotations

import linecache
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from refsim import attention
from refsim.cli_table import print_table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from refsim.machine import Ledger, Step

LINES_SHOWN = 9


def show_step(console: Console, number: int, step: Step) -> None:
    """Where the step is, the lines that did it, the state before and after, and what it added to the ledger."""
    from rich.syntax import Syntax

    at = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in step.index.items())
    console.rule(f"step {number}: [bold]{step.name}[/bold], in kernel {step.kernel}")
    console.print(f"[dim]{step.line}[/dim]  {at}", highlight=False)
    first, code = source_of(step)
    if code:
        console.print(
            Syntax(
                code,
                "python",
                line_numbers=True,
                start_line=first,
                theme="ansi_dark",
                background_color="default",
                word_wrap=True,
            )
        )
    if step.after:
        console.print(state_table(step))
    print_table(console, ("through HBM", "read, B", "written, B"), delta_rows(step.delta), "lrr")
    console.print(work_line(step.delta), highlight=False)
    console.print()


def source_of(step: Step) -> tuple[int, str]:
    """The lines that did it, ending above the step's own `yield`, and the number of the first; "" if not found."""
    name, _, line = step.line.rpartition(":")
    path, stop = Path(attention.__file__).parent / name, int(line)
    lines = [linecache.getline(str(path), at).rstrip() for at in range(1, stop)]
    first = stop
    while first > 1 and stop - first < LINES_SHOWN:
        if lines[first - 2].strip().startswith(("yield watch", "def ", ") ->", '"""')):
            break
        first -= 1
    return first, textwrap.dedent("\n".join(lines[first - 1 :]))


def state_table(step: Step) -> Table:
    """Each part of the state, in the first program: its shape, before and after."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column in ("state", "shape", "before", "after"):
        table.add_column(column, no_wrap=column not in ("before", "after"))
    for name, after in step.after.items():
        shape = " x ".join(map(str, after.shape[2:]))
        before = show_array(step.before[name]) if name in step.before else "not there yet"
        table.add_row(name, shape, before, show_array(after))
    return table


def show_array(array: np.ndarray) -> str:
    """The first program's part of an array with the grid's two axes in front, three digits a number.

    >>> show_array(np.array([[[1.0, -np.inf]]]))
    '[1.000  -inf]'
    """
    first = array.reshape(-1, *array.shape[2:])[0]
    return np.array2string(
        first.astype(np.float64),
        formatter={"float_kind": lambda x: f"{x:.3f}" if np.isfinite(x) else f"{x:5}"},
        threshold=48,
        edgeitems=2,
        max_line_width=60,
    )


def delta_rows(delta: Ledger) -> list[tuple[str, str, str]]:
    """What a step added to the ledger: HBM bytes read and written, by tensor.

    >>> from refsim.machine import Key, Ledger
    >>> delta_rows(Ledger({Key("flash", "k", "HBM", "read"): 4096}))
    [('k', '4,096', '0')]
    """
    moved: dict[str, dict[str, int]] = {}
    for (_, tensor, direction), nbytes in sorted(delta.hbm_only().items()):
        moved.setdefault(tensor, {})[direction] = nbytes
    rows = [(tensor, f"{by.get('read', 0):,}", f"{by.get('write', 0):,}") for tensor, by in moved.items()]
    return rows or [("nothing", "0", "0")]


def work_line(delta: Ledger) -> str:
    """What a step added beside HBM bytes: on-chip operand bytes, arithmetic, programs begun.

    >>> from refsim.machine import Ledger, Work
    >>> work_line(Ledger(work={"flash": Work(matmul_flops=2048, programs=2)}))
    'on chip 0 B · matmul FLOPs 2,048 · other FLOPs 0 · exponentials 0 · programs begun 2'
    """
    return (
        f"on chip {delta.sram_nbytes:,} B · matmul FLOPs {delta.matmul_flops:,} · other FLOPs {delta.flops:,} · "
        f"exponentials {delta.exponentials:,} · programs begun {delta.programs:,}"
    )
