"""A compiled module in this process: its kernels' signatures and where its variables lie."""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from gpu.emulator import native
from gpu.emulator.build import Module
from gpu.emulator.elf import Elf, Symbol
from gpu.emulator.source import SourceError


@dataclass(frozen=True)
class Entry:
    """A kernel that can be called: its address and what the compiler said of its parameters."""

    name: str
    address: int
    parameters: tuple[native.Parameter, ...]
    names: tuple[str, ...]
    bounds: int
    min_blocks: int


@functools.cache
def runtime(path: Path) -> ctypes.CDLL:
    """The runtime of this process."""
    return native.load(str(path))


class Loaded:
    """A module's shared object, loaded; it stays loaded for the life of the process."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.runtime = runtime(module.runtime)
        self.library = ctypes.CDLL(str(module.path))
        self.elf = Elf(module.path)
        symbols = self.elf.variables()
        there = [i for i in range(len(module.names)) if self.elf.address_of(f"refsim_kernel_{i}") is not None]
        if not there:
            raise SourceError(f"all kernels of the text are compiled out by its #if: {', '.join(module.names)}")
        first = f"refsim_kernel_{there[0]}"
        self.base = ctypes.addressof(native.KernelInfo.in_dll(self.library, first)) - self._offset_of(first)
        self.end = self.base + self.elf.image_nbytes
        self.dynamic = next((s for s in symbols if s.name == "refsim_dynamic_shared"), None)
        self.shared = [s for s in symbols if s.local_static]
        self.guards = [s for s in symbols if s.guard]
        own = ("_DYNAMIC", "completed", "__", "refsim_", "_ZN6refsim", "_GLOBAL_OFFSET")
        named = [s for s in symbols if not s.local_static and not s.guard and not s.name.startswith(own)]
        constants = set(module.constants)
        self.constants = [s for s in named if s.short in constants]
        self.devices = [s for s in named if s.short not in constants]
        self.entries = {e.name: e for e in map(self._entry, there)}

    def _offset_of(self, name: str) -> int:
        address = self.elf.address_of(name)
        if address is None:
            raise RuntimeError(f"{self.module.path} has no symbol {name}")
        return address

    def _entry(self, number: int) -> Entry:
        info = native.KernelInfo.in_dll(self.library, f"refsim_kernel_{number}")
        name = info.name.decode()
        text = self.module.kernels.get(name.split("<")[0].strip())
        names = text.parameters if text and len(text.parameters) == info.count else ()
        return Entry(
            name,
            info.entry,
            tuple(info.parameters[i] for i in range(info.count)),
            names or tuple(f"arg{i}" for i in range(info.count)),
            info.bounds,
            info.min_blocks,
        )

    def shared_of(self, entry: Entry) -> int:
        """Bytes of static shared memory that a kernel declares itself."""
        plain = entry.name.split("<")[0]
        return sum(s.nbytes for s in self.shared if s.owner.startswith((f"{len(plain)}{plain}", plain)))

    def variable(self, name: str) -> np.ndarray:
        """The bytes of a `__device__` or `__constant__` variable, writable.

        Raises
        ------
        KeyError
            The module has no such variable.
        """
        for symbol in [*self.constants, *self.devices]:
            if symbol.short == name:
                return self.view(symbol)
        known = ", ".join(s.short for s in [*self.constants, *self.devices]) or "none"
        raise KeyError(f"no __device__ or __constant__ variable {name!r}; the module has {known}")

    def view(self, symbol: Symbol) -> np.ndarray:
        """A symbol's memory as an array of bytes."""
        buffer = (ctypes.c_uint8 * symbol.nbytes).from_address(self.base + symbol.address)
        return np.frombuffer(memoryview(buffer).cast("B"), np.uint8)


_loaded: dict[Path, Loaded] = {}


def load(module: Module, text: str | None = None) -> Loaded:
    """Load a module, once. `text` is what its lines are shown from, where that isn't what was compiled."""
    if module.path not in _loaded:
        _loaded[module.path] = Loaded(module if text is None else replace(module, text=text))
    return _loaded[module.path]
