"""`refsim tour`: the tour in the terminal, and its report."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated

import typer


def tour(
    weights: Annotated[Path | None, typer.Option(help="llama2.c .bin, glassllm .npz, or a model's folder.")] = None,
    prompt: Annotated[str | None, typer.Option(help="What the model continues. [default: one for its weights]")] = None,
    tokens: Annotated[int, typer.Option(help="New tokens to write.")] = 40,
    block_size: Annotated[int, typer.Option(help="Tokens a block of the paged cache.")] = 8,
    device: Annotated[str, typer.Option(help="Whose times to estimate. See: refsim devices.")] = "A100-80",
    out: Annotated[Path, typer.Option(help="Folder for the pictures and the report.")] = Path("refsim-tour"),
) -> None:
    """See a real language model write text through a paged KV cache, each algorithm agreeing, every byte counted.

    Takes some ten seconds on two CPU cores and needs no GPU. Ends with pictures and a report that opens in a browser.

    \b
    Example:
        refsim tour
        refsim tour --prompt "Why is a raven like" --tokens 60 --block-size 4 --out my-tour
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from refsim.cli_devices import find_device
    from refsim.tour import chapters, prepare, show, write_report
    from refsim.tour.agreement import Disagreement
    from refsim.tour.guide import STOPS

    gpu = find_device(device)
    setting = prepare(weights, prompt, tokens, block_size)
    make_folder(out)
    console = Console()
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=STOPS)

        def tell(doing: str) -> None:
            progress.update(task, advance=1, description=doing)

        told = []
        try:
            for chapter in chapters(setting, gpu, tell):
                show(console, chapter)
                told.append(chapter)
        except Disagreement as fault:
            typer.echo(f"refsim: {fault}", err=True)
            raise typer.Exit(1) from fault
    page = write_report(out, "A tour of refsim", told)
    console.print()
    console.print(f"All algorithms agree on the text. Report and pictures: {page}", highlight=False, soft_wrap=True)


def make_folder(out: Path) -> None:
    """Make the report's folder, and see that it can be written to before anything is computed.

    Raises ValueError when it can't.
    """
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {out} is a file; name a folder")
    try:
        out.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=out).close()
    except OSError as error:
        raise ValueError(f"--out {out} can't be written to ({error.strerror}); name another folder") from None
