"""A sequence's token ids and the chained hashes of its full blocks, computed for all blocks at once.

The hash of block i must stand for every token up to its end. With c_j the hash of block j's own tokens, it is the
polynomial h_i = h_{i-1} * M + c_i modulo 2**64. M is odd, so it has an inverse, and h_i / M**i is a running sum of
c_j / M**j: one cumulative sum hashes a whole prompt. A hash only says where to look; the ids are compared on a hit.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Int64, UInt64
    from numpy.typing import ArrayLike

_M = 0x9E3779B97F4A7C15
_M_INVERSE = pow(_M, -1, 2**64)
_STRIDE = 0xD6E8FEB86659FD93


class Chain:
    """Token ids that grow, and the hashes of the full blocks among them.

    `salt` isolates: chains of different salts never share a hash by the same tokens.

    >>> a, b = Chain([1, 2, 3, 4, 5], 2), Chain([1, 2, 9, 4], 2)
    >>> a.hashes().size, bool(a.hashes()[0] == b.hashes()[0]), bool(a.hashes()[1] == b.hashes()[1])
    (2, True, False)
    """

    __slots__ = ("_buffer", "_hashes", "block_size", "known", "salt")

    def __init__(self, ids: ArrayLike, block_size: int, salt: int = 0) -> None:
        self._buffer = check_ids(ids)
        self.known = self._buffer.size
        self.block_size = block_size
        self.salt = salt
        self._hashes: UInt64[np.ndarray, "full_blocks"] = np.empty(0, np.uint64)

    @property
    def ids(self) -> Int64[np.ndarray, "known"]:
        """The ids known so far."""
        return self._buffer[: self.known]

    def extend(self, ids: Int64[np.ndarray, "more"]) -> None:
        """Learn the ids that follow."""
        end = self.known + ids.size
        if end > self._buffer.size:
            grown = np.empty(max(2 * self._buffer.size, end, 16), np.int64)
            grown[: self.known] = self.ids
            self._buffer = grown
        self._buffer[self.known : end] = ids
        self.known = end

    def blocks(self, first: int, last: int) -> Int64[np.ndarray, "blocks block_size"]:
        """The ids of full blocks `first .. last - 1`."""
        size = self.block_size
        return self._buffer[first * size : last * size].reshape(last - first, size)

    def hashes(self) -> UInt64[np.ndarray, "full_blocks"]:
        """The chained hash of every full block; only blocks new since the last call are computed."""
        done, full = self._hashes.size, self.known // self.block_size
        if full > done:
            previous = int(self._hashes[-1]) if done else root_hash(self.salt)
            fresh = chained(self.blocks(done, full), previous)
            self._hashes = np.concatenate([self._hashes, fresh]) if done else fresh
        return self._hashes

    def copy(self) -> Chain:
        """A chain that can grow apart from this one."""
        twin = Chain(self.ids.copy(), self.block_size, self.salt)
        twin._hashes = self._hashes
        return twin


def check_ids(ids: ArrayLike) -> Int64[np.ndarray, "tokens"]:
    """Token ids as a 1-D int64 array of non-negative numbers, or a ValueError."""
    array = np.asarray(ids)
    if array.size == 0:
        return np.empty(0, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(f"token ids are {array.dtype}{list(array.shape)}; expected a 1-D sequence of integers")
    if array.min() < 0:
        raise ValueError(f"token id {array.min()} is negative")
    return array.astype(np.int64)


def chained(tokens: Int64[np.ndarray, "blocks block_size"], previous: int) -> UInt64[np.ndarray, "blocks"]:
    """Hashes of consecutive blocks, the first of which follows a block (or a root) of hash `previous`."""
    count, size = tokens.shape
    content = tokens.view(np.uint64) @ _weights(size)
    content ^= content >> np.uint64(29)
    powers, inverses = _powers(1 << (count - 1).bit_length() if count > 1 else 1)
    running = np.cumsum(content * inverses[:count], dtype=np.uint64) + np.uint64(previous * _M % 2**64)
    return running * powers[:count]


def root_hash(salt: int) -> int:
    """What the first block of a chain follows."""
    return _mix(salt)


@lru_cache(maxsize=64)
def _weights(size: int) -> UInt64[np.ndarray, "size"]:
    return np.array([_mix(i + 1) | 1 for i in range(size)], np.uint64)


@lru_cache(maxsize=64)
def _powers(count: int) -> tuple[UInt64[np.ndarray, "count"], UInt64[np.ndarray, "count"]]:
    powers, inverses, p, q = [], [], 1, 1
    for _ in range(count):
        powers.append(p)
        inverses.append(q)
        p, q = p * _M % 2**64, q * _M_INVERSE % 2**64
    return np.array(powers, np.uint64), np.array(inverses, np.uint64)


def _mix(value: int) -> int:
    value = (value + 1) * _STRIDE % 2**64
    value ^= value >> 32
    value = value * _M % 2**64
    return value ^ (value >> 29)
