"""What a scheduler asks of a cache: start, grow, stop. One scheduler serves paged and contiguous caches alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from refsim.kvcache import BlockManager, OutOfBlocks, blocks_for
from refsim.kvcache.chain import Chain

if TYPE_CHECKING:
    from refsim.serving.request import Request


class State:
    """Where a live request stands: `tokens` are known (prompt and generated), `computed` of them are in the cache."""

    __slots__ = (
        "admitted_s",
        "cached_tokens",
        "chain",
        "computed",
        "first_token_s",
        "preemptions",
        "request",
        "tokens",
        "total_len",
    )

    def __init__(self, request: Request) -> None:
        self.request = request
        self.tokens = request.prompt_len
        self.total_len = request.total_len
        self.computed = 0
        self.cached_tokens = 0
        self.preemptions = 0
        self.admitted_s = -1.0
        self.first_token_s = -1.0
        self.chain: Chain | None = None


@dataclass(frozen=True)
class Fill:
    """Slots of the cache, in tokens: `total = written + reserved + internal + external + free`.

    `reserved` will be written later, `internal` never will be, `external` is free but can't be given to the request
    that waits at the head of the queue. A slot that several requests share counts once.
    """

    total: int
    written: int
    reserved: int
    internal: int
    external: int

    @property
    def free(self) -> int:
        """Slots nobody holds, and that could be given away."""
        return max(0, self.total - self.written - self.reserved - self.internal - self.external)


class Memory(Protocol):
    """A cache as the scheduler sees it. `start` and `grow` either do it all or change nothing."""

    def ever_fits(self, request: Request) -> bool:
        """Whether the request would fit in an empty cache."""

    def start(self, state: State, budget: int) -> int | None:
        """Admit a request with room for `budget` tokens beyond those found cached, which it returns; None: no room."""

    def grow(self, state: State, count: int) -> bool:
        """Make room for `count` more tokens."""

    def commit(self, state: State, count: int) -> None:
        """The last `count` of the first `state.computed` tokens have been written."""

    def fork(self, state: State, twin: State) -> None:
        """The twin starts with what the request has."""

    def stop(self, state: State) -> None:
        """The request leaves, finished or preempted."""

    def loaded_tokens(self) -> int:
        """Tokens brought back from a lower tier since the last call."""

    def used_fraction(self) -> float:
        """The part of the cache that live requests hold."""

    def fill(self, running: list[State], head: Request | None) -> Fill:
        """What the slots are used for now."""


class PagedMemory:
    """The block manager behind the scheduler's interface.

    With `whole_prompt_must_fit` a request is admitted only if its whole prompt has room now, although blocks are taken
    chunk by chunk: that keeps prefills from preempting each other.
    """

    def __init__(self, manager: BlockManager, *, whole_prompt_must_fit: bool = True) -> None:
        self.manager = manager
        self.block_size = manager.block_size
        self.whole_prompt_must_fit = whole_prompt_must_fit
        self._loaded = 0

    def ever_fits(self, request: Request) -> bool:
        """The last token generated needs no slot: nothing comes after it."""
        return blocks_for(request.total_len - 1, self.manager.block_size) <= self.manager.pool.usable

    def start(self, state: State, budget: int) -> int | None:
        """Share what is cached, and take blocks for the first chunk."""
        if state.chain is None and self.manager.prefix is not None:
            ids = state.request.token_ids()
            state.chain = None if ids is None else Chain(ids, self.manager.block_size)
        try:
            return self.manager.allocate(
                state.request.index,
                state.tokens if state.chain is None else state.chain,
                upto=state.tokens,
                chunk=budget,
                whole_must_fit=self.whole_prompt_must_fit,
            )
        except OutOfBlocks:
            return None

    def grow(self, state: State, count: int) -> bool:
        """One slot a decoded token, a block when one is full."""
        try:
            self.manager.append(state.request.index, count)
        except OutOfBlocks:
            return False
        return True

    def commit(self, state: State, count: int) -> None:
        """Enter full blocks into the prefix cache."""
        if state.chain is not None and state.computed % self.block_size < count:
            self.manager.commit(state.request.index, state.computed)

    def fork(self, state: State, twin: State) -> None:
        """Share the blocks."""
        self.manager.fork(state.request.index, twin.request.index)

    def stop(self, state: State) -> None:
        """Drop the references."""
        self.manager.free(state.request.index)

    def loaded_tokens(self) -> int:
        """From the host tier, where there is one."""
        host = None if self.manager.prefix is None else self.manager.prefix.host
        if host is None:
            return 0
        fresh, self._loaded = host.loaded - self._loaded, host.loaded
        return fresh * self.manager.block_size

    def used_fraction(self) -> float:
        """Blocks in tables over all usable ones; what only the prefix cache holds counts as free, as engines report."""
        pool = self.manager.pool
        return 1 - self.manager.available / pool.usable

    def fill(self, running: list[State], head: Request | None) -> Fill:
        """Waste is the unfilled end of each sequence's last block; any free block serves anybody."""
        stats = self.manager.stats()
        size = self.manager.block_size
        ahead = 0
        for state in running:
            length = self.manager.length(state.request.index)
            ahead += min(-length % size, max(0, state.request.total_len - 1 - length))
        return Fill(
            total=stats.usable * size,
            written=stats.used * size - stats.unused_slots,
            reserved=min(ahead, stats.unused_slots),
            internal=max(0, stats.unused_slots - ahead),
            external=0,
        )
