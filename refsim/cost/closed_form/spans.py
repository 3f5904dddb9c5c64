"""Sums over the query tiles of a sequence, without walking them: how many keys, key tiles and table entries in all.

Full query tile i, of t tokens, sees the keys [first_i, stop_i): two linear functions of i, with slope t, clamped to the
sequence. Between the points where a clamp sets in or lets go there are at most five stretches of tiles; within each,
either edge stands still or moves by t a tile, and a sum of ceilings of a linear function is a `floor_sum`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import gcd

from refsim.variant import Band


def floor_sum(count: int, a: int, b: int, m: int) -> int:
    """The sum of (a * i + b) // m for i from 0 to count - 1, by Euclid's algorithm on a and m.

    The number of rounds depends on a and m alone. Any sign of b; a must not be negative.

    Source: "Concrete Mathematics", chapter 3 (floor and ceiling sums), made recursive.

    >>> floor_sum(4, 3, 1, 2), sum((3 * i + 1) // 2 for i in range(4))
    (10, 10)
    """
    total = 0
    while count > 0:
        total += count * (count - 1) // 2 * (a // m) + count * (b // m)
        a, b = a % m, b % m
        # What is left counts the grid points under a line of slope a / m < 1; count them by rows, not by columns.
        last = a * count + b
        count, b, a, m = last // m, last % m, m, a
    return total


@dataclass(frozen=True)
class Edge:
    """One edge of the visible keys over a stretch of tiles: at + step * i, i counted from the stretch's first tile."""

    at: int
    step: int

    def __call__(self, i: int) -> int:
        return self.at + self.step * i


@dataclass(frozen=True)
class Stretch:
    """`count` neighbouring query tiles, all of which see some key; tile i sees [first(i), stop(i))."""

    count: int
    first: Edge
    stop: Edge

    def keys(self) -> int:
        """Keys seen, over all tiles."""
        pairs = self.count * (self.count - 1) // 2
        return self.count * (self.stop.at - self.first.at) + pairs * (self.stop.step - self.first.step)

    def tiles(self, size: int, unit: int) -> int:
        """Key tiles over all query tiles, where a query tile's first key tile begins at a multiple of `unit`.

        unit divides size. Query tile i has ceil((stop(i) - first(i) // unit * unit) / size) of them.
        """
        count, first, stop = self.count, self.first, self.stop
        if first.step == 0:
            origin = first.at // unit * unit
            return floor_sum(count, stop.step, stop.at - origin + size - 1, size)
        if stop.step == 0:
            # -ceil(x) = floor(-x), and the inner floor by `unit` dissolves in the outer one, since unit divides size.
            end = -(-stop.at // unit) * unit
            return -floor_sum(count, first.step, first.at - end, size)
        # Both edges move: the span is as long for every tile, and only u = first mod unit differs. The ceiling of
        # (length + u) / size takes one of two values; count the tiles whose u lifts it to the higher one.
        length = stop.at - first.at
        low = -(-length // size)
        lifting = low * size - length + 1  # the smallest u that needs one more tile
        if lifting >= unit:
            return count * low
        return count * low + (
            floor_sum(count, first.step, first.at + unit - lifting, unit) - floor_sum(count, first.step, first.at, unit)
        )

    def longest(self, size: int, unit: int) -> int:
        """Keys of the longest key tile of any query tile.

        Query tiles whose first keys lie alike within `unit` follow one another every unit / gcd(t, unit). Among these,
        if both edges move all are alike; if only the first moves, the earliest sees most. If only the last edge moves,
        the last tile sees most of all.
        """
        alike = unit // gcd(self.first.step, unit)
        best = 0
        for i in (*range(min(alike, self.count)), self.count - 1):
            best = max(best, longest_tile(self.first(i), self.stop(i), size, unit))
            if best == size:
                break
        return best


def longest_tile(first: int, stop: int, size: int, unit: int) -> int:
    """Keys of the longest key tile over [first, stop)."""
    edge = first // unit * unit + size
    if stop <= edge:
        return stop - first
    return max(edge - first, min(stop - edge, size))


def stretches(band: Band, tile_tokens: int, start: int, tiles: int, low: int, high: int) -> Iterator[Stretch]:
    """The stretches of `tiles` query tiles from token `start` on, with the keys cut to [low, high).

    Tiles that see none of these keys are left out.
    """
    if low >= high or tiles <= 0:
        return
    t = tile_tokens
    # Where the edges would be without clamps, for tile 0; None where the band has no such side.
    first = None if band.left is None else start + band.offset - band.left
    stop = None if band.right is None else start + t - 1 + band.offset + band.right + 1
    # Tiles before `begin` end at or below `low`; tiles from `end` on begin at or above `high`.
    begin = 0 if stop is None else max(0, (low - stop) // t + 1)
    end = tiles if first is None else min(tiles, -(-(high - first) // t))
    moves = 0 if first is None else max(0, -(-(low - first) // t))  # the first edge leaves `low` here
    rests = tiles if stop is None else max(0, -(-(high - stop) // t))  # the last edge has reached `high` here
    cuts = sorted({begin, max(begin, end), *(cut for cut in (moves, rests) if begin < cut < end)})
    for i, after in pairwise(cuts):
        yield Stretch(
            after - i,
            Edge(low, 0) if first is None or i < moves else Edge(first + t * i, t),
            Edge(high, 0) if stop is None or i >= rests else Edge(stop + t * i, t),
        )
