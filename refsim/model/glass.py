"""Weights of the PyPI package glassllm: a small decoder trained on Lewis Carroll, in an `.npz` beside its tokenizer.

The package brings the weights; the decoder that runs them is ours. Its matrices are stored ready to be multiplied from
the right, its RoPE pairs neighbours, and its embeddings are tied.
"""

from __future__ import annotations

import importlib.util
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from refsim.model.config import Config, Layer, Weights
from refsim.model.decoder import Decoder
from refsim.model.files import as_float32, check_layers, check_names, json_object
from refsim.model.tokenizer import RankedBPE

_LAYER = {
    "attn_norm": "norm1.gamma",
    "wq": "attn.W_Q",
    "wk": "attn.W_K",
    "wv": "attn.W_V",
    "wo": "attn.W_O",
    "ffn_norm": "norm2.gamma",
    "w_gate": "ffn.W1",
    "w_up": "ffn.W3",
    "w_down": "ffn.W2",
}
_SIZES = {"n_layers", "d_model", "n_heads", "n_kv_heads", "vocab_size", "max_len", "eps", "rope_base"}


def installed(language: str = "en") -> Path | None:
    """The weights file of the installed package, or None. The package's code is not run."""
    try:
        spec = importlib.util.find_spec("glassllm")
    except (ImportError, ValueError):  # imports of it are blocked
        return None
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "weights" / f"{language}.npz"
    return path if path.is_file() else None


def load_glass(path: Path, tokenizer: Path | None = None) -> Decoder:
    """Read an `.npz` of glassllm; its tokenizer is NAME.tokenizer.json beside it unless another is named.

    Raises ValueError when arrays are missing or the file is damaged, NotImplementedError for quantized weights.
    """
    sizes, arrays = _read(path)
    layers = int(sizes["n_layers"])
    check_layers(path, layers, len(arrays))
    names = {"E", "norm_f.gamma"} | {f"blocks.{i}.{name}" for i in range(layers) for name in _LAYER.values()}
    check_names(path, "arrays", names, set(arrays))
    weights = {name: as_float32(path, name, array) for name, array in arrays.items()}
    config = Config(
        dim=sizes["d_model"],
        num_layers=layers,
        num_heads=sizes["n_heads"],
        num_kv_heads=sizes["n_kv_heads"],
        head_dim=sizes["d_model"] // max(sizes["n_heads"], 1),
        hidden=(0, *weights["blocks.0.ffn.W1"].shape)[-1],
        vocab=sizes["vocab_size"],
        context=sizes["max_len"],
        eps=sizes["eps"],
        rope_base=sizes["rope_base"],
        rope_style="interleaved",
    )
    beside = tokenizer or path.with_name(f"{path.stem}.tokenizer.json")
    text = RankedBPE.load(beside) if beside.is_file() else None
    if text is not None and text.vocab_size != config.vocab:
        raise ValueError(f"{beside} has {text.vocab_size} tokens, the model {config.vocab}: another model's tokenizer?")
    return Decoder(
        config,
        Weights(
            embedding=weights["E"],
            layers=tuple(
                Layer(**{ours: weights[f"blocks.{i}.{theirs}"] for ours, theirs in _LAYER.items()})
                for i in range(layers)
            ),
            norm=weights["norm_f.gamma"],
            unembedding=weights["E"].T,
        ),
        text,
        name=f"glassllm {path.stem}",
    )


def _read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The sizes that the file's config gives, and its arrays by name."""
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path}: not a readable .npz, perhaps cut short (it is no zip archive)")
    try:
        with path.open("rb") as raw, np.load(raw) as file:
            arrays = {name: file[name] for name in file.files}
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: not a readable .npz, perhaps cut short ({error})") from error
    if "__config__" not in arrays:
        raise ValueError(f"{path}: an .npz of glassllm has an entry __config__; this one has {sorted(arrays)[:5]} ...")
    sizes = json_object(f"{path}, __config__", str(arrays.pop("__config__")))
    if absent := _SIZES - set(sizes):
        raise ValueError(f"{path}: its __config__ lacks {sorted(absent)}")
    wrong = {name: size for name in sorted(_SIZES) if isinstance(size := sizes[name], bool | str | list | dict | None)}
    if wrong:
        raise ValueError(f"{path}: its __config__ must give numbers; got {wrong}")
    return sizes, arrays
