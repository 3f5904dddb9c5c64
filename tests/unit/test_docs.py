"""The docs' examples run, their links lead somewhere, and the house stands as docs/house.md says."""

import ast
import doctest
import fnmatch
import pydoc
import re
from pathlib import Path

import pytest

from refsim import cli

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

every_page = pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))


@every_page
def test_its_examples_run(path):
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    assert doctest.testfile(str(path), module_relative=False, optionflags=flags).failed == 0
    programs = re.findall(r"^```python\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)
    for program in [text for text in programs if not text.startswith(">>>")]:
        exec(compile(program, str(path), "exec"), {})


@every_page
def test_its_links_and_the_files_it_names_exist(path):
    text = path.read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text) if "://" not in link]
    assert [link for link in links if not (path.parent / link).exists()] == []
    folders = "refsim|gpu|notebooks|tests|docs|attention|kvcache|model"
    named = re.findall(rf"`(?:pytest |python )?((?:{folders})/[\w./-]+)[` ]", text)
    assert [name for name in named if not any((top / name).exists() for top in (ROOT, ROOT / "refsim"))] == []


@every_page
def test_what_it_names_of_the_code_is_there(path):
    names = re.findall(r"`((?:refsim|gpu)\.[\w.]*\w)", path.read_text())
    assert [name for name in names if pydoc.locate(name) is None] == []


@every_page
def test_the_commands_it_shows_are_there_with_their_options(path, capsys):
    shown = re.findall(r"(?:^|`|    |&& )refsim ([a-z]+)((?: [^`#\n]*)?)", path.read_text(), re.MULTILINE)
    for command, words in shown:
        assert cli.main([command, "--help"]) == 0, f"refsim {command}"
        text = capsys.readouterr().out
        known = set(re.findall(r"--[a-z][\w-]*", text.split("Options:")[1]))
        assert set(re.findall(r"--[a-z][\w-]*", words)) <= known, f"refsim {command}{words}"


def test_every_document_is_in_the_index():
    index = (ROOT / "docs" / "README.md").read_text()
    assert [path.name for path in (ROOT / "docs").glob("*.md") if f"({path.name})" not in index] == ["README.md"]


# The house


def floors():
    """{room pattern: floor} from the table in docs/house.md."""
    rows = re.findall(r"^\| (\d) \| ([^|]+) \|", (ROOT / "docs" / "house.md").read_text(), re.MULTILINE)
    return {room: int(floor) for floor, rooms in rows for room in re.findall(r"`([^`]+)`", rooms)}


def floor_of(file):
    """The floor of a file, given as a path from the root."""
    for room, floor in floors().items():
        if file.startswith(room) if room.endswith("/") else fnmatch.fnmatch(file, room):
            return floor
    return None


def file_of(module):
    """The file of a module of this project, as a path from the root; None for a name that is no module."""
    path = ROOT / module.replace(".", "/")
    found = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return str(found.relative_to(ROOT)) if found.exists() else None


def imports(file):
    """Files of this project that a file imports, at the top or later."""
    for node in ast.walk(ast.parse((ROOT / file).read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            # `from refsim import softmax` names a module; `from refsim.machine import Tile` doesn't.
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if file_of(name) else node.module for name in inner]
        for name in names:
            if name.split(".")[0] in ("refsim", "gpu") and file_of(name):
                yield file_of(name)


FILES = sorted(str(p.relative_to(ROOT)) for top in ("refsim", "gpu") for p in (ROOT / top).rglob("*.py"))


def test_every_file_has_a_floor():
    assert len(floors()) > 10
    homeless = sorted({"/".join(file.split("/")[:2]) for file in FILES if floor_of(file) is None})
    assert homeless == [], "say in docs/house.md on which floor these live"


@pytest.mark.parametrize("file", FILES)
def test_it_imports_from_its_own_floor_or_below(file):
    above = [other for other in imports(file) if floor_of(other) > floor_of(file)]
    assert above == [], f"{file} is on floor {floor_of(file)}"


def test_refsim_stands_without_gpu():
    upward = [f for f in FILES if f.startswith("refsim/") for other in imports(f) if other.startswith("gpu/")]
    assert [file for file in upward if not file.startswith("refsim/cli")] == []
