"""Tiles: arrays on chip. They behave as NumPy arrays do, and every operation on them is counted as it runs.

One tile stands for the same tile in every program (thread block) of a batch that runs side by side: its data has the
batch's grid axes in front (of full length, or 1 where all programs hold equal values) and the program's own axes
behind. Counts are those of all programs. Axes are therefore always named from the end: `s.max(axis=-1)`, `k.mT`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from refsim.machine.hbm import HBMArray
from refsim.numerics import round_to

if TYPE_CHECKING:
    from refsim.machine.machine import Programs

# One evaluation of the special-function unit each.
_TRANSCENDENTAL = {np.exp, np.exp2, np.expm1, np.log, np.log2, np.log1p, np.tanh, np.sin, np.cos, np.sqrt}
_ARITHMETIC = {
    *(np.add, np.subtract, np.multiply, np.divide, np.maximum, np.minimum, np.fmax, np.fmin),
    *(np.negative, np.absolute, np.square, np.reciprocal, np.power),
}


class StaleTile(RuntimeError):
    """A tile was used after its buffer was loaded anew, or after its program ended."""


class Buffer:
    """On-chip memory that a program declared: a name, a shape and a type, as `__shared__` arrays have.

    `tile()` is the storage itself (NaN where nothing was written yet); `programs.load(..., into=buffer)` fills it.
    Tiles are typed as Any where algorithms get them, since they stand in for arrays in NumPy's functions.
    """

    __slots__ = ("dtype", "name", "nbytes", "programs", "shape", "storage", "version")

    def __init__(self, programs: Programs, name: str, shape: tuple[int, ...], dtype: np.dtype, nbytes: int) -> None:
        self.programs, self.name, self.shape, self.dtype, self.nbytes = programs, name, shape, dtype, nbytes
        self.storage: np.ndarray | None = None
        self.version = 0

    def tile(self, *size: int) -> Any:
        """The buffer's first `size` elements along each axis; all of it when no size is given."""
        return self.programs.tile_of(self, size or self.shape)

    def full(self, value: float, *size: int) -> Any:
        """As `tile`, with every element set to `value`."""
        tile = self.tile(*size)
        tile.data[...] = value
        return tile


class Temporary:
    """The memory behind a tile that an expression made. It is given back when the last tile that uses it goes."""

    __slots__ = ("name", "nbytes", "programs", "version")

    def __init__(self, programs: Programs, nbytes: int) -> None:
        self.name, self.programs, self.nbytes, self.version = "temporaries", programs, nbytes, 0
        programs.charge(nbytes, "temporaries")

    def __del__(self) -> None:
        self.programs.release(self.nbytes)


class Tile(NDArrayOperatorsMixin):
    """Values on chip. `data` carries them in float32 (or float64); `dtype` is the type that they are stored in."""

    __slots__ = ("born", "data", "dtype", "home", "repeat")

    def __init__(self, data: np.ndarray, home: Buffer | Temporary, dtype: np.dtype, repeat: int) -> None:
        self.data, self.home, self.dtype = data, home, dtype
        self.repeat = repeat  # programs that each element of `data` stands for
        self.born = home.version

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape in one program, without the grid axes."""
        return self.data.shape[self.home.programs.grid_ndim :]

    @property
    def nbytes(self) -> int:
        """Bytes over all programs, in the stored type."""
        return self.data.size * self.repeat * self.dtype.itemsize

    @property
    def mT(self) -> Tile:
        """The last two axes swapped; nothing moves."""
        return self._view(self.data.swapaxes(-1, -2))

    def __repr__(self) -> str:
        return f"Tile({self.home.name!r}, {self.shape}, {self.dtype}, programs={self.home.programs.count})"

    def __getitem__(self, index: Any) -> Tile:
        """A part of the tile. Name axes from the end, with `...` in front: `m[..., None]`, `s[..., :r, :c]`."""
        if not isinstance(index, tuple) or index[0] is not Ellipsis:
            raise IndexError(f"index a tile from the end, as in tile[..., :4]; got {index!r}")
        self.check()
        return self._view(self.data[index])

    def __setitem__(self, index: Any, value: Any) -> None:
        """The last half of `tile[...] += x`, which the in-place operator has already done; or a copy between tiles."""
        part = self[index]
        if isinstance(value, Tile):
            if value.data.base is not None and np.shares_memory(value.data, part.data):
                return
            value = value.data
        part.data[...] = value

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise TypeError(f"{self!r} is on chip: store it to HBM from inside the kernel, then use machine.to_host")

    def reshape(self, *shape: int) -> Tile:
        """The same values in another shape of the program; nothing moves on chip."""
        self.check()
        front = self.data.shape[: self.home.programs.grid_ndim]
        return self._view(self.data.reshape(*front, *shape))

    def max(self, axis: int, out: Any = None) -> Any:
        """The largest along an axis of the program (negative)."""
        return np.maximum.reduce(self, axis=axis, out=out)

    def sum(self, axis: int, out: Any = None) -> Any:
        """The sum along an axis of the program (negative)."""
        return np.add.reduce(self, axis=axis, out=out)

    def mask(self, hidden: np.ndarray, value: float) -> None:
        """Set the elements where `hidden` (the program's shape, or one that broadcasts to it) to `value`."""
        self.check()
        np.copyto(self.data, value, where=hidden)

    def round(self, dtype: np.dtype) -> Tile:
        """This tile with its values rounded to `dtype`, in place; it counts as that type from here on."""
        self.check()
        if dtype != self.data.dtype:
            self.data[...] = round_to(self.data, dtype)
        return Tile(self.data, self.home, dtype, self.repeat)

    def check(self) -> None:
        """Raise StaleTile if the memory behind this tile holds something else by now."""
        if self.born != self.home.version:
            why = "its program has ended" if self.home.version < 0 else "its buffer was loaded anew since"
            raise StaleTile(
                f"tile of {self.home.name!r} was used although {why}; use the tile that the last load returned"
            )

    def _view(self, data: np.ndarray) -> Tile:
        return Tile(data, self.home, self.dtype, self.repeat)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None, **kwargs: Any) -> Any:
        if method not in ("__call__", "reduce"):
            raise TypeError(f"{ufunc.__name__}.{method} is not counted on tiles; use a plain call or a reduction")
        programs = self.home.programs
        arrays: list[Any] = []
        for x in inputs:
            if type(x) is Tile:
                x.check()
                programs.count_sram(x.home.name, "read", x.nbytes)
                arrays.append(x.data)
            elif isinstance(x, HBMArray):
                x._refuse()
            else:
                arrays.append(x)
        target: Tile | None = out[0] if isinstance(out, tuple) else out
        if target is not None:
            target.check()
            kwargs["out"] = target.data
        if method == "reduce" and not -self.data.ndim + programs.grid_ndim <= kwargs.get("axis", 0) < 0:
            raise ValueError(f"reduce a tile along an axis of its program, from -1 to {-len(self.shape)}")
        result = getattr(ufunc, method)(*arrays, **kwargs)
        if target is None:
            target = programs.temporary(result)
        programs.count_sram(target.home.name, "write", target.nbytes)
        if ufunc is np.matmul:
            programs.work.matmul_flops += 2 * target.data.size * target.repeat * arrays[0].shape[-1]
        elif ufunc in _TRANSCENDENTAL:
            programs.work.exponentials += target.data.size * target.repeat
        elif ufunc in _ARITHMETIC:
            counted = self if method == "reduce" else target
            programs.work.flops += counted.data.size * counted.repeat
        return target
