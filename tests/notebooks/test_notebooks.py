"""Every notebook runs from its source, and every .ipynb is the source that it says it is, with its outputs."""

import importlib.util
import json
import platform
import shutil
from pathlib import Path

import pytest

jupytext = pytest.importorskip("jupytext")
nbclient = pytest.importorskip("nbclient")

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
spec = importlib.util.spec_from_file_location("build_notebooks", NOTEBOOKS / "build.py")
build = importlib.util.module_from_spec(spec)
spec.loader.exec_module(build)

# Jupyter's libraries warn of their own future on newer Pythons; what a notebook's code does is not concerned.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

every_notebook = pytest.mark.parametrize("source", build.sources(), ids=lambda path: path.stem)


@every_notebook
def test_it_runs_from_its_source_and_its_pair_shows_what_it_gives(source, monkeypatch):
    # Another processor rounds sums otherwise, and a notebook's text must not show it: take the kernels of an old one.
    if platform.machine() == "x86_64":
        monkeypatch.setenv("OPENBLAS_CORETYPE", "Prescott")
    assert build.difference(source) is None, "run: python notebooks/build.py"
    notebook = build.run(build.read_source(source))
    assert all(cell.execution_count for cell in notebook.cells if cell.cell_type == "code" and cell.source)
    assert build.stale_output(source, notebook) is None, "run: python notebooks/build.py"


@every_notebook
def test_its_pair_was_run_to_the_end_and_stays_small(source):
    pair = source.with_suffix(".ipynb")
    cells = json.loads(pair.read_text())["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    assert all(cell["execution_count"] for cell in cells if cell["cell_type"] == "code")
    assert not [output for output in outputs if output["output_type"] in ("error", "stream")]
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 2, "a notebook shows what it says"
    assert pair.stat().st_size < 600_000
    assert str(NOTEBOOKS.parent) not in pair.read_text(), "an output names a path of the machine it was built on"


@every_notebook
def test_it_has_one_exercise_that_predicts_before_it_runs(source):
    cells = [cell.source for cell in build.read_source(source).cells]
    assert sum("## Predict, then run" in cell for cell in cells) == 1
    asked = cells.index("prediction = None")
    assert any("verdict(prediction, outcome)" in cell for cell in cells[asked + 1 :])


def test_an_error_in_a_cell_is_an_error():
    notebook = jupytext.reads("# %%\nassert 1 + 1 == 3\n", fmt="py:percent")
    with pytest.raises(nbclient.exceptions.CellExecutionError, match="assert 1 \\+ 1 == 3"):
        build.run(notebook)


def test_a_pair_that_shows_an_older_output_is_found():
    source = build.sources()[0]
    executed = build.jupytext.read(source.with_suffix(".ipynb"))  # what the pair shows, taken as what it gives
    assert build.stale_output(source, executed) is None
    shown = [cell for cell in executed.cells if cell.get("outputs")]
    shown[-1].outputs[0].data["text/markdown"] = "another answer"
    assert "another answer" in build.stale_output(source, executed)


def test_pairs_out_of_step_are_found(tmp_path):
    first = build.sources()[0]
    copy = tmp_path / first.name
    assert build.difference(shutil.copy(first, copy)) == f"{first.stem}.ipynb is missing"
    shutil.copy(first.with_suffix(".ipynb"), tmp_path)
    assert build.difference(copy) is None
    text = copy.read_text()
    copy.write_text(text.replace("B, num_kv_heads", "B , num_kv_heads", 1))
    assert "is not that of" in build.difference(copy)
    copy.write_text(text.replace("# # 1. Block tables", "# # 1. Tables", 1))
    assert "cell 0 of" in build.difference(copy)
    copy.write_text(text + "\n# %%\n1 + 1\n")
    assert "cells and" in build.difference(copy)
