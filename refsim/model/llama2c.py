"""llama2.c's `.bin` checkpoints (the first format, without a magic number) and the tokenizer beside them.

Layout: seven int32 (dim, hidden, layers, heads, KV heads, vocabulary, context; a negative vocabulary says that the
unembedding is an array of its own), then float32 arrays, each kind for all layers at a stretch, rows by output.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from refsim.model.config import Config, Layer, Weights
from refsim.model.decoder import Decoder
from refsim.model.tokenizer import ScoredBPE

_HEADER = 28
_MAGIC = 0x616B3432  # the later formats begin with "ak42"


def load_llama2c(path: Path, tokenizer: Path | None = None) -> Decoder:
    """Read a `.bin`; its tokenizer is the tok*.bin beside it, if there is one, unless another is named.

    Raises ValueError when the file is not such a checkpoint, is cut short, or goes on after the weights.
    """
    data = path.read_bytes()
    if len(data) < _HEADER:
        raise ValueError(f"{path}: {len(data)} bytes are no llama2.c checkpoint, whose header alone is {_HEADER}")
    dim, hidden, layers, heads, kv_heads, vocab, context = np.frombuffer(data, "<i4", 7).tolist()
    if dim == _MAGIC:
        raise ValueError(f"{path}: a later llama2.c format (magic ak42); export the first one, which has no magic")
    if min(dim, hidden, layers, heads, kv_heads, context) < 1 or vocab == 0 or dim % (2 * heads):
        raise ValueError(
            f"{path}: not a llama2.c checkpoint: its header reads dim {dim}, hidden {hidden}, layers {layers}, "
            f"heads {heads}, KV heads {kv_heads}, vocabulary {vocab}, context {context}"
        )
    config = Config(
        dim=dim,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=dim // heads,
        hidden=hidden,
        vocab=abs(vocab),
        context=context,
        eps=1e-5,
        rope_style="interleaved",
    )
    weights = _weights(path, data, config, tied=vocab > 0)
    found = tokenizer or _tokenizer_beside(path)
    return Decoder(config, weights, ScoredBPE.load(found, config.vocab) if found else None, name=path.stem)


def _weights(path: Path, data: bytes, config: Config, tied: bool) -> Weights:
    layers, dim, hidden, d = config.num_layers, config.dim, config.hidden, config.head_dim
    kv = config.num_kv_heads * d
    shapes = {
        "embedding": (config.vocab, dim),
        "attn_norm": (layers, dim),
        "wq": (layers, dim, dim),
        "wk": (layers, kv, dim),
        "wv": (layers, kv, dim),
        "wo": (layers, dim, dim),
        "ffn_norm": (layers, dim),
        "w_gate": (layers, hidden, dim),
        "w_down": (layers, dim, hidden),
        "w_up": (layers, hidden, dim),
        "norm": (dim,),
        "rope cos and sin": (2, config.context, d // 2),  # kept by the format, computed here
        **({} if tied else {"unembedding": (config.vocab, dim)}),
    }
    need = _HEADER + 4 * sum(map(math.prod, shapes.values()))
    if len(data) != need:
        raise ValueError(
            f"{path}: the header asks for {need} bytes, the file has {len(data)}; it is "
            + ("cut short" if len(data) < need else "longer than a checkpoint of this header")
        )
    arrays, at = {}, _HEADER
    for name, shape in shapes.items():
        size = math.prod(shape)
        arrays[name] = np.frombuffer(data, "<f4", size, at).reshape(shape)
        at += 4 * size
    per_layer = [name for name in shapes if name in Layer.__dataclass_fields__]
    return Weights(
        embedding=arrays["embedding"],
        layers=tuple(Layer(**{name: arrays[name][i].T for name in per_layer}) for i in range(layers)),
        norm=arrays["norm"],
        unembedding=arrays["embedding" if tied else "unembedding"].T,
    )


def _tokenizer_beside(path: Path) -> Path | None:
    found = sorted(path.parent.glob("tok*.bin"))
    if len(found) > 1:
        names = ", ".join(f.name for f in found)
        raise ValueError(f"{path.parent} holds more than one tokenizer ({names}); name one with tokenizer=")
    return found[0] if found else None
