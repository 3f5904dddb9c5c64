"""Where a run keeps keys and values: one protocol, and the contiguous cache; the paged one is `paged_cache`.

A cache holds every layer of every sequence. `extend` makes room for the tokens of one forward pass, all sequences at
once; then each layer `write`s its rows for exactly those tokens and attention reads the sequences back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import numpy as np

from refsim.kvcache import UnknownSequence

if TYPE_CHECKING:
    from jaxtyping import Float, Float32


class Cache(Protocol):
    """What a `Session` needs of a cache. Methods raise KeyError for a sequence that is not open."""

    def open(self) -> int:
        """A new, empty sequence."""

    def fork(self, seq: int) -> int:
        """A new sequence that starts with the tokens of `seq`."""

    def close(self, seq: int) -> None:
        """Give the sequence's memory back."""

    def length(self, seq: int) -> int:
        """Tokens in the sequence."""

    def extend(self, counts: Mapping[int, int]) -> None:
        """Make room for new tokens in each sequence: all of it, or an error and none of it."""

    def truncate(self, lengths: Mapping[int, int]) -> None:
        """Drop the tokens beyond these lengths: a forward pass failed half-way."""

    def write(
        self, layer: int, k: Float[np.ndarray, "tokens kv_heads d"], v: Float[np.ndarray, "tokens kv_heads d"]
    ) -> None:
        """Store a layer's rows for the tokens of the last `extend`, in its order."""

    def gather(
        self, layer: int, seq: int
    ) -> tuple[Float[np.ndarray, "length kv_heads d"], Float[np.ndarray, "length kv_heads d"]]:
        """A layer's keys and values of a sequence, contiguous."""


class ContiguousCache:
    """Each sequence in one array that doubles when it is full; a fork copies. Simple, and wasteful in just those ways.

    >>> cache = ContiguousCache(num_layers=1, num_kv_heads=1, head_dim=2)
    >>> seq = cache.open()
    >>> cache.extend({seq: 3})
    >>> cache.write(0, np.ones((3, 1, 2)), np.ones((3, 1, 2)))
    >>> cache.gather(0, seq)[0].shape
    (3, 1, 2)
    """

    def __init__(self, num_layers: int, num_kv_heads: int, head_dim: int) -> None:
        self._shape = (2, num_layers, 0, num_kv_heads, head_dim)
        self._rows: dict[int, Float32[np.ndarray, "2 layers capacity kv_heads d"]] = {}
        self._length: dict[int, int] = {}
        self._next = 0
        self._new: list[tuple[int, int, int]] = []

    def open(self) -> int:
        seq, self._next = self._next, self._next + 1
        self._rows[seq], self._length[seq] = np.empty(self._shape, np.float32), 0
        return seq

    def fork(self, seq: int) -> int:
        length, rows = self.length(seq), self._rows[seq]
        child = self.open()
        self._rows[child], self._length[child] = rows.copy(), length
        return child

    def close(self, seq: int) -> None:
        self.length(seq)
        del self._rows[seq], self._length[seq]

    def length(self, seq: int) -> int:
        if seq not in self._length:
            raise UnknownSequence(seq)
        return self._length[seq]

    def extend(self, counts: Mapping[int, int]) -> None:
        self._new = [(seq, self._length[seq], self._length[seq] + count) for seq, count in counts.items()]
        for seq, start, stop in self._new:
            rows = self._rows[seq]
            if stop > rows.shape[2]:
                grown = np.empty((*rows.shape[:2], max(stop, 2 * rows.shape[2]), *rows.shape[3:]), np.float32)
                grown[:, :, :start] = rows[:, :, :start]
                self._rows[seq] = grown
            self._length[seq] = stop

    def truncate(self, lengths: Mapping[int, int]) -> None:
        self._length.update(lengths)

    def write(
        self, layer: int, k: Float[np.ndarray, "tokens kv_heads d"], v: Float[np.ndarray, "tokens kv_heads d"]
    ) -> None:
        at = 0
        for seq, start, stop in self._new:
            rows = self._rows[seq][:, layer, start:stop]
            rows[0], rows[1] = k[at : at + stop - start], v[at : at + stop - start]
            at += stop - start

    def gather(
        self, layer: int, seq: int
    ) -> tuple[Float32[np.ndarray, "length kv_heads d"], Float32[np.ndarray, "length kv_heads d"]]:
        k, v = self._rows[seq][:, layer, : self._length[seq]]
        return k, v
