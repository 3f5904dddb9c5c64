"""A sequence's token ids and the chained keys of its full blocks.

The key of a block is a hash of the key before it and of the block's own ids, so that it stands for every token up to
its end. A key only says where to look: the ids are compared on a hit, so that a collision can't hurt.
"""

from __future__ import annotations

from functools import cache, lru_cache
from struct import Struct
from typing import TYPE_CHECKING

import numpy as np

from refsim.checks import integers, whole_number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from jaxtyping import Int64
    from numpy.typing import ArrayLike

_INT64 = np.dtype(np.int64)
_ID_NBYTES = _INT64.itemsize
# The key of a block of these ids after the block of that key.
key_of: Callable[[tuple[int, bytes]], int] = hash


class Chain:
    """Token ids that grow, `known` of them by now, and the keys and contents (the ids' bytes) of their full blocks.

    `salt` isolates: chains of different salts share nothing. `held` says that a live sequence goes by this chain.

    >>> a, b = Chain([1, 2, 3, 4, 5], 2), Chain([1, 2, 9, 4], 2)
    >>> [x == y for x, y in zip(a.keys(), b.keys())]
    [True, False]
    """

    __slots__ = ("_keys", "_rest", "block_size", "contents", "held", "known", "salt")

    def __init__(self, ids: ArrayLike, block_size: int, salt: int = 0) -> None:
        new, block_size = check_ids(ids), whole_number("block_size", block_size, 1)
        self.block_size = block_size
        self.salt = salt
        self.held = False
        self.known = new.size
        self.contents, self._rest = _cut(new.tobytes(), block_size)
        self._keys: list[int] = []

    @property
    def ids(self) -> Int64[np.ndarray, "known"]:
        """The ids known so far, a copy."""
        return np.frombuffer(b"".join([*self.contents, self._rest]), np.int64)

    def extend(self, ids: ArrayLike) -> None:
        """Learn the ids that follow."""
        new = check_ids(ids)
        self.known += new.size
        contents, self._rest = _cut(self._rest + new.tobytes(), self.block_size)
        self.contents += contents

    def truncate(self, known: int) -> None:
        """Forget the ids from number `known` on."""
        known = whole_number("known", known, 0)
        if known < self.known:
            full, left = divmod(known, self.block_size)
            tail = self.contents[full] if full < len(self.contents) else self._rest
            self._rest = tail[: left * _ID_NBYTES]
            del self.contents[full:], self._keys[full:]
            self.known = known

    def keys(self) -> list[int]:
        """The key of every full block; only blocks new since the last call are hashed."""
        keys = self._keys
        done = len(keys)
        if done < len(self.contents):
            key, pair_key = keys[-1] if done else root_key(self.salt), key_of
            for content in self.contents[done:] if done else self.contents:
                key = pair_key((key, content))
                keys.append(key)
        return keys

    def copy(self) -> Chain:
        """A chain that can grow apart from this one."""
        twin = Chain((), self.block_size, self.salt)
        twin._rest, twin.known = self._rest, self.known
        twin._keys, twin.contents = self._keys.copy(), self.contents.copy()
        return twin


def _cut(data: bytes, block_size: int) -> tuple[list[bytes], bytes]:
    """The ids of the full blocks, and the ids of the block that isn't full."""
    nbytes = block_size * _ID_NBYTES
    full = len(data) // nbytes
    if not full:
        return [], data
    return [*_cutter(nbytes, full)(data)], data[full * nbytes :]


@lru_cache(1024)
def _cutter(nbytes: int, count: int) -> Callable[[bytes], Iterable[bytes]]:
    """What cuts so many pieces off the front of bytes, in C: slices take longer than hashing does."""
    if count <= 64:
        return Struct(f"{nbytes}s" * count).unpack_from
    pieces = np.dtype((np.void, nbytes))
    return lambda data: np.frombuffer(data, pieces, count).tolist()


@cache
def root_key(salt: int) -> int:
    """What the first block of a chain follows."""
    return hash(("root", salt))


def check_ids(ids: ArrayLike) -> Int64[np.ndarray, "tokens"]:
    """Token ids as a 1-D int64 array, or a ValueError."""
    array = np.asarray(ids)
    if array.ndim == 1 and array.dtype == _INT64:  # the most common by far, and it needs no copy
        return array
    return integers("token ids", array, 1, _INT64)
