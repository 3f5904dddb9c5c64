"""`import refsim` costs nothing and gives everything."""

import doctest
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import refsim


def modules_after(code: str) -> set[str]:
    """Top-level modules that a fresh interpreter holds after running `code`."""
    report = f"{code}\nimport json, sys\nprint(json.dumps(sorted({{name.split('.')[0] for name in sys.modules}})))"
    run = subprocess.run([sys.executable, "-c", report], capture_output=True, text=True, check=True)
    return set(json.loads(run.stdout))


def test_import_adds_only_itself() -> None:
    added = modules_after("import refsim") - modules_after("") - sys.stdlib_module_names
    assert added == {"refsim"}


@pytest.mark.parametrize("part", ["attention", "oracle", "softmax", "kvcache", "model", "mistakes"])
def test_no_part_imports_figures_or_a_gpu(part: str) -> None:
    held = modules_after(f"import refsim; refsim.{part}")
    assert "numpy" in held
    assert not held & {"matplotlib", "cupy", "gpu", "rich", "typer", "torch", "jaxtyping"}


def test_charts_import_matplotlib_only_to_draw() -> None:
    assert "matplotlib" not in modules_after("import refsim; refsim.charts")


@pytest.mark.parametrize("name", refsim.__all__)
def test_every_name_opens(name: str) -> None:
    assert getattr(refsim, name) is not None
    assert name in dir(refsim)


def test_names_are_the_things_themselves() -> None:
    from refsim.kvcache import BlockManager
    from refsim.machine import Machine

    assert refsim.Machine is Machine
    assert refsim.BlockManager is BlockManager


def test_an_unknown_name_says_what_there_is() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'atention'; it has .*attention"):
        refsim.atention  # noqa: B018


def test_the_readme_example_runs() -> None:
    """The README's example, numbers and all."""
    readme = Path(__file__).resolve().parents[2] / "README.md"
    failed, attempted = doctest.testfile(str(readme), module_relative=False)
    assert attempted > 8
    assert failed == 0


def test_the_readme_shows_what_is_there() -> None:
    """Links and pictures point to files, and the table's folders exist."""
    root = Path(__file__).resolve().parents[2]
    readme = (root / "README.md").read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#]+)\)", readme)
    folders = [
        path for row in re.findall(r"^\| (`.*?) \|", readme, re.MULTILINE) for path in re.findall(r"`(.*?)`", row)
    ]
    assert len(targets) >= 5
    assert len(folders) >= 10
    assert [path for path in targets + folders if not (root / path).exists()] == []
