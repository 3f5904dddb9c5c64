"""The examples in docs/models.md run as they are written."""

import doctest
from pathlib import Path


def test_the_examples_run():
    path = Path(__file__).resolve().parents[2] / "docs" / "models.md"
    found = doctest.testfile(str(path), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert found.attempted > 10
    assert found.failed == 0
