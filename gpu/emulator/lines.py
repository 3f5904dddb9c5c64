"""From an address in a compiled kernel to the line of its text."""

from __future__ import annotations

import bisect
import functools
import os
from pathlib import Path

from gpu.emulator.dwarf import inlined, line_programs
from gpu.emulator.elf import Elf

KERNEL = "kernel.cu"


class Lines:
    """The line table of one shared object. Code inlined from a header counts at the line of the text that used it."""

    def __init__(self, elf: Elf) -> None:
        rows, files_at = [], {}
        for at, header, table in line_programs(elf):
            rows += table
            files_at[at] = header.files
        rows.sort(key=lambda r: (r.address, r.line == 0))
        self.rows, self.addresses = rows, [r.address for r in rows]
        self.inlined = list(inlined(elf, files_at))
        self.known: dict[int, tuple[tuple[str, int], ...]] = {}

    def find(self, offset: int) -> int:
        """The line of the text for an address from the load address; 0 where there is none.

        Of the places that an address belongs to, the innermost that lies in the text itself: a line inside one of
        its device functions, but outside of headers.
        """
        return next((line for file, line in self.chain(offset) if file == KERNEL), 0)

    def chain(self, offset: int) -> tuple[tuple[str, int], ...]:
        """File (its last name) and line of an address, then of the call that was inlined there, and so on outwards."""
        if offset not in self.known:
            self.known[offset] = self._chain(offset)
        return self.known[offset]

    def _chain(self, offset: int) -> tuple[tuple[str, int], ...]:
        i = bisect.bisect_right(self.addresses, offset) - 1
        places = [(self.rows[i].file, self.rows[i].line)] if i >= 0 else []
        chain = sorted((s for s in self.inlined if s.low <= offset < s.high), key=lambda s: -s.depth)
        places += [(s.call_file, s.call_line) for s in chain]
        return tuple((os.path.basename(file), line) for file, line in places if line)


@functools.cache
def lines_of(path: Path) -> Lines:
    """The line table of a compiled module."""
    return Lines(Elf(path))
