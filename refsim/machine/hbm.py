"""Arrays in HBM: only a kernel's loads and stores may move their bytes."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np


class UncountedAccess(TypeError):
    """Something other than a kernel's load or store tried to touch an array in HBM."""


class HBMArray:
    """A tensor in HBM. It has a name, shape and dtype, and refuses everything else.

    Indexing it, converting it, iterating over it or computing with it raises `UncountedAccess`. Inside a kernel use
    `programs.load` and `programs.store`; outside, `machine.to_host` copies it back, as a host would over PCIe.
    """

    __slots__ = ("_data", "dtype", "name", "writable")
    __hash__ = object.__hash__

    def __init__(self, name: str, data: np.ndarray, *, writable: bool) -> None:
        self.name, self.dtype, self.writable = name, data.dtype, writable
        self._data = data.view()
        self._data.flags.writeable = writable

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape, which a kernel gets as a launch argument and so costs nothing to know."""
        return self._data.shape

    def __repr__(self) -> str:
        return f"HBMArray({self.name!r}, shape={self.shape}, dtype={self.dtype})"

    def part(self, first_axis: slice) -> HBMArray:
        """The same tensor for some indices of its first axis: an address and a length, so nothing is read."""
        return HBMArray(self.name, self._data[first_axis], writable=self.writable)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise UncountedAccess(
            f"{self.name!r} lies in HBM: its values can't be read, converted or computed with here, since nobody would "
            "count the bytes. Load a tile inside a kernel (programs.load), or copy it back with machine.to_host"
        )

    def __getattr__(self, name: str) -> NoReturn:
        """What arrays have and this hasn't: `x.sum()`, `x.T`."""
        raise AttributeError(
            f"an array in HBM has a name, shape and dtype, but no {name}: load a tile inside a kernel (programs.load), "
            "or copy it back with machine.to_host"
        )

    __getitem__ = __setitem__ = __delitem__ = __iter__ = __contains__ = __len__ = __bool__ = __float__ = __int__ = (
        __index__
    ) = _refuse
    __array__ = __array_ufunc__ = __array_function__ = __dlpack__ = __buffer__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __divmod__ = __abs__ = __pos__ = __invert__ = __complex__ = (
        _refuse
    )
    __matmul__ = __rmatmul__ = __neg__ = __pow__ = __eq__ = __ne__ = __lt__ = __gt__ = __le__ = __ge__ = _refuse
