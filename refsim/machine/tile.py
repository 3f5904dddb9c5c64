"""Tiles: arrays on chip. They behave as NumPy arrays do, and every operation on them is counted as it runs.

One tile stands for the same tile in every program (thread block) of a batch that runs side by side: its data has the
batch's grid axes in front (of full length, or 1 where all programs hold equal values) and the program's own axes
behind. Counts are those of all programs. Axes are therefore always named from the end: `s.max(axis=-1)`, `k.mT`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from refsim.machine.hbm import HBMArray
from refsim.numerics import dtype_of, round_to

if TYPE_CHECKING:
    from refsim.machine.programs import Programs

# One evaluation of the special-function unit each.
_TRANSCENDENTAL = {np.exp, np.exp2, np.expm1, np.log, np.log2, np.log1p, np.tanh, np.sin, np.cos, np.sqrt}
_ARITHMETIC = {
    *(np.add, np.subtract, np.multiply, np.divide, np.maximum, np.minimum, np.fmax, np.fmin),
    *(np.negative, np.absolute, np.square, np.reciprocal, np.power, np.floor_divide, np.remainder, np.fmod),
}
# Comparing, rounding and copying. What is in none of these sets is refused: it would cost something, and count nothing.
_FREE = {
    *(np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal, np.isnan, np.isinf, np.isfinite),
    *(np.logical_and, np.logical_or, np.logical_xor, np.logical_not, np.floor, np.ceil, np.trunc, np.rint),
    *(np.positive, np.copysign, np.signbit),
}
_COUNTED = _TRANSCENDENTAL | _ARITHMETIC | _FREE | {np.matmul}


class StaleTile(RuntimeError):
    """A tile was used after its buffer was loaded anew, or after its program ended."""


class Buffer:
    """On-chip memory that a program declared: a name, a shape and a type, as `__shared__` arrays have.

    `tile()` is the storage itself (NaN where nothing was written yet); `programs.load(..., into=buffer)` fills it.
    Tiles are typed as Any where algorithms get them, since they stand in for arrays in NumPy's functions.
    """

    __slots__ = ("dtype", "name", "nbytes", "order", "programs", "shape", "storage", "version")

    def __init__(
        self, programs: Programs, name: str, shape: tuple[int, ...], dtype: np.dtype, nbytes: int, order: str
    ) -> None:
        self.programs, self.name, self.shape, self.dtype, self.nbytes = programs, name, shape, dtype, nbytes
        self.order = order
        self.storage: np.ndarray | None = None
        self.version = 0

    @property
    def memory_shape(self) -> tuple[int, ...]:
        """The shape as it lies in memory: the last two axes swapped in order "F"."""
        return self.shape if self.order == "C" else (*self.shape[:-2], self.shape[-1], self.shape[-2])

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

    __slots__ = ("nbytes", "programs")
    name = "temporaries"
    version = 0

    def __init__(self, programs: Programs, nbytes: int) -> None:
        self.programs, self.nbytes = programs, nbytes
        programs.charge(nbytes, "temporaries")

    def __del__(self) -> None:
        self.programs.release(self.nbytes)


class Tile(NDArrayOperatorsMixin):
    """Values on chip. `data` carries them in float32 (or float64); `dtype` is the type that they are stored in."""

    __slots__ = ("born", "data", "dtype", "home", "nbytes", "repeat")

    def __init__(self, data: np.ndarray, home: Buffer | Temporary, dtype: np.dtype, repeat: int) -> None:
        self.data, self.home, self.dtype = data, home, dtype
        self.repeat = repeat  # programs that each element of `data` stands for
        self.nbytes = data.size * repeat * dtype.itemsize  # over all programs, in the stored type
        self.born = home.version

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape in one program, without the grid axes."""
        return self.data.shape[self.home.programs.grid_ndim :]

    @property
    def mT(self) -> Tile:
        """The last two axes swapped; nothing moves."""
        return self._view(self.data.swapaxes(-1, -2))

    def __repr__(self) -> str:
        return f"Tile({self.home.name!r}, {self.shape}, {self.dtype}, programs={self.home.programs.count})"

    def __getitem__(self, index: Any) -> Tile:
        """A part of the tile. Name axes from the end, with `...` in front: `m[..., None]`, `s[..., :r, :c]`."""
        if not isinstance(index, tuple) or index[:1] != (Ellipsis,):
            raise IndexError(f"index a tile from the end, as in tile[..., :4]; got {index!r}")
        self.check()
        data, ndim = self.data[index], self.home.programs.grid_ndim
        if data.shape[:ndim] != self.data.shape[:ndim]:
            raise IndexError(f"{index!r} reaches past the tile's own axes, {self.shape}, to those of the grid")
        return self._view(data)

    def __setitem__(self, index: Any, value: Any) -> None:
        """The last half of `tile[...] += x`, which the in-place operator has already done; or a copy between tiles."""
        part = self[index]
        if not isinstance(value, Tile):
            part._own()
            part.data[...] = value
        elif not _same_memory(value.data, part.data):
            np.positive(value, out=part)  # type: ignore[call-overload]

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError(f"{self!r} is on chip: store it to HBM from inside the kernel, then use machine.to_host")

    # Without these, Python would take every tile for true and empty.
    __bool__ = __len__ = __iter__ = __contains__ = __float__ = __int__ = __array__

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
        self._own()
        np.copyto(self.data, value, where=hidden)

    def round(self, dtype: Any) -> Tile:
        """This tile with its values rounded to `dtype`, in place; it counts as that type from here on."""
        self.check()
        dtype = dtype_of(dtype)
        if dtype != self.data.dtype:
            self._own()
            self.data[...] = round_to(self.data, dtype)
        return Tile(self.data, self.home, dtype, self.repeat)

    def check(self) -> None:
        """Raise StaleTile if the memory behind this tile holds something else by now."""
        ended = self.home.programs.ended
        if ended or self.born != self.home.version:
            why = "its program has ended" if ended else "its buffer was loaded anew or written since"
            raise StaleTile(
                f"tile of {self.home.name!r} was used although {why}; use the tile of the last load or write"
            )

    def _own(self) -> None:
        """Before a write: a tile that is still a view of its input takes a copy, and other tiles of it go stale."""
        if not self.data.flags.writeable:
            assert isinstance(self.home, Buffer)
            self.data = self.data.copy()
            self.home.version += 1
            self.born = self.home.version

    def _view(self, data: np.ndarray) -> Tile:
        return Tile(data, self.home, self.dtype, self.repeat)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None, **kwargs: Any) -> Any:
        if method not in ("__call__", "reduce") or ufunc not in _COUNTED:
            form = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
            raise TypeError(f"{form} is not counted on tiles; use plain calls and reductions of simple functions")
        programs, ndim = self.home.programs, self.data.ndim
        tally = programs.tally
        arrays: list[Any] = []
        for x in inputs:
            if type(x) is Tile:
                home = x.home
                if x.born != home.version or home.programs.ended:
                    x.check()
                if home.programs is not programs:
                    raise foreign(home.name, programs)
                tally.sram_read[home.name] += x.nbytes
                x = x.data
                if x.ndim != ndim:
                    _refuse_mixed_axes(self, x, programs.grid_ndim)
            elif type(x) is HBMArray:
                x._refuse()
            arrays.append(x)
        target: Tile | None = out[0] if type(out) is tuple else out
        if target is not None:
            if type(target) is not Tile:
                raise TypeError(f"out must be a tile, so that what is written counts, got {type(target).__name__}")
            target.check()
            if target.home.programs is not programs:
                raise foreign(target.home.name, programs)
            target._own()
            kwargs["out"] = target.data
        if method == "reduce":
            axis = kwargs.get("axis", 0)
            if not isinstance(axis, int | np.integer) or not programs.grid_ndim - ndim <= axis < 0:
                raise ValueError(
                    f"reduce a tile along an axis of its program, from -1 to {-len(self.shape)}, got axis={axis!r}"
                )
            result = ufunc.reduce(*arrays, **kwargs)
        else:
            result = ufunc(*arrays, **kwargs)
        if target is None:
            target = programs.temporary(np.asarray(result))
        tally.sram_write[target.home.name] += target.nbytes
        if ufunc in _ARITHMETIC:
            counted = self if method == "reduce" else target
            tally.flops += counted.data.size * counted.repeat
        elif ufunc in _TRANSCENDENTAL:
            tally.exponentials += target.data.size * target.repeat
        elif ufunc is np.matmul:
            tally.matmul_flops += 2 * target.data.size * target.repeat * arrays[0].shape[-1]
        return target


def foreign(name: str, programs: Programs) -> ValueError:
    """What is on chip belongs to the programs that declared it: no others can reach it."""
    return ValueError(f"{name!r} is on chip in other programs than these of kernel {programs.kernel!r}; load it here")


def _refuse_mixed_axes(a: Tile, b: np.ndarray, grid_ndim: int) -> None:
    """NumPy would line up one tile's program axes with the other's grid axes."""
    raise ValueError(
        f"tiles of shapes {a.shape} and {b.shape[grid_ndim:]} have different numbers of axes; give the smaller one its "
        "missing axes of length 1, as in tile[..., None]"
    )


def _same_memory(a: np.ndarray, b: np.ndarray) -> bool:
    return (a.ctypes.data, a.shape, a.strides) == (b.ctypes.data, b.shape, b.strides)
