"""The contiguous baselines behind the scheduler's interface."""

from __future__ import annotations

from typing import TYPE_CHECKING

from refsim.kvcache.contiguous import Arena, reserved_slots
from refsim.serving.memory import Fill

if TYPE_CHECKING:
    from refsim.serving.memory import State
    from refsim.serving.request import Request


class ContiguousMemory:
    """Every request gets its whole stretch at admission, so that it never grows and is never preempted.

    `refused_with_room` counts the requests that had to wait although enough slots were free, only not in one piece.
    """

    def __init__(self, num_slots: int, reservation: str, *, fit: str = "first", max_len: int = 2048) -> None:
        reserved_slots(reservation, 1, 1, max_len)
        self.arena = Arena(num_slots, fit)
        self.reservation = reservation
        self.max_len = max_len
        self._refused: set[int] = set()
        self._written: dict[int, int] = {}

    @property
    def refused_with_room(self) -> int:
        """Requests that external fragmentation alone kept waiting."""
        return len(self._refused)

    def ever_fits(self, request: Request) -> bool:
        """Within the model's maximum, and the arena's size."""
        return request.total_len <= self.max_len and self._need(request) <= self.arena.size

    def start(self, state: State, budget: int) -> int | None:
        """Reserve the stretch."""
        need = self._need(state.request)
        if self.arena.place(state.request.index, need) is None:
            if self.arena.free >= need:
                self._refused.add(state.request.index)
            return None
        self._written[state.request.index] = min(state.tokens, budget)
        return 0

    def grow(self, state: State, count: int) -> bool:
        """The slots are there."""
        self._written[state.request.index] += count
        return True

    def commit(self, state: State, count: int) -> None:
        """Nothing is shared."""

    def fork(self, state: State, twin: State) -> None:
        """Contiguous stretches can't be shared. Raises NotImplementedError."""
        raise NotImplementedError("a contiguous cache can't share a prompt between outputs; use a paged one")

    def stop(self, state: State) -> None:
        """Release the stretch."""
        self.arena.release(state.request.index)
        del self._written[state.request.index]

    def loaded_tokens(self) -> int:
        """There is no lower tier."""
        return 0

    def used_fraction(self) -> float:
        """Slots reserved, of all."""
        return 1 - self.arena.free / self.arena.size

    def fill(self, running: list[State], head: Request | None) -> Fill:
        """Free slots are external waste while the head of the queue fits in no hole."""
        written = sum(self._written.values())
        wanted = sum(s.request.total_len for s in running)
        held = self.arena.size - self.arena.free
        stuck = head is not None and self._need(head) > self.arena.largest_hole
        return Fill(self.arena.size, written, wanted - written, held - wanted, self.arena.free if stuck else 0)

    def _need(self, request: Request) -> int:
        return reserved_slots(self.reservation, request.prompt_len, request.output_len, self.max_len)
