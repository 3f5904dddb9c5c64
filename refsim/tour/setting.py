"""Everything the tour needs before it starts, checked: model, prompt, lengths, block size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from refsim import model
from refsim.model.tokenizer import Tokenizer

DEFAULT_PROMPTS = {"glassllm en": "Alice was beginning to get very tired of sitting by her sister"}
OTHER_PROMPT = "Once upon a time"
MOST_BLOCK_NBYTES = 2**29  # a pool has several


@dataclass(frozen=True)
class Setting:
    """The model, the prompt as text and ids, and the sizes. `note` says where the weights come from."""

    decoder: model.Decoder
    tokenizer: Tokenizer
    note: str
    prompt: str
    ids: tuple[int, ...]
    tokens: int
    block_size: int

    @property
    def length(self) -> int:
        """Tokens in the cache when all is written: the last new token is never fed back."""
        return len(self.ids) + self.tokens - 1

    def added(self, new: Sequence[int]) -> str:
        """The text of new tokens after the prompt's: some tokenizers drop the space before a word that stands alone."""
        given, whole = (self.tokenizer.decode(list(ids)) for ids in (self.ids, (*self.ids, *new)))
        return whole.removeprefix(given) if whole.startswith(given) else self.tokenizer.decode(list(new))


class IdsAsText:
    """Stands in for a tokenizer where there is none: a prompt is written in token ids, and so is what follows.

    >>> IdsAsText(512).encode("1 17, 3"), IdsAsText(512).decode([4, 5])
    ([1, 17, 3], ' 4 5')
    """

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def encode(self, text: str) -> list[int]:
        """Raises ValueError for anything but ids of the vocabulary."""
        words = text.replace(",", " ").split()
        if not all(word.isdecimal() and int(word) < self.vocab_size for word in words):
            raise ValueError(
                f"these weights have no tokenizer beside them: write --prompt in token ids from 0 to "
                f"{self.vocab_size - 1}, such as '1 17 3'; got {text!r}"
            )
        return [int(word) for word in words]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(f" {token}" for token in ids)


def prepare(weights: Path | None, prompt: str | None, tokens: int, block_size: int) -> Setting:
    """Load the model and check that prompt and new tokens fit its context.

    Without weights and without the package that brings the default ones, a seeded random decoder takes their place.

    Raises ValueError for sizes that don't fit, FileNotFoundError for weights that aren't there.
    """
    if tokens < 1:
        raise ValueError(f"--tokens must be 1 or more, got {tokens}")
    if block_size < 1:
        raise ValueError(f"--block-size must be 1 or more, got {block_size}")
    decoder, note = choose(weights)
    tokenizer: Tokenizer
    if decoder.tokenizer is None:
        tokenizer = IdsAsText(decoder.config.vocab)
        default = tokenizer.decode(range(min(8, tokenizer.vocab_size))).strip()
        note += " No tokenizer lies beside them, so token ids stand for text."
    else:
        tokenizer, default = decoder.tokenizer, DEFAULT_PROMPTS.get(decoder.name, OTHER_PROMPT)
    text = default if prompt is None else prompt
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"--prompt is not UTF-8 text ({error.reason} at character {error.start})") from error
    ids = tokenizer.encode(text)
    if not ids:
        raise ValueError("--prompt is empty; give the model a word to begin with")
    context = decoder.config.context
    room = context - len(ids)
    if tokens > room:
        advice = f"ask for at most {room} with --tokens" if room >= 1 else "shorten the prompt"
        raise ValueError(
            f"a prompt of {len(ids)} tokens and {tokens} new ones pass the model's context of {context}: {advice}"
        )
    config = decoder.config
    a_token = 2 * config.num_layers * config.num_kv_heads * config.head_dim * 4
    if block_size * a_token > MOST_BLOCK_NBYTES:
        raise ValueError(
            f"--block-size {block_size} makes a block of {block_size * a_token:,} bytes in float32; the tour takes up "
            f"to {MOST_BLOCK_NBYTES // a_token}, and the model's whole context is {context} tokens"
        )
    return Setting(decoder, tokenizer, note, text, tuple(ids), tokens, block_size)


def choose(weights: Path | None) -> tuple[model.Decoder, str]:
    """The decoder to show, and where it comes from."""
    if weights is not None:
        return model.load(weights), f"Weights from {weights}."
    try:
        return model.load(), 'Weights from the package glassllm, which the extra "models" brings.'
    except FileNotFoundError:
        return model.random_decoder(seed=0), (
            "No weights are installed, so a random decoder (seed 0) takes their place: its text is noise, its shapes, "
            "tables and bytes are real. For real text: pip install 'refsim[models]', or --weights PATH."
        )
