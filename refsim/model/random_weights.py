"""A decoder of random weights: what runs where no real ones are installed, and in tests."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from refsim.model.config import Config, Layer, Weights, expected_shapes
from refsim.model.decoder import Decoder
from refsim.model.tokenizer import ByteTokenizer

SMALL = {
    "dim": 64,
    "num_layers": 3,
    "num_heads": 8,
    "num_kv_heads": 4,
    "head_dim": 8,
    "hidden": 172,
    "vocab": ByteTokenizer.vocab_size,
    "context": 512,
}


def random_decoder(seed: int = 0, *, tied: bool = False, qk_norm: bool = False, **sizes: Any) -> Decoder:
    """A decoder with weights drawn from `seed`; its text is noise, its bytes and shapes are real.

    `sizes` are `Config`'s fields, over small defaults. The same seed and sizes give the same weights. With tied
    embeddings such a decoder repeats its last token, whatever the cache holds: no test of a cache.

    >>> random_decoder(seed=0, num_layers=1)
    <Decoder random (seed 0): 78,272 parameters, 1 layers, 8 query heads over 4 KV heads of 8, context 512>
    """
    config = Config(**{**SMALL, **sizes})
    rng = np.random.default_rng(seed)
    shapes = expected_shapes(config)

    def draw(name: str) -> np.ndarray:
        shape = shapes[name]
        if len(shape) == 1:  # a norm's weight
            return rng.uniform(0.5, 1.5, shape).astype(np.float32)
        # Variance 1/fan-in keeps every product at the size of its input; embeddings are looked up, not multiplied.
        spread = 1.0 if name == "embedding" else shape[0] ** -0.5
        return (spread * rng.standard_normal(shape)).astype(np.float32)

    skip = set() if qk_norm else {"q_norm", "k_norm"}
    embedding = draw("embedding")
    layers = tuple(
        Layer(**{f.name: draw(f.name) for f in fields(Layer) if f.name not in skip}) for _ in range(config.num_layers)
    )
    weights = Weights(embedding, layers, draw("norm"), embedding.T if tied else draw("unembedding"))
    tokenizer = ByteTokenizer() if config.vocab == ByteTokenizer.vocab_size else None
    return Decoder(config, weights, tokenizer, name=f"random (seed {seed})")
