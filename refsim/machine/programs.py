"""Programs: what the thread blocks of a launch load, hold on chip, compute and store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from math import isfinite, prod
from typing import Any, Literal

import numpy as np

from refsim.checks import whole_numbers
from refsim.machine.hbm import HBMArray
from refsim.machine.ledger import DIRECTIONS, LEVELS, Key, Work
from refsim.machine.tile import Buffer, StaleTile, Temporary, Tile, foreign
from refsim.numerics import carrier, dtype_of, round_to


class SramOverflow(MemoryError):
    """A program asked for more on-chip memory than the machine has."""


@dataclass
class Tally:
    """The counters of a batch of programs, or of all of a kernel's: their work, and bytes by tensor or buffer."""

    launches: int = 0
    programs: int = 0
    matmul_flops: int = 0
    flops: int = 0
    exponentials: int = 0
    sram_peak_nbytes: int = 0
    hbm_read: Counter[str] = field(default_factory=Counter)
    hbm_write: Counter[str] = field(default_factory=Counter)
    sram_read: Counter[str] = field(default_factory=Counter)
    sram_write: Counter[str] = field(default_factory=Counter)

    def add(self, other: Tally) -> None:
        """Count what `other` counted, too."""
        for f in fields(Tally):
            mine, theirs = getattr(self, f.name), getattr(other, f.name)
            if isinstance(mine, Counter):
                mine.update(dict(theirs))  # a copy: a program on another thread may be counting
            else:
                both = max(mine, theirs) if f.name == "sram_peak_nbytes" else mine + theirs
                setattr(self, f.name, both)

    def work(self) -> Work:
        """What was counted apart from bytes."""
        return Work(**{f.name: getattr(self, f.name) for f in fields(Work)})

    def nbytes(self, kernel: str) -> Iterator[tuple[Key, int]]:
        """The bytes counted, as a ledger holds them."""
        for level in LEVELS:
            for direction in DIRECTIONS:
                for name, n in getattr(self, f"{level}_{direction}".lower()).items():
                    yield Key(kernel, name, level, direction), n


