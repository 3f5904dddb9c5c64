"""`refsim crosscheck`: hold the CUDA kernels against their NumPy twins."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from gpu.crosscheck import CrossReport

CHARTS = (".svg", ".png", ".pdf")


def crosscheck(
    op: Annotated[list[str] | None, typer.Option(help="An op; repeat it for several. [default: all]")] = None,
    runtime: str = typer.Option("auto", help="auto, cupy or emulator; auto is cupy where there is a GPU."),
    device: int = typer.Option(0, help="Number of the GPU, for runtime cupy."),
    level: str = typer.Option("quick", help="quick, standard or exhaustive."),
    counted: bool = typer.Option(
        False, "--counted", help="Also run kernels that count their own bytes. [default on a GPU]"
    ),
    show_bytes: bool = typer.Option(False, "--bytes", help="Print every kernel's bytes, tensor by tensor."),
    json: str | None = typer.Option(None, help="Write the result as JSON to this file; - for standard output."),
    markdown: str | None = typer.Option(None, help="Write the result as a Markdown table to this file."),
    chart: str | None = typer.Option(None, help="Draw the bytes by tensor to this file (.svg, .png, .pdf)."),
) -> None:
    """Check every kernel against the reference: values within derived tolerances, bytes of every tensor exactly.

    Exit code 0: all agree; 1: some don't, and the report says where and how.

    \b
    Example:
        refsim crosscheck --runtime emulator
        refsim crosscheck --op paged --op split_kv_paged --level standard --bytes
        refsim crosscheck --runtime cupy --counted --json crosscheck.json
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from gpu import runtime as runtimes
    from gpu.crosscheck import LEVELS, OPS
    from gpu.crosscheck import crosscheck as run

    if level not in LEVELS:
        raise typer.BadParameter(f"{level!r} is not one of {', '.join(LEVELS)}", param_hint="--level")
    for name in op or ():
        if name not in OPS:
            raise typer.BadParameter(f"{name!r} is not one of {', '.join(OPS)}", param_hint="--op")
    for option, path in (("--json", json if json != "-" else None), ("--markdown", markdown), ("--chart", chart)):
        if path is not None and not Path(path).resolve().parent.is_dir():
            raise typer.BadParameter(f"{path!r}: there is no folder {str(Path(path).parent)!r}", param_hint=option)
    if chart is not None and Path(chart).suffix.lower() not in CHARTS:
        raise typer.BadParameter(f"{chart!r} must end in one of {', '.join(CHARTS)}", param_hint="--chart")
    try:
        where = runtimes.get(runtime)
    except (ValueError, RuntimeError) as error:
        raise typer.BadParameter(str(error), param_hint="--runtime") from None
    if where.name == "cupy":
        import cupy

        cupy.cuda.Device(device).use()
    console = Console(stderr=json == "-")
    with Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), console=console, transient=True
    ) as bar:
        task = bar.add_task("", total=None)
        report = run(
            dict.fromkeys(op or OPS),
            runtime=where,
            level=level,
            counted=counted or where.name == "cupy",
            progress=lambda done, total, next_: bar.update(task, completed=done, total=total, description=next_[:60]),
        )
    show(console, report, show_bytes=show_bytes)
    if json == "-":
        typer.echo(report.to_json())
    elif json is not None:
        Path(json).write_text(report.to_json() + "\n")
    if markdown is not None:
        Path(markdown).write_text(report.to_markdown())
    if chart is not None:
        from gpu.crosscheck.chart import save_chart

        save_chart(report, chart)
    raise typer.Exit(0 if report.ok else 1)


def show(console: Console, report: CrossReport, *, show_bytes: bool = False) -> None:
    """Print a report: a line for each op, every complaint, and bytes where they are wanted."""
    from rich.table import Table

    table = Table("op", "cases", "failed", "error", "of tolerance", "bytes", "", "s", box=None)
    for column in table.columns:
        column.no_wrap = True
    for column in table.columns[1:]:
        column.justify = "right"
    for row in report.summary():
        table.add_row(
            row["op"],
            f"{row['cases']}",
            f"{row['failed']}",
            f"{row['largest_error']:.2e}",
            f"{row['error_in_tolerances']:.2f}",
            f"{row['nbytes']:,}",
            "equal" if row["bytes_equal"] else "DIFFER",
            f"{row['seconds']:.1f}",
        )
    console.print(table)
    if show_bytes:
        for op, _ in report.by_op():
            print_whole(console, bytes_table(report, op))
    for case in report.cases:
        if not case.ok:
            console.print(f"[bold]{case.case}[/bold]", highlight=False)
            for line in case.complaints():
                console.print(f"    {line}", highlight=False, markup=False)
    verdict = "all agree" if report.ok else f"{sum(not case.ok for case in report.cases)} cases do not agree"
    console.print(
        f"{len(report.cases)} cases at level {report.level} on {report.device} in {report.seconds:.0f} s: {verdict}"
    )


def print_whole(console: Console, table: Table) -> None:
    """Print a table with all of its digits, even where the terminal is narrower and breaks the lines."""
    table.width = console.measure(table, options=console.options.update(max_width=1000)).maximum
    console.print(table, crop=False, soft_wrap=True)


def bytes_table(report: CrossReport, op: str) -> Table:
    """Bytes of an op's kernels: who counts what, and how well the accesses use memory."""
    from rich.table import Table

    table = Table(
        *("kernel", "tensor", "", "closed form", "reference", "kernel", "own count", "unique", "sectors", "useful"),
        title=op,
        box=None,
    )
    for column in table.columns:
        column.no_wrap = True
    for column in table.columns[3:]:
        column.justify = "right"

    def number(n: int | None) -> str:
        return "" if n is None else f"{n:,}"

    for row in report.bytes_of(op):
        counts = (row.closed_form, row.reference, row.emulated, row.counted, row.unique, row.sectors)
        share = "" if row.useful is None else f"{row.useful:.0%}"
        table.add_row(row.kernel, row.tensor, row.direction, *map(number, counts), share)
    return table
