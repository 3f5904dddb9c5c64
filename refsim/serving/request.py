"""A request of a trace, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from refsim.checks import is_finite, whole_number

if TYPE_CHECKING:
    from jaxtyping import Int64

# Ids that no trace names: the tokens after a request's last hashed block are its own and nobody else's.
_PRIVATE = 1 << 40
_PRIVATE_EACH = 1 << 21


@dataclass(frozen=True)
class Request:
    """`prompt_len` tokens come in at `arrival_s`, `output_len` are to be generated.

    Traces that allow prefix caching name blocks, not tokens: `hash_ids[i]` stands for the tokens from `i * hash_block`
    on, equal numbers for equal blocks after equal prefixes, `hashed_len` tokens in all.
    """

    index: int
    arrival_s: float
    prompt_len: int
    output_len: int
    hash_ids: tuple[int, ...] = ()
    hash_block: int = 0
    hashed_len: int = 0

    def __post_init__(self) -> None:
        for name, least in (("prompt_len", 1), ("output_len", 1), ("hash_block", 0), ("hashed_len", 0)):
            object.__setattr__(self, name, whole_number(name, getattr(self, name), least))
        if not is_finite(self.arrival_s) or self.arrival_s < 0:
            raise ValueError(f"arrival is {self.arrival_s!r} s; expected 0 or later")
        if self.hashed_len > min(len(self.hash_ids) * self.hash_block, self.total_len):
            raise ValueError(
                f"{len(self.hash_ids)} hashes of {self.hash_block} tokens don't name {self.hashed_len} of "
                f"{self.total_len} tokens"
            )
        if self.hash_ids and not 0 <= min(self.hash_ids) <= max(self.hash_ids) < _PRIVATE // max(self.hash_block, 1):
            raise ValueError(
                f"hash_ids go from {min(self.hash_ids)} to {max(self.hash_ids)}; expected 0 to "
                f"{_PRIVATE // max(self.hash_block, 1) - 1} in blocks of {self.hash_block}. Number the blocks from 0"
            )

    @property
    def total_len(self) -> int:
        """Prompt and output together."""
        return self.prompt_len + self.output_len

    def token_ids(self) -> Int64[np.ndarray, "total_len"] | None:
        """Ids that are equal where the trace's blocks are, or None for a trace without block hashes.

        >>> Request(3, 0.0, 5, 1, hash_ids=(7, 9), hash_block=2, hashed_len=3).token_ids().tolist()[:3]
        [14, 15, 18]
        """
        if not self.hash_ids:
            return None
        named = np.asarray(self.hash_ids, np.int64)[:, None] * self.hash_block + np.arange(self.hash_block)
        private = _PRIVATE + self.index * _PRIVATE_EACH + np.arange(self.total_len - self.hashed_len)
        return np.concatenate([named.ravel()[: self.hashed_len], private])


@dataclass(frozen=True)
class Outcome:
    """Times in seconds since the trace's start. `cached_tokens` were found in the prefix cache at first admission."""

    request: Request
    admitted_s: float
    first_token_s: float
    finished_s: float
    cached_tokens: int
    preemptions: int

    @property
    def ttft_s(self) -> float:
        """Time to first token, from arrival."""
        return self.first_token_s - self.request.arrival_s

    @property
    def tpot_s(self) -> float:
        """Time per output token after the first (0 when there is only one)."""
        return (self.finished_s - self.first_token_s) / max(self.request.output_len - 1, 1)