class Programs:
    """A batch of equal programs: what they load, hold and store."""

    def __init__(self, kernel: str, grid: tuple[int, ...], sram_nbytes: int | None) -> None:
        self.kernel, self.grid, self.sram_nbytes = kernel, grid, sram_nbytes
        self.grid_ndim, self.count = len(grid), prod(grid)
        self.tally = Tally(programs=self.count)
        self.buffers: dict[str, Buffer] = {}
        self.live_nbytes = 0
        self.ended = False
        self._product = np.empty(0)  # where `mma` multiplies before it adds

    # On-chip memory

    def buffer(self, name: str, shape: tuple[int, ...], dtype: Any, *, order: Literal["C", "F"] = "C") -> Buffer:
        """Declare on-chip memory for each program. Raises SramOverflow with need, limit and each buffer.

        order: "F" keeps the columns of the last two axes together, which makes NumPy's sums along rows faster.
        """
        self._check_running()
        dtype, shape = dtype_of(dtype), whole_numbers(f"the shape of buffer {name!r}", shape)
        if order not in ("C", "F") or (order == "F" and len(shape) < 2):
            raise ValueError(f"order must be 'C', or 'F' for two axes and more, got {order!r} for shape {shape}")
        if name in self.buffers:
            raise ValueError(f"buffer {name!r} is declared already, with shape {self.buffers[name].shape}")
        nbytes = prod(shape) * dtype.itemsize
        self.buffers[name] = Buffer(self, name, shape, dtype, nbytes, order)
        self.charge(nbytes, name)
        return self.buffers[name]

    def charge(self, nbytes: int, what: str) -> None:
        """Take on-chip memory from every program's share."""
        self.live_nbytes += nbytes
        limit = self.sram_nbytes
        if limit is not None and self.live_nbytes > limit:
            declared = sum(b.nbytes for b in self.buffers.values())
            parts = [f"{b.name} {b.shape} {b.dtype} {b.nbytes:,} B" for b in self.buffers.values()]
            if self.live_nbytes > declared:
                parts.append(f"temporaries {self.live_nbytes - declared:,} B")
            raise SramOverflow(
                f"kernel {self.kernel!r} needs {self.live_nbytes:,} B on chip and the machine has {limit:,} B; "
                f"{what!r} did not fit. On chip: {'; '.join(parts)}. Use a smaller tile or a device with more"
            )
        if self.count and self.live_nbytes > self.tally.sram_peak_nbytes:
            self.tally.sram_peak_nbytes = self.live_nbytes

    def release(self, nbytes: int) -> None:
        """Give on-chip memory back."""
        self.live_nbytes -= nbytes

    def end(self) -> None:
        """Forget what is on chip: tiles of these programs raise StaleTile from now on."""
        self.ended = True
        self._product = np.empty(0)
        for buffer in self.buffers.values():
            buffer.version, buffer.storage = -1, None

    def tile_of(self, buffer: Buffer, size: tuple[int, ...]) -> Tile:
        """The first `size` elements along each axis of a buffer's own storage."""
        self._check_running()
        self._check_fits(buffer, size)
        if buffer.storage is None:
            storage = np.full((*self.grid, *buffer.memory_shape), np.nan, carrier(buffer.dtype))
            buffer.storage = storage if buffer.order == "C" else storage.swapaxes(-1, -2)
        index: tuple[Any, ...] = (..., *(slice(length) for length in size))
        part = buffer.storage[index]
        return Tile(part, buffer, buffer.dtype, 1)

    def temporary(self, data: np.ndarray) -> Tile:
        """A tile for the value of an expression; it takes on-chip memory for as long as it lives."""
        repeat = self._repeat(data.shape)
        per_program = prod(data.shape[self.grid_ndim :])
        return Tile(data, Temporary(self, per_program * data.dtype.itemsize), data.dtype, repeat)

    # Moving bytes

    def load(self, source: HBMArray, index: Any, *, into: Buffer) -> Any:
        """Copy `source[index]` from HBM into a buffer; older tiles of that buffer are stale from now on.

        The indexed part has the grid's axes in front (full, or 1 where every program loads the same) and at most the
        buffer's size behind. Every program pays for its own copy.
        """
        self._check_running()
        _check_hbm("load", source)
        self._check_buffer(into)
        part = source._data[index]
        repeat = self._repeat(part.shape)
        self._check_fits(into, part.shape[self.grid_ndim :])
        self.tally.hbm_read[source.name] += part.size * repeat * source.dtype.itemsize
        held = carrier(into.dtype)
        # A read-only source can't change under the kernel, so a view of it is as good as a copy, and faster.
        data = part if part.dtype == held and not source.writable else part.astype(held)
        if into.dtype not in (source.dtype, held):
            data = round_to(data, into.dtype)
        into.version += 1
        tile = Tile(data, into, into.dtype, repeat)
        self.tally.sram_write[into.name] += tile.nbytes
        return tile

    def load_index(self, source: HBMArray, index: Any, *, per_program: int | None = None) -> Any:
        """Read integers (block ids, lengths) that address memory; they are counted.

        Every program reads all of `source[index]`, or `per_program` integers of its own out of it.
        """
        self._check_running()
        _check_hbm("load_index", source)
        if source.dtype.kind not in "iu":
            raise TypeError(f"{source.name!r} holds {source.dtype}; only integers are read as an index")
        part = source._data[index]
        nbytes = (np.size(part) if per_program is None else per_program) * source.dtype.itemsize * self.count
        self.tally.hbm_read[source.name] += nbytes
        return part

    def store(self, tile: Tile, target: HBMArray, index: Any) -> None:
        """Write a tile to `target[index]` in HBM, rounded to the target's type. Every program writes its own part."""
        self._check_tile(tile)
        _check_hbm("store", target)
        if not target.writable:
            raise ValueError(f"{target.name!r} is an input of the kernel and can't be written")
        if tile.repeat != 1:
            raise ValueError(f"{self.count} programs would write one part of {target.name!r}: that is a race")
        part = target._data[index]
        if part.shape != tile.data.shape:
            raise ValueError(f"{target.name!r}[{index}] has shape {part.shape}, the tile {tile.data.shape}")
        with np.errstate(over="ignore"):
            target._data[index] = tile.data
        self.tally.sram_read[tile.home.name] += tile.nbytes
        nbytes = tile.data.size * target.dtype.itemsize
        self.tally.hbm_write[target.name] += nbytes

    # Computing

    def mma(self, a: Tile, b: Tile, *, acc: Tile) -> None:
        """acc += a @ b, as matrix units do it: in the accumulator, with no temporary on chip.

        A weight of exactly zero in `a` never touches its row of `b`, so NaN there can't leak through 0 * NaN.
        """
        for tile in (a, b, acc):
            self._check_tile(tile)
        for tile in (a, b, acc):
            self.tally.sram_read[tile.home.name] += tile.nbytes
        acc._own()
        with np.errstate(invalid="ignore", over="ignore"):
            if self._product.shape != acc.data.shape:
                self._product = np.empty(acc.data.shape, acc.data.dtype)
            product = np.matmul(a.data, b.data, out=self._product)
            if not isfinite(np.add.reduce(product, axis=None)):
                product = _select_then_multiply(a.data, b.data)
            acc.data += product
        self.tally.sram_write[acc.home.name] += acc.nbytes
        self.tally.matmul_flops += 2 * acc.data.size * acc.repeat * a.data.shape[-1]

    def _check_running(self) -> None:
        if self.ended:
            raise StaleTile(f"a program of kernel {self.kernel!r} has ended; nothing more can be done in it")

    def _check_tile(self, tile: Tile) -> None:
        if not isinstance(tile, Tile):
            raise TypeError(f"expected a tile, which load and buffer.tile() give, got {type(tile).__name__}")
        tile.check()
        if tile.home.programs is not self:
            raise foreign(tile.home.name, self)

    def _check_buffer(self, into: Buffer) -> None:
        if not isinstance(into, Buffer):
            raise TypeError(f"into must be a buffer, which prog.buffer declares, got {type(into).__name__}")
        if into.programs is not self:
            raise foreign(into.name, self)

    def _repeat(self, shape: tuple[int, ...]) -> int:
        """How many programs each element stands for, once the grid axes in front are checked."""
        front = shape[: self.grid_ndim]
        if front == self.grid:
            return 1
        if len(front) < self.grid_ndim or any(
            size not in (1, full) for size, full in zip(front, self.grid, strict=True)
        ):
            raise ValueError(f"shape {shape} must begin with the grid {self.grid}, or 1 where programs share a value")
        return self.count // prod(front)

    def _check_fits(self, buffer: Buffer, size: tuple[int, ...]) -> None:
        if len(size) != len(buffer.shape) or any(s > b for s, b in zip(size, buffer.shape, strict=True)):
            raise ValueError(f"{size} doesn't fit buffer {buffer.name!r}, which was declared {buffer.shape}")


def _check_hbm(what: str, array: HBMArray) -> None:
    if not isinstance(array, HBMArray):
        raise TypeError(
            f"{what} moves bytes of an array in HBM, which machine.hbm and machine.empty make, "
            f"got {type(array).__name__}"
        )


def _select_then_multiply(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a @ b where a zero in `a` selects nothing, even beside inf or NaN in `b`. One column of `a` at a time."""
    product = np.zeros((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]), a.dtype)
    for j in range(a.shape[-1]):
        weight = a[..., j, None]
        product += np.where(weight == 0, 0, weight * b[..., j, None, :])
    return product
