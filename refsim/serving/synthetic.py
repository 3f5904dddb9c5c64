"""Requests drawn from stated distributions, so that a replay needs no file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from refsim.serving.request import Request

if TYPE_CHECKING:
    from jaxtyping import Int64


@dataclass(frozen=True)
class Workload:
    """Poisson arrivals of `rate` requests a second; log-normal lengths of given means, of the same `spread`.

    `spread` is the standard deviation of the logarithm: 1 has a long tail as chat logs have. Lengths are at least 1
    and, together, at most `max_len`. A `rate` of inf has all arrive at once. A `shared_prompt` fraction of the requests
    begins with one common prompt of `shared_len` tokens (a system prompt).

    >>> requests = Workload(rate=2.0, mean_prompt=161.31, mean_output=337.99).draw(1000, np.random.default_rng(0))
    >>> round(sum(r.prompt_len for r in requests) / 1000), round(sum(r.output_len for r in requests) / 1000)
    (161, 312)
    """

    rate: float = 2.0
    mean_prompt: float = 500.0
    mean_output: float = 200.0
    spread: float = 1.0
    max_len: int = 2048
    shared_prompt: float = 0.0
    shared_len: int = 0

    def __post_init__(self) -> None:
        drawn = (self.mean_prompt, self.mean_output, self.spread)
        if not (self.rate > 0 and np.isfinite(drawn).all() and min(drawn[:2]) > 0 <= self.spread and self.max_len > 1):
            raise ValueError(
                f"{self}: rate must be above 0, means finite and above 0, spread finite and from 0, max_len 2 or more"
            )
        if not 0 <= self.shared_prompt <= 1 or not 0 <= self.shared_len < self.max_len - 1:
            raise ValueError(f"{self}: shared_prompt is a fraction, shared_len 0 to max_len - 2")

    def draw(self, count: int, rng: np.random.Generator) -> list[Request]:
        """`count` requests. A shared prompt is named by hashes of one token, so that any block size can hit it."""
        arrivals = np.cumsum(rng.exponential(1 / self.rate, count))
        prompts = self._lengths(self.mean_prompt, count, rng)
        outputs = self._lengths(self.mean_output, count, rng)
        shares = rng.random(count) < self.shared_prompt
        requests = []
        for i in range(count):
            shared = self.shared_len if shares[i] else 0
            prompt = min(int(prompts[i]) + shared, self.max_len - 1)
            output = min(int(outputs[i]), self.max_len - prompt)
            hashes = (
                {"hash_ids": tuple(range(shared)), "hash_block": 1, "hashed_len": shared} if self.shared_len else {}
            )
            requests.append(Request(i, float(arrivals[i]), prompt, output, **hashes))  # type: ignore[arg-type]
        return requests

    def _lengths(self, mean: float, count: int, rng: np.random.Generator) -> Int64[np.ndarray, "count"]:
        drawn = rng.lognormal(np.log(mean) - self.spread**2 / 2, self.spread, count)
        return np.clip(np.rint(drawn), 1, self.max_len).astype(np.int64)
