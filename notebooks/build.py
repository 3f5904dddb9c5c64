"""Build the notebooks: each NN_name.py (percent format) is the source, and NN_name.ipynb is it with its outputs.

python notebooks/build.py            run every notebook and write its .ipynb
python notebooks/build.py 02         only those whose name begins so
python notebooks/build.py --check    run nothing; fail when an .ipynb and its source say different things
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import jupytext
from nbclient import NotebookClient

HERE = Path(__file__).resolve().parent
WIDGET = "application/vnd.jupyter.widget-view+json"
STILL = "*Run this notebook to play the frames; the film strip shows them all.*"


def sources() -> list[Path]:
    """The notebooks' sources, in order."""
    return sorted(HERE.glob("[0-9]*.py"))


def read_source(source: Path) -> Any:
    """The notebook that a source describes, without outputs; cells are numbered so that their ids stay the same."""
    notebook = jupytext.read(source)
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number:02}"
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return notebook


def run(notebook: Any) -> Any:
    """Execute every cell, in an empty folder and in this Python; the first error ends it. Widgets become a line."""
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook,
            timeout=300,
            kernel_name="python3",
            record_timing=False,
            store_widget_state=False,
            resources={"metadata": {"path": folder}},
        )
        client.execute()
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if WIDGET in output.get("data", {}):
                output["data"] = {"text/markdown": STILL, "text/plain": STILL}
    notebook.metadata.pop("widgets", None)
    notebook.metadata["language_info"] = {"name": "python"}
    return notebook


def build(source: Path) -> Path:
    """Run a source and write its .ipynb beside it."""
    notebook = run(read_source(source))
    pair = source.with_suffix(".ipynb")
    jupytext.write(notebook, pair)
    return pair


def difference(source: Path) -> str | None:
    """What is wrong with the pair of a source, or None."""
    pair = source.with_suffix(".ipynb")
    if not pair.exists():
        return f"{pair.name} is missing"
    kept = [(cell.cell_type, cell.source) for cell in jupytext.read(pair).cells]
    said = [(cell.cell_type, cell.source) for cell in read_source(source).cells]
    if len(kept) != len(said):
        return f"{pair.name} has {len(kept)} cells and {source.name} {len(said)}"
    for number, (a, b) in enumerate(zip(kept, said, strict=True)):
        if a != b:
            return f"cell {number} of {pair.name} is not that of {source.name}: {b[1][:60]!r}"
    return None


def stale_output(source: Path, executed: Any) -> str | None:
    """Where the pair of a source shows another text than `executed`, the same source as it runs now; or None.

    Pictures aren't compared: they differ in a pixel from one version of matplotlib to the next. Nor are rounding
    errors, written as 2.4e-07: they differ from one processor to the next.
    """
    pair = source.with_suffix(".ipynb")
    for number, (kept, ran) in enumerate(zip(jupytext.read(pair).cells, executed.cells, strict=True)):
        if _texts(kept) != _texts(ran):
            return f"cell {number} of {pair.name} shows {_texts(kept)!r}, and gives {_texts(ran)!r} now"
    return None


def _texts(cell: Any) -> list[str]:
    """What a cell's outputs say."""
    shown = [output.get("data", {}) for output in cell.get("outputs", [])]
    texts = [data.get("text/markdown", data.get("text/plain", "")) for data in shown]
    return [re.sub(r"\d(\.\d+)?e-\d+", "(small)", text) for text in texts]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="build only notebooks whose name begins with one of these")
    parser.add_argument("--check", action="store_true", help="run nothing, compare sources with notebooks")
    options = parser.parse_args()
    chosen = [s for s in sources() if not options.names or s.name.startswith(tuple(options.names))]
    if not chosen:
        sys.exit(
            f"no notebook begins with {', '.join(options.names)}; there are {', '.join(s.stem for s in sources())}"
        )
    if options.check:
        wrong = [w for s in chosen if (w := difference(s)) is not None]
        sys.exit("\n".join([*wrong, "Run: python notebooks/build.py"]) if wrong else 0)
    for source in chosen:
        pair = build(source)
        print(f"{pair.name}: {pair.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
