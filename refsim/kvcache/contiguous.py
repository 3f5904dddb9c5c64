"""Contiguous caches, the baselines: one stretch of slots a request, reserved on arrival, in one arena.

Three ways to guess the length: the maximum the model allows, the next power of two for the output, or (with
hindsight) exactly. Source: the attention text, the problems of contiguous caches; PagedAttention's Orca baselines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from refsim.checks import one_of, whole_number

if TYPE_CHECKING:
    from collections.abc import Hashable

RESERVATIONS = ("max", "pow2", "oracle")
FITS = ("first", "best")


def reserved_slots(reservation: str, prompt_len: int, output_len: int, max_len: int) -> int:
    """Slots set aside for a request.

    >>> [reserved_slots(r, 100, 25, 2048) for r in RESERVATIONS]
    [2048, 132, 125]
    """
    prompt_len, output_len = whole_number("prompt_len", prompt_len, 0), whole_number("output_len", output_len, 0)
    max_len = whole_number("max_len", max_len)
    if prompt_len + output_len > max_len:
        raise ValueError(f"{prompt_len} + {output_len} tokens are more than max_len {max_len}")
    if one_of("reservation", reservation, RESERVATIONS) == "max":
        return max_len
    if reservation == "pow2":
        return min(prompt_len + (1 << max(output_len - 1, 0).bit_length()), max_len)
    return prompt_len + output_len


class Arena:
    """`size` slots in a row; each key holds one stretch of them.

    `fit` chooses the hole: the `first` that is large enough, or the `best`, the smallest such.
    Neighbouring holes become one when a stretch is released; nothing is ever moved.

    >>> arena = Arena(10)
    >>> [arena.place(k, 3) for k in "abc"], arena.release("b"), arena.free, arena.largest_hole, arena.place("d", 4)
    ([0, 3, 6], None, 4, 3, None)
    """

    def __init__(self, size: int, fit: str = "first") -> None:
        self.size = whole_number("size", size, 1)
        self.fit = one_of("fit", fit, FITS)
        self.held: dict[Hashable, tuple[int, int]] = {}
        self.holes: list[tuple[int, int]] = [(0, self.size)]

    @property
    def free(self) -> int:
        """Slots that nobody holds."""
        return sum(length for _, length in self.holes)

    @property
    def largest_hole(self) -> int:
        """The longest stretch that could be placed now."""
        return max((length for _, length in self.holes), default=0)

    def place(self, key: Hashable, length: int) -> int | None:
        """Hold a stretch; its first slot, or None (and nothing changed) when no hole is large enough."""
        length = whole_number("length", length, 1)
        if key in self.held:
            raise ValueError(f"key {key!r} holds a stretch already; release it, or give a new key")
        fitting = [i for i, (_, hole) in enumerate(self.holes) if hole >= length]
        if not fitting:
            return None
        i = fitting[0] if self.fit == "first" else min(fitting, key=lambda j: self.holes[j][1])
        start, hole = self.holes[i]
        self.holes[i : i + 1] = [(start + length, hole - length)] if hole > length else []
        self.held[key] = (start, length)
        return start

    def release(self, key: Hashable) -> None:
        """Give a stretch back. Raises KeyError for a key that holds none."""
        if key not in self.held:
            raise KeyError(f"{key!r} holds nothing here: never placed, or released already")
        merged: list[tuple[int, int]] = []
        for start, length in sorted([*self.holes, self.held.pop(key)]):
            if merged and sum(merged[-1]) == start:
                merged[-1] = (merged[-1][0], merged[-1][1] + length)
            else:
                merged.append((start, length))
        self.holes = merged

    def check_invariants(self) -> None:
        """Raise AssertionError unless holes and stretches tile the arena, and no two holes touch."""
        end, last_was_hole = 0, False
        for start, length, is_hole in sorted(
            [(*h, True) for h in self.holes] + [(*s, False) for s in self.held.values()]
        ):
            assert start == end, f"slots {min(start, end)} to {max(start, end)} overlap or belong to nobody"
            assert not (is_hole and last_was_hole), f"two holes touch at {start}"
            end, last_was_hole = start + length, is_hole
        assert end == self.size, f"the arena ends at {end}, not at {self.size}"
