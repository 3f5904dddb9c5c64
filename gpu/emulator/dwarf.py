"""Reading DWARF 4, the debug information that GCC and Clang write: the line table, and which code was inlined where.

Only what is needed to name a line: no types, no variables. The format is that of the document "DWARF Debugging
Information Format, version 4".
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from gpu.emulator.elf import Elf

TAG_INLINED = 0x1D
AT_LOW_PC, AT_HIGH_PC, AT_RANGES, AT_CALL_FILE, AT_CALL_LINE, AT_STMT_LIST = 0x11, 0x12, 0x55, 0x58, 0x59, 0x10
FORM_ADDR = 0x01
FIXED_NBYTES = {0x01: 8, 0x05: 2, 0x06: 4, 0x07: 8, 0x0B: 1, 0x0C: 1, 0x0E: 4, 0x10: 4, 0x11: 1, 0x12: 2, 0x13: 4}
FIXED_NBYTES |= {0x14: 8, 0x17: 4, 0x19: 0, 0x20: 8}


class Cursor:
    """A place in a section that moves on as it is read."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data, self.at = data, at

    def fixed(self, nbytes: int) -> int:
        self.at += nbytes
        return int.from_bytes(self.data[self.at - nbytes : self.at], "little")

    def uleb(self) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def sleb(self) -> int:
        begin = self.at
        value = self.uleb()
        bits = 7 * (self.at - begin)
        return value - (1 << bits) if value >> (bits - 1) & 1 else value

    def string(self) -> str:
        end = self.data.index(b"\0", self.at)
        text = self.data[self.at : end].decode(errors="replace")
        self.at = end + 1
        return text


@dataclass(frozen=True)
class LineRow:
    """From this address on, the code belongs to this line (line 0: to none)."""

    address: int
    file: str
    line: int


@dataclass(frozen=True)
class Inlined:
    """A stretch of code that was inlined, and from where; `depth` counts inlining within inlining."""

    low: int
    high: int
    depth: int
    call_file: str
    call_line: int


@dataclass(frozen=True)
class LineHeader:
    """What a line program needs to know before it runs."""

    min_step: int
    line_base: int
    line_range: int
    opcode_base: int
    lengths: tuple[int, ...]
    files: tuple[str, ...]


def line_programs(elf: Elf) -> Iterator[tuple[int, LineHeader, list[LineRow]]]:
    """For each compiled unit: where its table starts, its header, and its rows."""
    c = Cursor(elf.section(".debug_line"))
    while c.at < len(c.data):
        begin = c.at
        end = c.fixed(4) + begin + 4
        version = c.fixed(2)
        if version in (2, 3, 4):
            program = c.fixed(4) + begin + 10
            header = _read_header(c, version)
            c.at = program
            yield begin, header, _run(c, end, header)
        c.at = end


def _read_header(c: Cursor, version: int) -> LineHeader:
    min_step = c.fixed(1)
    c.fixed(2 if version == 4 else 1)
    line_base = struct.unpack("b", bytes([c.fixed(1)]))[0]
    line_range, opcode_base = c.fixed(1), c.fixed(1)
    lengths = tuple(c.fixed(1) for _ in range(opcode_base - 1))
    while c.string():
        pass
    files = [""]
    while name := c.string():
        files.append(name)
        for _ in range(3):
            c.uleb()
    return LineHeader(min_step, line_base, line_range, opcode_base, lengths, tuple(files))


def _run(c: Cursor, end: int, h: LineHeader) -> list[LineRow]:
    """The line program: a small machine whose output is the table."""
    rows: list[LineRow] = []
    address, file, line = 0, 1, 1
    while c.at < end:
        code = c.fixed(1)
        if code >= h.opcode_base:
            address += (code - h.opcode_base) // h.line_range * h.min_step
            line += h.line_base + (code - h.opcode_base) % h.line_range
        elif code == 0:
            length = c.uleb()
            after, extended = c.at + length, c.fixed(1)
            if extended == 1:
                rows.append(LineRow(address, "", 0))
                address, file, line = 0, 1, 1
            elif extended == 2:
                address = c.fixed(8)
            c.at = after
        elif code == 2:
            address += c.uleb() * h.min_step
        elif code == 3:
            line += c.sleb()
        elif code == 4:
            file = c.uleb()
        elif code == 8:
            address += (255 - h.opcode_base) // h.line_range * h.min_step
        elif code == 9:
            address += c.fixed(2)
        elif code != 1:
            for _ in range(h.lengths[code - 1]):
                c.uleb()
        if code >= h.opcode_base or code == 1:
            rows.append(LineRow(address, h.files[file], line))
    return rows


