"""A sequence's token ids and the chained keys of its full blocks.

The key of a block is a hash of the key before it and of the block's own ids, so that it stands for every token up to
its end. A key only says where to look: the ids are compared on a hit, so that a collision can't hurt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import Int64
    from numpy.typing import ArrayLike

_ID_NBYTES = 8
# The key of a block of these ids after the block of that key.
key_of: Callable[[tuple[int, bytes]], int] = hash


class Chain:
    """Token ids that grow, and keys and contents (the bytes of the ids) of the full blocks among them.

    `salt` isolates: chains of different salts share nothing.

    >>> a, b = Chain([1, 2, 3, 4, 5], 2), Chain([1, 2, 9, 4], 2)
    >>> [x == y for x, y in zip(a.keys(), b.keys())]
    [True, False]
    """

    __slots__ = ("_ids", "_keys", "block_size", "contents", "salt")

    def __init__(self, ids: ArrayLike, block_size: int, salt: int = 0) -> None:
        self._ids = bytearray(check_ids(ids).tobytes())
        self.block_size = block_size
        self.salt = salt
        self.contents: list[bytes] = []
        self._keys: list[int] = []

    @property
    def known(self) -> int:
        """How many ids are known."""
        return len(self._ids) // _ID_NBYTES

    @property
    def ids(self) -> Int64[np.ndarray, "known"]:
        """The ids known so far, a copy."""
        return np.frombuffer(bytes(self._ids), np.int64)

    def extend(self, ids: ArrayLike) -> None:
        """Learn the ids that follow."""
        self._ids += check_ids(ids).tobytes()

    def keys(self) -> list[int]:
        """The key of every full block; only blocks new since the last call are hashed."""
        done, size = len(self._keys), self.block_size * _ID_NBYTES
        if len(self._ids) >= (done + 1) * size:
            end = len(self._ids) - len(self._ids) % size
            ids = bytes(self._ids)
            key = self._keys[-1] if done else root_key(self.salt)
            for start in range(done * size, end, size):
                content = ids[start : start + size]
                key = key_of((key, content))
                self._keys.append(key)
                self.contents.append(content)
        return self._keys

    def copy(self) -> Chain:
        """A chain that can grow apart from this one."""
        twin = Chain((), self.block_size, self.salt)
        twin._ids = self._ids.copy()
        twin._keys, twin.contents = self._keys.copy(), self.contents.copy()
        return twin


def root_key(salt: int) -> int:
    """What the first block of a chain follows."""
    return hash(("root", salt))


def check_ids(ids: ArrayLike) -> Int64[np.ndarray, "tokens"]:
    """Token ids as a 1-D int64 array, or a ValueError."""
    array = np.asarray(ids)
    if array.ndim == 1 and array.dtype == np.int64:
        return array
    if array.size == 0:
        return np.empty(0, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(f"token ids are {array.dtype}{list(array.shape)}; expected a 1-D sequence of integers")
    return array.astype(np.int64, copy=False)
