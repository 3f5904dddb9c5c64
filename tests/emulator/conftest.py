"""Kernel texts for the emulator's tests, and where to find them."""

from pathlib import Path

import pytest

TEXTS = Path(__file__).parent / "texts"


@pytest.fixture(scope="session")
def text():
    """The text of a kernel file by name."""

    def read(name: str) -> str:
        return (TEXTS / f"{name}.cu").read_text()

    return read


def line_of(code: str, mark: str) -> int:
    """The line on which a mark stands."""
    lines = [i for i, line in enumerate(code.splitlines(), 1) if mark in line]
    assert len(lines) == 1, f"{mark!r} must stand on one line, not on {lines}"
    return lines[0]


@pytest.fixture(scope="session")
def find_line():
    return line_of
