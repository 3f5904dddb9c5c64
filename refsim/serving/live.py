"""A replay with real values: the scheduler's steps run through a decoder over the paged cache.

Nothing of the text may depend on who else is served: sharing, preemption, chunking and batching must leave each
request's ids as they are when it runs alone. Source: the attention text, the whole workflow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from refsim.checks import whole_number
from refsim.kvcache import BlockManager, PagedKV
from refsim.kvcache.chain import Chain
from refsim.model.paged_cache import PagedCache
from refsim.serving.memory import PagedMemory, State
from refsim.serving.request import Request
from refsim.serving.scheduler import Scheduler, Step

if TYPE_CHECKING:
    from jaxtyping import Int64

    from refsim.model.decoder import Decoder


@dataclass(frozen=True)
class LiveRequest:
    """A prompt, how many ids to generate, and `samples`: the first is greedy, the i-th begins with the i-th best id."""

    prompt: tuple[int, ...]
    output_len: int
    samples: int = 1

    def __post_init__(self) -> None:
        whole_number("samples", self.samples, 1)


@dataclass(frozen=True)
class LiveResult:
    """Generated ids by (request, sample), and how often the cache did what could have gone wrong."""

    ids: dict[tuple[int, int], list[int]]
    steps: int
    preemptions: int
    hit_tokens: int
    copies: int
    evictions: int


class _LiveCache(PagedCache):
    """A paged cache whose room is the scheduler's to give: a forward pass finds its slots allocated already."""

    def __init__(self, kv: PagedKV) -> None:
        super().__init__(kv)
        self.states: dict[int, State] = {}

    def length(self, seq: int) -> int:
        return self.states[seq].computed

    def extend(self, counts: Mapping[int, int]) -> None:
        self._slots = [
            np.concatenate([self.manager.slot_mapping(seq, self.length(seq), count) for seq, count in counts.items()])
        ]

    def truncate(self, lengths: Mapping[int, int]) -> None:
        """Nothing was given, so nothing is taken back."""


def run_live(
    decoder: Decoder,
    requests: Sequence[LiveRequest],
    *,
    num_blocks: int,
    block_size: int = 16,
    max_tokens: int = 64,
    max_seqs: int = 16,
    prefix_cache: bool = True,
    attention: str = "paged",
    **options: Any,
) -> LiveResult:
    """Serve requests, all of which wait from the start; a small pool makes them preempt each other.

    Raises ValueError for a request that the pool or the model's context can't hold.

    >>> from refsim import model
    >>> decoder = model.random_decoder(seed=1)
    >>> wants = [LiveRequest((1, 2, 3, 4, 5), 4), LiveRequest((1, 2, 3, 4, 6), 4, samples=2)]
    >>> result = run_live(decoder, wants, num_blocks=8, block_size=4)
    >>> result.ids[0, 0] == decoder.generate([1, 2, 3, 4, 5], 4), result.copies
    (True, 1)
    """
    manager = BlockManager(num_blocks, block_size, prefix_cache=prefix_cache, record=True)
    config = decoder.config
    cache = _LiveCache(PagedKV(manager, config.num_layers, config.num_kv_heads, config.head_dim))
    session = decoder.start(attention=attention, cache=cache, **options)
    scheduler = Scheduler(PagedMemory(manager), max_tokens=max_tokens, max_seqs=max_seqs)
    if (most := max((r.samples for r in requests), default=0)) > config.vocab:
        raise ValueError(f"{most} samples begin with as many ids, and the model knows {config.vocab}")
    ids = _queue(scheduler, cache, requests, config.context)
    names = {i: (i, 0) for i in range(len(requests))}
    steps = 0
    while scheduler.waiting or scheduler.running:
        step = scheduler.schedule(float(steps))
        steps += 1
        batch = {s.request.index: ids[s.request.index].ids[s.computed : s.computed + n] for s, n in step.scheduled}
        logits = session.forward(batch)
        last = {index: rows[-1] for index, rows in logits.items()}
        _fork_samples(scheduler, step, cache, requests, names, ids, last)
        for state, count in step.scheduled:
            if state.computed + count == state.tokens:
                best = np.argsort(-last[state.request.index], kind="stable")
                ids[state.request.index].extend([int(best[names[state.request.index][1] if _first(state) else 0])])
        scheduler.complete(step, float(steps))
    events = manager.events or []
    manager.check_invariants()
    return LiveResult(
        ids={names[i]: chain.ids[cache.states[i].request.prompt_len :].tolist() for i, chain in ids.items()},
        steps=steps,
        preemptions=scheduler.preemptions,
        hit_tokens=sum(len(e.blocks) * block_size for e in events if e.kind == "hit"),
        copies=sum(len(e.blocks) for e in events if e.kind == "copy"),
        evictions=sum(len(e.blocks) for e in events if e.kind == "evict"),
    )


def alone(decoder: Decoder, request: LiveRequest, sample: int = 0, **options: Any) -> list[int]:
    """The ids of a request that nobody shares anything with: the decoder by itself.

    >>> from refsim import model
    >>> len(alone(model.random_decoder(seed=1), LiveRequest((1, 2, 3), 4, samples=2), 1))
    4
    """
    prompt = list(request.prompt)
    last = decoder.logits(prompt, **options)[-1]
    first = int(np.argsort(-last, kind="stable")[sample])
    return [first, *decoder.generate([*prompt, first], request.output_len - 1, **options)]


def _queue(scheduler: Scheduler, cache: _LiveCache, requests: Sequence[LiveRequest], context: int) -> dict[int, Chain]:
    chains: dict[int, Chain] = {}
    for i, wanted in enumerate(requests):
        request = Request(i, 0.0, len(wanted.prompt), wanted.output_len)
        if request.total_len - 1 > context:
            raise ValueError(f"request {i} of {request.total_len} tokens is longer than the model's context {context}")
        if not scheduler.add(request):
            raise ValueError(f"request {i} of {request.total_len} tokens is larger than the pool")
        state = scheduler.waiting[-1]
        state.chain = chains[i] = Chain(wanted.prompt, cache.manager.block_size)
        cache.states[i] = state
    return chains


def _first(state: State) -> bool:
    return state.tokens == state.request.prompt_len


def _fork_samples(
    scheduler: Scheduler,
    step: Step,
    cache: _LiveCache,
    requests: Sequence[LiveRequest],
    names: dict[int, tuple[int, int]],
    ids: dict[int, Chain],
    last: dict[int, np.ndarray],
) -> None:
    """A prompt that is done begets its other samples: they share its blocks, and choose another first id."""
    for state, count in list(step.scheduled):
        index = state.request.index
        request, sample = names[index]
        if sample or not _first(state) or state.computed + count < state.tokens:
            continue
        for other in range(1, requests[request].samples):
            child = len(names)
            names[child] = (request, other)
            twin = scheduler.fork(step, state, count, child)
            twin.chain = cache.manager.chain(child)
            assert twin.chain is not None
            ids[child] = twin.chain
            cache.states[child] = twin
            last[child] = last[index]


def ids_of_trace(request: Request, vocab: int, rng: np.random.Generator) -> Int64[np.ndarray, "prompt_len"]:
    """Prompt ids below `vocab` for a request of a trace: equal where its block hashes are, else drawn by chance."""
    ids = request.token_ids()
    return rng.integers(0, vocab, request.prompt_len) if ids is None else ids[: request.prompt_len] * 7919 % vocab
