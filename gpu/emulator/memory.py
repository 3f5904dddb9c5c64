"""Device memory: each tensor of a launch lies alone in a wide slot of address space, and comes back at its end."""

from __future__ import annotations

import ctypes
import functools
import itertools
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpu.emulator import native
from gpu.emulator.loaded import runtime

ALIGNMENT = 512  # of what CuPy allocates
POISON = np.array([0xFF, 0xFF, 0xFF, 0x7F], np.uint8)  # NaN as any float type, absurd as an integer

_unwritten: dict[int, tuple[weakref.ref[np.ndarray], np.ndarray]] = {}


def empty(shape: int | tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
    """An array as `cupy.empty` gives it: with nothing in it yet.

    It holds poison (NaN, or absurd integers), and a kernel that reads what no kernel has written is reported.

    >>> bool(np.isnan(empty(3)).all())
    True
    """
    array = np.empty(shape, dtype)
    if array.dtype.hasobject:
        raise TypeError(f"device memory holds numbers, not Python objects (dtype {array.dtype})")
    flat = array.reshape(-1).view(np.uint8)
    flat[:] = np.resize(POISON, flat.size)
    key = id(array)
    bits = np.zeros((array.nbytes + 7) // 8, np.uint8)
    _unwritten[key] = (weakref.ref(array, lambda _: _unwritten.pop(key, None)), bits)
    return array


def written_bits(array: np.ndarray) -> np.ndarray | None:
    """Which bytes of an array from `empty` have been written, one bit each; None for any other array."""
    entry = _unwritten.get(id(array))
    return entry[1] if entry is not None and entry[0]() is array else None


class Arena:
    """The address space of all tensors, and which slot is next. Slots are taken in turn, so that an address kept
    from an earlier launch points at a slot that is known to be free again."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        for shift, count in ((34, 2048), (34, 512), (32, 512), (30, 256)):
            self.base = library.refsim_arena(shift, count)
            if self.base:
                break
        else:
            raise MemoryError("no address space for the emulator's tensors (is a limit on virtual memory set?)")
        self.shift, self.count = shift, count
        self.slots = library.refsim_slots()
        self.history: dict[int, str] = {}
        self._next = itertools.cycle(range(count))

    def take(self, name: str) -> int:
        """A free slot for a tensor of this name."""
        number = next(self._next)
        self.history[number] = name
        return number


@functools.cache
def arena(path: Path) -> Arena:
    """The arena of a runtime in this process."""
    return Arena(runtime(path))


@dataclass
class Tensor:
    """An array argument of a launch (or several that share memory) and its copy in the arena."""

    names: list[str]
    arrays: list[np.ndarray]
    low: int
    high: int
    constant: bool
    slot: int = -1
    address: int = 0
    uninitialised: bool = False

    @property
    def nbytes(self) -> int:
        return self.high - self.low

    @property
    def shift(self) -> int:
        """Bytes past a multiple of 512: a whole array has none, as on a GPU; a view has what its offset leaves."""
        owner = self.array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        return (self.low - bounds_of(owner)[0]) % ALIGNMENT

    @property
    def name(self) -> str:
        return "/".join(dict.fromkeys(self.names))

    @property
    def array(self) -> np.ndarray:
        return self.arrays[0]


def bounds_of(array: np.ndarray) -> tuple[int, int]:
    """The first byte that an array touches and the byte after its last."""
    low, high = np.lib.array_utils.byte_bounds(array)
    return (low, low) if array.size == 0 else (low, high)


def group(arguments: list[tuple[str, np.ndarray, bool]]) -> list[Tensor]:
    """Join arguments whose memory overlaps: a kernel must see a write through one in the other.

    Where none of them can be written, each stays a tensor of its own, and so has its own counts.
    """
    tensors: list[Tensor] = []
    for name, array, constant in sorted(arguments, key=lambda a: bounds_of(a[1])[0]):
        low, high = bounds_of(array)
        constant = constant or not array.flags.writeable
        if tensors and low < tensors[-1].high:
            last = tensors[-1]
            last.names.append(name)
            last.arrays.append(array)
            last.high = max(last.high, high)
            last.constant &= constant
        else:
            tensors.append(Tensor([name], [array], low, high, constant))
    return [part for tensor in tensors for part in (_apart(tensor) if tensor.constant else [tensor])]


def _apart(tensor: Tensor) -> list[Tensor]:
    return [
        Tensor([name], [array], *bounds_of(array), constant=True)
        for name, array in zip(tensor.names, tensor.arrays, strict=True)
    ]


def bytes_at(address: int, nbytes: int) -> np.ndarray:
    """Memory as an array of bytes, by address."""
    return np.frombuffer(memoryview((ctypes.c_uint8 * nbytes).from_address(address)).cast("B"), np.uint8)


class DeviceMemory:
    """The tensors of one launch: in the arena while it runs, and copied back (or not) at its end."""

    def __init__(self, space: Arena, tensors: list[Tensor]) -> None:
        self.space, self.tensors = space, tensors

    def map(self, nbytes: int) -> int:
        """Memory that the workers share, all zeros."""
        address = self.space.library.refsim_shared(max(nbytes, 1))
        if not address:
            raise MemoryError(f"no memory for {nbytes} bytes of the emulator's shadow")
        self._mapped.append((address, max(nbytes, 1)))
        return int(address)

    def __enter__(self) -> DeviceMemory:
        self._mapped: list[tuple[int, int]] = []
        return self

    def __exit__(self, *_: object) -> None:
        for tensor in self.tensors:
            if tensor.slot >= 0:
                self.space.library.refsim_drop_tensor(tensor.slot, tensor.nbytes)
                self.space.slots[tensor.slot] = native.Slot(flags=native.SLOT_FREED)
        for address, nbytes in self._mapped:
            self.space.library.refsim_unshare(address, nbytes)

    def place(self, *, traced: bool, races: bool, heat: bool) -> None:
        """Copy the tensors in and make their shadows."""
        for tensor in self.tensors:
            tensor.slot = self.space.take(tensor.name)
            at = self.space.library.refsim_tensor(tensor.slot, tensor.shift + tensor.nbytes)
            if not at:
                raise MemoryError(f"no memory for {tensor.nbytes} bytes of `{tensor.name}`")
            tensor.address = base = at + tensor.shift
            if tensor.nbytes:
                bytes_at(base, tensor.nbytes)[:] = bytes_at(tensor.low, tensor.nbytes)
            slot = native.Slot(base=base, nbytes=tensor.nbytes)
            if traced:
                self._shadow(tensor, slot, races=races, heat=heat)
            self.space.slots[tensor.slot] = slot

    def _shadow(self, tensor: Tensor, slot: native.Slot, *, races: bool, heat: bool) -> None:
        bitmap = tensor.nbytes // 8 + 8
        for direction in range(3):
            slot.touched[direction] = self.map(bitmap)
        itemsize = min(a.dtype.itemsize for a in tensor.arrays)
        slot.granule_shift = {1: 0, 2: 1}.get(itemsize, 2)
        granules = (tensor.nbytes >> slot.granule_shift) + 8
        slot.flags = native.SLOT_CONST if tensor.constant else 0
        if races and not tensor.constant:
            slot.flags |= native.SLOT_RACE
            slot.cells = self.map(native.GLOBAL_CELL_NBYTES * granules)
        if heat:
            slot.flags |= native.SLOT_HEAT
            slot.heat = self.map(4 * granules)
        bits = written_bits(tensor.array)
        if bits is not None and len(tensor.arrays) == 1:
            tensor.uninitialised = True
            slot.flags |= native.SLOT_UNINIT
            slot.initialised = self.map(bitmap)
            bytes_at(slot.initialised, bits.size)[:] = bits

    def slot(self, tensor: Tensor) -> native.Slot:
        return self.space.slots[tensor.slot]

    def pointer(self, name: str, array: np.ndarray) -> int:
        """Where a kernel finds the first element of the array that it was given as `name`."""
        tensor = next(tensor for tensor in self.tensors if name in tensor.names)
        return tensor.address + array.ctypes.data - tensor.low

    def bring_back(self, written: set[int] | None) -> None:
        """Copy what kernels wrote to the arrays they were given: the tensors of those slots, or (None) all."""
        for tensor in self.tensors:
            slot = self.slot(tensor)
            if tensor.uninitialised:
                bits = written_bits(tensor.array)
                if bits is not None:
                    bits[:] = bytes_at(slot.initialised, bits.size)
            if not tensor.nbytes or tensor.constant:
                continue
            if written is not None and tensor.slot not in written:
                continue
            bytes_at(tensor.low, tensor.nbytes)[:] = bytes_at(tensor.address, tensor.nbytes)
