"""A Llama-style decoder in plain NumPy: RMSNorm, RoPE, grouped attention, SwiGLU; and text, a token at a time.

The maths is here, the state is not: attention is a callable that a `Session` supplies, so that one decoder runs over
any algorithm and any cache.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from refsim.checks import whole_number
from refsim.model import rope
from refsim.model.config import Config, Layer, Weights
from refsim.model.heads import merge_heads, split_heads
from refsim.model.session import Session

if TYPE_CHECKING:
    from jaxtyping import Float, Float32, Int

    from refsim.model.attend import Attention
    from refsim.model.caches import Cache
    from refsim.model.tokenizer import Tokenizer

# Given a layer's number and the rotated q and k and the v of new tokens, cache them and attend: (tokens, heads, d).
Attend = Callable[[int, np.ndarray, np.ndarray, np.ndarray], np.ndarray]


def rms_norm(
    x: Float32[np.ndarray, "*rows dim"], weight: Float32[np.ndarray, "dim"], eps: float
) -> Float32[np.ndarray, "*rows dim"]:
    """x over its root mean square, times `weight` (Zhang and Sennrich 2019, "RMSNorm", equation 4).

    >>> rms_norm(np.array([3.0, -3.0]), np.ones(2), 1e-12)
    array([ 1., -1.])
    """
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + x.dtype.type(eps)) * weight


def silu(x: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    """x * sigmoid(x), the S in SwiGLU (Shazeer 2020, "GLU variants"), by tanh, which cannot overflow.

    >>> silu(np.array([-1000.0, 0.0, 1000.0]))
    array([  -0.,    0., 1000.])
    """
    return x * (0.5 * (1.0 + np.tanh(0.5 * x)))


@dataclass(frozen=True)
class Decoder:
    """Config, weights and, where there is one, a tokenizer. Build it with `model.load` or `model.random_decoder`.

    Raises ValueError when a weight has not the shape and dtype (float32) the config asks for.
    """

    config: Config
    weights: Weights
    tokenizer: Tokenizer | None = None
    name: str = "decoder"

    def __post_init__(self) -> None:
        self.weights.check(self.config)

    def __repr__(self) -> str:
        c = self.config
        return (
            f"<Decoder {self.name}: {self.weights.num_parameters:,} parameters, {c.num_layers} layers, "
            f"{c.num_heads} query heads over {c.num_kv_heads} KV heads of {c.head_dim}, context {c.context}>"
        )

    def hidden(
        self,
        ids: Int[np.ndarray, "tokens"],
        cos: Float[np.ndarray, "tokens pairs"],
        sin: Float[np.ndarray, "tokens pairs"],
        attend: Attend,
    ) -> Float32[np.ndarray, "tokens dim"]:
        """Hidden states after the final norm. cos and sin carry the positions; `attend` carries everything before."""
        eps = self.config.eps
        x = self.weights.embedding[ids]
        for i, layer in enumerate(self.weights.layers):
            q, k, v = self._project(layer, rms_norm(x, layer.attn_norm, eps))
            q, k = (rope.rotate(y, cos, sin, self.config.rope_style) for y in (q, k))
            x = x + merge_heads(attend(i, q, k, v)).astype(x.dtype, copy=False) @ layer.wo
            h = rms_norm(x, layer.ffn_norm, eps)
            x = x + (silu(h @ layer.w_gate) * (h @ layer.w_up)) @ layer.w_down
        return rms_norm(x, self.weights.norm, eps)

    def _project(self, layer: Layer, h: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        c = self.config
        q = split_heads(h @ layer.wq, c.num_heads)
        k = split_heads(h @ layer.wk, c.num_kv_heads)
        v = split_heads(h @ layer.wv, c.num_kv_heads)
        if layer.q_norm is not None:
            q = rms_norm(q, layer.q_norm, c.eps)
        if layer.k_norm is not None:
            k = rms_norm(k, layer.k_norm, c.eps)
        return q, k, v

    def unembed(self, hidden: Float32[np.ndarray, "tokens dim"]) -> Float32[np.ndarray, "tokens vocab"]:
        """Logits of hidden states."""
        return hidden @ self.weights.unembedding

    def start(
        self,
        *,
        attention: str | Attention | Callable[..., Any] = "paged",
        cache: Cache | None = None,
        block_size: int = 16,
        sequences: int = 4,
        length: int | None = None,
        **options: Any,
    ) -> Session:
        """A run with caches of its own: any number of sequences, prefilled in chunks, decoded step by step.

        `attention` is a name of `attend.NAMES`, an `Attention`, or a function `f(q, k, v, *, scale, causal, window)`;
        `options` go to it (tile, num_splits, machine ...). Without a `cache` the algorithm gets the one it reads:
        contiguous, or paged in blocks of `block_size` tokens, with room for `sequences` of `length` tokens. `length` is
        the most tokens a sequence may reach (default: the context).
        """
        return Session(
            self,
            attention,
            cache=cache,
            block_size=block_size,
            sequences=sequences,
            length=length,
            options=options,
        )

    def logits(
        self, ids: Sequence[int], *, chunk: int | None = None, **run: Any
    ) -> Float32[np.ndarray, "tokens vocab"]:
        """Logits after each token of a prompt, (tokens, vocab) float32; keywords as for `start`.

        >>> from refsim import model
        >>> model.random_decoder(seed=0).logits([72, 105], attention="oracle").shape
        (2, 256)
        """
        session = self.start(**{"length": len(ids), "sequences": 1, **run})
        return session.prefill(session.open(), ids, chunk=chunk)

    def stream(
        self,
        ids: Sequence[int],
        n: int,
        *,
        temperature: float = 0.0,
        rng: np.random.Generator | None = None,
        stop: Collection[int] = (),
        chunk: int | None = None,
        **run: Any,
    ) -> Iterator[int]:
        """Yield up to n new token ids, each as soon as it is known: `Session.stream` on a run of its own.

        Further keywords as for `start`. Raises ValueError at once when prompt and n together pass the context.
        """
        n = whole_number("n", n, 0, wrong=TypeError)
        # The last token is read from the logits and never fed back, so it needs no place of its own.
        session = self.start(**{"length": len(ids) + max(n - 1, 0), "sequences": 1, **run})
        return session.stream(session.open(), ids, n, temperature=temperature, rng=rng, stop=stop, chunk=chunk)

    def generate(self, ids: Sequence[int], n: int, **keywords: Any) -> list[int]:
        """The n new ids that follow a prompt, as a list; keywords as for `stream`.

        >>> from refsim import model
        >>> len(model.random_decoder(seed=0).generate([72, 105], 3, attention="oracle"))
        3
        """
        return list(self.stream(ids, n, **keywords))
