"""From logits to text: how the next token is chosen, and the loop that feeds it back."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float

    from refsim.model.session import Session

Choose = Callable[["Float[np.ndarray, 'vocab']"], int]


def chooser(temperature: float, rng: np.random.Generator | None) -> Choose:
    """How a token is picked from logits: the largest at temperature 0, else sampled from softmax(logits / temperature).

    Raises ValueError for a negative temperature, and for one above 0 without a generator.

    >>> chooser(0.0, None)(np.array([1.0, 3.0, 2.0]))
    1
    """
    if temperature == 0.0:
        return lambda logits: int(np.argmax(logits))
    if not temperature > 0 or not isinstance(rng, np.random.Generator):
        raise ValueError(
            f"sampling needs a temperature above 0 and rng=numpy.random.default_rng(seed); got temperature="
            f"{temperature} and rng={rng}. Leave both out for greedy text."
        )

    def sample(logits: Float[np.ndarray, "vocab"]) -> int:
        s = logits.astype(np.float64)
        with np.errstate(over="ignore"):  # near zero all but the largest go to -inf, as they should
            p = np.exp((s - s.max()) / temperature)
        return int(rng.choice(len(p), p=p / p.sum()))

    return sample


def stream(
    session: Session, seq: int, ids: Sequence[int], n: int, choose: Choose, stop: Collection[int], chunk: int | None
) -> Iterator[int]:
    """Prefill a prompt, then choose and feed back up to n tokens, yielding each; an id in `stop` ends it, unyielded."""
    logits = session.prefill(seq, ids, chunk=chunk)[-1]
    for left in reversed(range(n)):
        token = choose(logits)
        if token in stop:
            return
        yield token
        if left:
            logits = session.step({seq: token})[seq]
