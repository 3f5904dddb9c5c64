"""Just enough of the ELF format: the sections and symbols of a 64-bit little-endian shared object."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Symbol:
    """A data object of the file: its linker name, where it lies from the load address, and its size in bytes."""

    name: str
    address: int
    nbytes: int

    @property
    def local_static(self) -> bool:
        """Is it declared inside a function (so, in a kernel, `__shared__`)?"""
        return self.name.startswith("_ZZ")

    @property
    def guard(self) -> bool:
        return self.name.startswith("_ZGV")

    @property
    def short(self) -> str:
        """The name as written: `_ZZ4scanPfE4tile` is `tile`."""
        match = re.search(r"E(\d+)([A-Za-z_]\w*?)(?:_\d+|_)?$", self.name)
        if match and len(match[2]) >= int(match[1]):
            return match[2][: int(match[1])]
        match = re.match(r"_ZL?(\d+)(\w+)", self.name)
        return match[2][: int(match[1])] if match else self.name

    @property
    def owner(self) -> str:
        """The linker name of the function that a local static belongs to, as far as it can be read off."""
        return self.name[3:]


class Elf:
    """A shared object read whole."""

    def __init__(self, path: Path) -> None:
        self.data = path.read_bytes()
        if self.data[:6] != b"\x7fELF\x02\x01":
            raise ValueError(f"{path} is not a 64-bit little-endian ELF file")
        offset, entry_nbytes, count, names = (
            struct.unpack_from("<Q", self.data, 40)[0],
            *struct.unpack_from("<HHH", self.data, 58),
        )
        headers = [struct.unpack_from("<IIQQQQII", self.data, offset + i * entry_nbytes) for i in range(count)]
        strings = headers[names][4]
        self.sections = {self._string(strings + h[0]): h for h in headers}
        self.image_nbytes = max((h[3] + h[5] for h in headers if h[2] & 2), default=0)

    def _string(self, at: int) -> str:
        return self.data[at : self.data.index(b"\0", at)].decode()

    def section(self, name: str) -> bytes:
        """The bytes of a section; empty where there is none."""
        header = self.sections.get(name)
        return self.data[header[4] : header[4] + header[5]] if header else b""

    def address_of(self, name: str) -> int | None:
        """Where an exported symbol lies, from the load address."""
        table, strings = self.section(".symtab"), self.sections[".strtab"][4]
        for at, _, _, _, value, _ in struct.iter_unpack("<IBBHQQ", table):
            if self.data[strings + at : strings + at + len(name) + 1] == name.encode() + b"\0":
                return int(value)
        return None

    def variables(self) -> list[Symbol]:
        """The objects in writable memory (`.data`, `.bss`), in order of address."""
        table, strings = self.section(".symtab"), self.sections[".strtab"][4]
        writable = [(h[3], h[3] + h[5]) for h in self.sections.values() if h[2] & 3 == 3]
        found = {}
        for name, info, _, section, value, nbytes in struct.iter_unpack("<IBBHQQ", table):
            if info & 15 == 1 and section and nbytes and any(low <= value < high for low, high in writable):
                found[value] = Symbol(self._string(strings + name), value, nbytes)
        return [found[value] for value in sorted(found)]
