"""One run of a decoder: the sequences in flight, their cache, the attention algorithm, and every byte it moved."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from refsim.checks import whole_number
from refsim.machine import Ledger
from refsim.model import attend, rope, sampling

if TYPE_CHECKING:
    from jaxtyping import Float32, Int, Int32

    from refsim.model.caches import Cache
    from refsim.model.decoder import Decoder


class Session:
    """Sequences that share a decoder, a cache and an attention algorithm. Build it with `Decoder.start`.

    The life of a request: `open` it, `prefill` its prompt (whole or in chunks), `step` it a token at a time, perhaps
    `fork` it, and `close` it, which gives its memory back. One `forward` may carry several sequences, each with as many
    new tokens as it likes. `ledger` adds up what the attention calls moved (nothing for algorithms that do not count).

    >>> from refsim import model
    >>> run = model.random_decoder(seed=0).start(attention="oracle")
    >>> a = run.open()
    >>> run.prefill(a, [72, 101]).shape
    (2, 256)
    >>> b = run.fork(a)
    >>> sorted(run.step({a: 108, b: 109}))
    [0, 1]
    >>> run.length(a), run.length(b)
    (3, 3)
    """

    def __init__(
        self,
        decoder: Decoder,
        attention: str | attend.Attention | Callable[..., Any],
        *,
        cache: Cache | None,
        block_size: int,
        sequences: int,
        length: int | None,
        options: Mapping[str, Any],
    ) -> None:
        config = decoder.config
        self.max_length = config.context if length is None else length
        if self.max_length > config.context:
            raise ValueError(
                f"{self.max_length} tokens are more than the model's context of {config.context}: "
                f"shorten the prompt or ask for fewer new tokens"
            )
        sequences = whole_number("sequences", sequences, 1)
        self.decoder = decoder
        self.attention = attend.resolve(attention, options)
        if cache is None:
            cache = self.attention.new_cache(config, block_size, sequences, self.max_length)
        self.cache = cache
        self.attention.check_cache(self.cache)
        self.ledger = Ledger()
        self._inv_freq = config.inv_freq(self.max_length)
        self._attention_factor = 1.0 if config.rope_scaling is None else config.rope_scaling.attention_factor

    def open(self) -> int:
        """A new, empty sequence's id."""
        return self.cache.open()

    def fork(self, seq: int) -> int:
        """A new sequence with the same past. A paged cache shares its blocks until one of the two writes."""
        return self.cache.fork(seq)

    def close(self, seq: int) -> None:
        """Forget a sequence and give its memory back."""
        self.cache.close(seq)

    def length(self, seq: int) -> int:
        """Tokens of the sequence that are in the cache."""
        return self.cache.length(seq)

    def prefill(self, seq: int, ids: Sequence[int], *, chunk: int | None = None) -> Float32[np.ndarray, "tokens vocab"]:
        """Feed a prompt, `chunk` tokens at a time (default: all at once); the logits after each of its tokens.

        Raises as `forward` does; chunks fed before one fails stay in the cache.
        """
        prompt = self._checked(seq, ids)
        size = len(prompt) if chunk is None else whole_number("chunk", chunk, 1)
        parts = [self.forward({seq: prompt[at : at + size]})[seq] for at in range(0, len(prompt), size)]
        return np.concatenate(parts)

    def stream(
        self,
        seq: int,
        ids: Sequence[int],
        n: int,
        *,
        temperature: float = 0.0,
        rng: np.random.Generator | None = None,
        stop: Collection[int] = (),
        chunk: int | None = None,
    ) -> Iterator[int]:
        """Prefill a prompt and yield up to n new ids, each as soon as it is known.

        Greedy at temperature 0; above it, sampled with `rng`. Ends at an id in `stop`, which is not yielded. The last
        id is not fed back: the sequence ends up len(ids) + n - 1 tokens long.
        """
        n = whole_number("n", n, 0, wrong=TypeError)
        choose = sampling.chooser(temperature, rng)
        self._checked(seq, ids)
        return sampling.stream(self, seq, ids, n, choose, frozenset(stop), chunk)

    def step(self, tokens: Mapping[int, int]) -> dict[int, Float32[np.ndarray, "vocab"]]:
        """Feed one token to each sequence given, all in one batch; the logits that follow, by sequence."""
        return {seq: logits[-1] for seq, logits in self.forward({s: [t] for s, t in tokens.items()}).items()}

    def forward(
        self, batch: Mapping[int, Sequence[int] | Int[np.ndarray, "new"]]
    ) -> dict[int, Float32[np.ndarray, "tokens vocab"]]:
        """Feed new tokens to sequences, a ragged batch; the logits after each of them, by sequence.

        Raises ValueError for an empty batch or prompt, ids outside the vocabulary and sequences beyond the context,
        KeyError for a sequence that is not open. Whatever fails, the cache is as it was.
        """
        if not batch:
            raise ValueError("forward needs at least one sequence with new tokens")
        seqs = list(batch)
        new = [self._checked(seq, ids) for seq, ids in batch.items()]
        starts = np.cumsum([0, *map(len, new)], dtype=np.int32)
        before = {seq: self.length(seq) for seq in seqs}
        positions = np.concatenate([before[seq] + np.arange(len(ids)) for seq, ids in zip(seqs, new, strict=True)])
        cos, sin = rope.angles(positions, self._inv_freq, self._attention_factor)

        self.cache.extend({seq: len(ids) for seq, ids in zip(seqs, new, strict=True)})
        try:
            x = self.decoder.hidden(
                np.concatenate(new), cos.astype(np.float32), sin.astype(np.float32), self._attend(seqs, starts)
            )
        except BaseException:
            self.cache.truncate(before)
            raise
        logits = self.decoder.unembed(x)
        return {seq: logits[starts[i] : starts[i + 1]] for i, seq in enumerate(seqs)}

    def _attend(self, seqs: list[int], starts: Int32[np.ndarray, "seqs+1"]) -> Callable[..., np.ndarray]:
        config = self.decoder.config
        scale = config.head_dim**-0.5

        def attend_layer(layer: int, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
            self.cache.write(layer, k, v)
            out, ledgers = self.attention(q, self.cache, layer, seqs, starts, scale, config.window(layer))
            for ledger in ledgers:
                self.ledger += ledger
            return out

        return attend_layer

    def _checked(self, seq: int, ids: Sequence[int] | Int[np.ndarray, "new"]) -> Int[np.ndarray, "tokens"]:
        """The ids as an array, or a clear error; nothing is changed."""
        array = np.asarray(ids)
        vocab = self.decoder.config.vocab
        if array.ndim != 1 or array.size == 0:
            raise ValueError(f"a prompt is a non-empty list of token ids; got shape {array.shape}")
        if array.dtype.kind not in "iu":
            raise TypeError(f"token ids are whole numbers; got {array.dtype}. Encode text with decoder.tokenizer first")
        if array.min() < 0 or array.max() >= vocab:
            raise ValueError(f"token ids must lie in [0, {vocab}); got {int(array.min())} to {int(array.max())}")
        if self.length(seq) + array.size > self.max_length:
            raise ValueError(
                f"sequence {seq} has {self.length(seq)} tokens; {array.size} more pass this run's limit of "
                f"{self.max_length} (the model's context is {self.decoder.config.context})"
            )
        return array.astype(np.int64)
