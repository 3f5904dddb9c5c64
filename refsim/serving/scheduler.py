"""Continuous batching: first come, first served; chunked prefill under a token budget; preemption by recompute.

The order of decisions is that of current engines: first every running request in order of admission gets its next
tokens (one to decode, or the next chunk of its prompt), the youngest being preempted when blocks run out; then, if
nobody was, waiting requests are admitted while budget, seats and blocks last.
Source: the attention text, the request life; Orca, OSDI 2022; PagedAttention, SOSP 2023; Sarathi-Serve, OSDI 2024.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from refsim.checks import whole_number
from refsim.serving.memory import State

if TYPE_CHECKING:
    from refsim.serving.memory import Memory
    from refsim.serving.request import Request


@dataclass
class Step:
    """The work of one forward pass.

    `scheduled` pairs each request with its number of new tokens. `decodes` of them have one, with `decode_context`
    tokens of context between them; `chunks` are the others, as (new tokens, tokens before them). `sampled` requests
    have reached the end of what they know, and get a token. `admitted` lists the requests that just came in;
    K and V of `loaded_tokens` of theirs come from a lower tier first.
    """

    scheduled: list[tuple[State, int]] = field(default_factory=list)
    chunks: list[tuple[int, int]] = field(default_factory=list)
    decodes: int = 0
    decode_context: int = 0
    sampled: int = 0
    loaded_tokens: int = 0
    admitted: list[State] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """New tokens in the pass."""
        return self.decodes + sum(n for n, _ in self.chunks)

    def add(self, state: State, count: int) -> None:
        """Schedule the next `count` tokens of a request."""
        self.scheduled.append((state, count))
        end = state.computed + count
        if end == state.tokens:
            self.sampled += 1
        if count == 1:
            self.decodes += 1
            self.decode_context += end
        else:
            self.chunks.append((count, state.computed))


class Scheduler:
    """Waiting and running requests over one cache.

    `max_tokens` is the budget of new tokens a step, `max_seqs` the seats in the batch.
    """

    def __init__(self, memory: Memory, *, max_tokens: int = 2048, max_seqs: int = 256) -> None:
        self.memory = memory
        self.max_tokens = whole_number("max_tokens", max_tokens, 1)
        self.max_seqs = whole_number("max_seqs", max_seqs, 1)
        self.waiting: deque[State] = deque()
        self.running: list[State] = []
        self.preemptions = 0

    def add(self, request: Request) -> bool:
        """Queue a request. False, and nothing done, if it could never fit; the others go on."""
        if not self.memory.ever_fits(request):
            return False
        self.waiting.append(State(request))
        return True

    def schedule(self, now_s: float) -> Step:
        """Decide on the next step, and make room for it."""
        step = Step()
        budget = self.max_tokens
        before = self.preemptions
        i, grow = 0, self.memory.grow
        while i < len(self.running) and budget:
            state = self.running[i]
            count = state.tokens - state.computed
            if count > budget:
                count = budget
            if grow(state, count) or self._preempt_for(state, count):
                step.add(state, count)
                budget -= count
                i += 1
        if self.preemptions == before:
            self._admit(step, budget, now_s)
        step.loaded_tokens = self.memory.loaded_tokens()
        return step

    def complete(self, step: Step, now_s: float) -> list[State]:
        """The step has run: book its tokens, and return the requests that are finished."""
        finished = []
        commit = self.memory.commit
        for state, count in step.scheduled:
            state.computed = computed = state.computed + count
            commit(state, count)
            if computed == state.tokens:
                state.tokens = known = computed + 1
                if state.first_token_s < 0:
                    state.first_token_s = now_s
                if known == state.total_len:
                    finished.append(state)
        if finished:
            for state in finished:
                self.memory.stop(state)
            gone = {id(state) for state in finished}
            self.running = [s for s in self.running if id(s) not in gone]
        return finished

    def fork(self, step: Step, state: State, count: int, index: int) -> State:
        """A second output of a request whose prompt this step completes: request `index`, with the same blocks.

        To be called between `schedule` and `complete`. The twin counts as scheduled for the same `count` tokens.
        """
        twin = State(replace(state.request, index=index))
        twin.tokens, twin.computed, twin.admitted_s = state.tokens, state.computed, state.admitted_s
        self.memory.fork(state, twin)
        self.running.append(twin)
        step.scheduled.append((twin, count))
        return twin

    def _preempt_for(self, state: State, count: int) -> bool:
        """Preempt the youngest until there is room; False when that was the request itself."""
        while True:
            victim = self.running.pop()
            self.memory.stop(victim)
            victim.computed = 0
            victim.preemptions += 1
            self.preemptions += 1
            self.waiting.appendleft(victim)
            if victim is state:
                return False
            if self.memory.grow(state, count):
                return True

    def _admit(self, step: Step, budget: int, now_s: float) -> None:
        while self.waiting and budget and len(self.running) < self.max_seqs:
            state = self.waiting[0]
            cached = self.memory.start(state, budget)
            if cached is None:
                break
            self.waiting.popleft()
            self.running.append(state)
            step.admitted.append(state)
            if state.admitted_s < 0:
                state.admitted_s, state.cached_tokens = now_s, cached
            state.computed = cached
            count = min(state.tokens - cached, budget)
            step.add(state, count)
            budget -= count