Abbreviations = dict[int, tuple[int, bool, list[tuple[int, int]]]]


def _abbreviations(data: bytes, at: int) -> Abbreviations:
    c, table = Cursor(data, at), {}
    while code := c.uleb():
        tag, children, attributes = c.uleb(), bool(c.fixed(1)), []
        while (pair := (c.uleb(), c.uleb())) != (0, 0):
            attributes.append(pair)
        table[code] = (tag, children, attributes)
    return table


def _value(c: Cursor, form: int) -> int:
    """Read an attribute; only those that are numbers come back as themselves."""
    if form in FIXED_NBYTES:
        return c.fixed(FIXED_NBYTES[form])
    if form == 0x08:
        c.string()
    elif form in (0x0F, 0x15):
        return c.uleb()
    elif form == 0x0D:
        return c.sleb()
    elif form in (0x03, 0x04, 0x09, 0x0A, 0x18):
        nbytes = c.fixed({0x03: 2, 0x04: 4, 0x0A: 1}[form]) if form in (0x03, 0x04, 0x0A) else c.uleb()
        c.at += nbytes
    elif form == 0x16:
        return _value(c, c.uleb())
    else:
        raise ValueError(f"DWARF form {form:#x} is not known here")
    return 0


def _ranges(data: bytes, at: int, base: int) -> list[tuple[int, int]]:
    out: list[tuple[int, int]] = []
    while True:
        low, high = struct.unpack_from("<QQ", data, at)
        at += 16
        if (low, high) == (0, 0):
            return out
        if low == 2**64 - 1:
            base = high
        else:
            out.append((base + low, base + high))


def inlined(elf: Elf, files_at: dict[int, tuple[str, ...]]) -> Iterator[Inlined]:
    """Every stretch of inlined code. `files_at` has the file names of each unit's line table."""
    info, ranges = Cursor(elf.section(".debug_info")), elf.section(".debug_ranges")
    while info.at < len(info.data):
        end = info.fixed(4) + info.at
        version = info.fixed(2)
        abbreviations = _abbreviations(elf.section(".debug_abbrev"), info.fixed(4))
        info.fixed(1)
        files: tuple[str, ...] = ()
        base, depth, parents = 0, 0, [False]
        while version == 4 and info.at < end:
            code = info.uleb()
            if not code:
                depth -= parents.pop() if parents else False
                continue
            tag, children, attributes = abbreviations[code]
            wanted: dict[int, tuple[int, int]] = {name: (_value(info, form), form) for name, form in attributes}
            if AT_STMT_LIST in wanted:
                files = files_at.get(wanted[AT_STMT_LIST][0], ())
                base = wanted.get(AT_LOW_PC, (0, 0))[0]
            here = tag == TAG_INLINED
            if here:
                yield from _stretches(wanted, ranges, base, depth, files)
            if children:
                parents.append(here)
                depth += here
        info.at = end


def _stretches(
    wanted: dict[int, tuple[int, int]], ranges: bytes, base: int, depth: int, files: tuple[str, ...]
) -> Iterator[Inlined]:
    number = wanted.get(AT_CALL_FILE, (0, 0))[0]
    file, line = files[number] if number < len(files) else "", wanted.get(AT_CALL_LINE, (0, 0))[0]
    if AT_RANGES in wanted:
        pieces = _ranges(ranges, wanted[AT_RANGES][0], base)
    elif AT_LOW_PC in wanted:
        low, (high, form) = wanted[AT_LOW_PC][0], wanted[AT_HIGH_PC]
        pieces = [(low, high if form == FORM_ADDR else low + high)]
    else:
        pieces = []
    for low, high in pieces:
        yield Inlined(low, high, depth, file, line)
