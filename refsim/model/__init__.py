"""A real decoder over any attention and any cache: RoPE, heads, checkpoints, and text.

decoder = model.load()                                   # glassllm's weights, where they are installed
ids = decoder.tokenizer.encode("Alice was")
decoder.generate(ids, 20, attention="paged", block_size=16)
"""

from refsim.model import heads, rope, rope_scaling, sampling
from refsim.model.attend import Attention
from refsim.model.caches import ContiguousCache
from refsim.model.checkpoints import load
from refsim.model.config import Config, Layer, Weights
from refsim.model.decoder import Decoder
from refsim.model.paged_cache import PagedCache
from refsim.model.random_weights import random_decoder
from refsim.model.session import Session

__all__ = [
    "Attention",
    "Config",
    "ContiguousCache",
    "Decoder",
    "Layer",
    "PagedCache",
    "Session",
    "Weights",
    "heads",
    "load",
    "random_decoder",
    "rope",
    "rope_scaling",
    "sampling",
]
