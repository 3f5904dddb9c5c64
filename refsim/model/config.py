"""What a decoder is made of: its sizes and its weights, checked against each other once, when they are loaded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from refsim.checks import one_of, whole_number
from refsim.model import rope
from refsim.model.heads import group_size

if TYPE_CHECKING:
    from jaxtyping import Float32, Float64

    from refsim.model.rope_scaling import Scaling


@dataclass(frozen=True)
class Config:
    """Sizes and constants of a Llama-style decoder.

    `hidden` is the width inside the feed-forward block and `context` the most tokens a sequence may have.
    `windows` holds one entry a layer: the keys a token sees, itself included (None: all), as configs count them;
    empty means no layer has a window. Raises ValueError for sizes that do not fit together.

    >>> Config(dim=8, num_layers=1, num_heads=4, num_kv_heads=2, head_dim=2, hidden=16, vocab=10, context=32).windows
    ()
    """

    dim: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden: int
    vocab: int
    context: int
    eps: float = 1e-5
    rope_base: float = 10000.0
    rope_style: rope.Style = "half"
    rope_scaling: Scaling | None = None
    windows: tuple[int | None, ...] = ()

    def __post_init__(self) -> None:
        for name in ("dim", "num_layers", "num_heads", "num_kv_heads", "head_dim", "hidden", "vocab", "context"):
            whole_number(name, getattr(self, name), 1)
        group_size(self.num_heads, self.num_kv_heads)
        rope.inv_freq(self.head_dim, self.rope_base, self.rope_scaling)
        if not self.eps > 0:
            raise ValueError(f"eps keeps RMSNorm from dividing by zero, so it must be above 0; got {self.eps}")
        one_of("rope_style", self.rope_style, rope.STYLES)
        if self.windows and len(self.windows) != self.num_layers:
            raise ValueError(f"windows needs an entry a layer: {len(self.windows)} for {self.num_layers} layers")
        for layer, width in enumerate(self.windows):  # 1 keeps the token itself
            if width is not None:
                whole_number(f"windows[{layer}]", width, 1, or_else="None for no window")

    def window(self, layer: int) -> tuple[int, int] | None:
        """The layer's window as attention counts it: keys (before, after) a query's own position."""
        width = self.windows[layer] if self.windows else None
        return None if width is None else (width - 1, 0)

    def inv_freq(self, length: int) -> Float64[np.ndarray, "head_dim//2"]:
        """Inverse frequencies for a run of up to `length` tokens (only dynamic NTK depends on the length)."""
        scaling = self.rope_scaling
        if scaling is not None and hasattr(scaling, "at"):
            scaling = scaling.at(length)
        return rope.inv_freq(self.head_dim, self.rope_base, scaling)


@dataclass(frozen=True)
class Layer:
    """Weights of one layer, oriented to be multiplied from the right: `x @ wq`. q_norm and k_norm are Qwen3's."""

    attn_norm: Float32[np.ndarray, "dim"]
    wq: Float32[np.ndarray, "dim heads*head_dim"]
    wk: Float32[np.ndarray, "dim kv_heads*head_dim"]
    wv: Float32[np.ndarray, "dim kv_heads*head_dim"]
    wo: Float32[np.ndarray, "heads*head_dim dim"]
    ffn_norm: Float32[np.ndarray, "dim"]
    w_gate: Float32[np.ndarray, "dim hidden"]
    w_up: Float32[np.ndarray, "dim hidden"]
    w_down: Float32[np.ndarray, "hidden dim"]
    q_norm: Float32[np.ndarray, "head_dim"] | None = None
    k_norm: Float32[np.ndarray, "head_dim"] | None = None


@dataclass(frozen=True)
class Weights:
    """All weights, float32. With tied embeddings `unembedding` is `embedding.T`, the same memory."""

    embedding: Float32[np.ndarray, "vocab dim"]
    layers: tuple[Layer, ...]
    norm: Float32[np.ndarray, "dim"]
    unembedding: Float32[np.ndarray, "dim vocab"]

    @property
    def tied(self) -> bool:
        return np.shares_memory(self.embedding, self.unembedding)

    @property
    def num_parameters(self) -> int:
        """Numbers in all, tied ones once."""
        return sum(array.size for _, array in self.named()) - (self.unembedding.size if self.tied else 0)

    def named(self) -> Iterator[tuple[str, np.ndarray]]:
        yield "embedding", self.embedding
        for i, layer in enumerate(self.layers):
            for field in fields(layer):
                if (array := getattr(layer, field.name)) is not None:
                    yield f"layers.{i}.{field.name}", array
        yield "norm", self.norm
        yield "unembedding", self.unembedding

    def check(self, config: Config) -> None:
        """Raise ValueError naming the first array whose shape or dtype is not what `config` asks for."""
        if len(self.layers) != config.num_layers:
            raise ValueError(f"the weights hold {len(self.layers)} layers, the config says {config.num_layers}")
        expected = expected_shapes(config)
        for name, array in self.named():
            shape = expected[name.rsplit(".", 1)[-1]]
            if array.shape != shape or array.dtype != np.float32:
                raise ValueError(
                    f"weight {name}: the config asks for float32 of shape {shape}, got {array.dtype} of {array.shape}"
                )


def expected_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """Shape of each array by its field name in `Weights` and `Layer`."""
    dim, hidden, d = config.dim, config.hidden, config.head_dim
    q_width, kv_width = config.num_heads * d, config.num_kv_heads * d
    return {
        "embedding": (config.vocab, dim),
        "attn_norm": (dim,),
        "wq": (dim, q_width),
        "wk": (dim, kv_width),
        "wv": (dim, kv_width),
        "wo": (q_width, dim),
        "ffn_norm": (dim,),
        "w_gate": (dim, hidden),
        "w_up": (dim, hidden),
        "w_down": (hidden, dim),
        "q_norm": (d,),
        "k_norm": (d,),
        "norm": (dim,),
        "unembedding": (dim, config.vocab),
    }
