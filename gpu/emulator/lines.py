"""From an address in a compiled kernel to the line of its text (placeholder until the tables are read)."""

from __future__ import annotations

import functools
from pathlib import Path


class Lines:
    def find(self, offset: int) -> int:
        return 0


@functools.cache
def lines_of(path: Path) -> Lines:
    return Lines()
