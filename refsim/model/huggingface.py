"""A directory as Hugging Face checkpoints are: config.json, model.safetensors, and perhaps tokenizer.json.

Reading weights needs the library `safetensors`, tokenizing text the library `tokenizers`; the `models` extra has both.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from refsim.model.config import Config, Layer, Weights
from refsim.model.decoder import Decoder
from refsim.model.files import check_layers, check_names, json_object
from refsim.model.hf_config import config_of

_LAYER = {
    "attn_norm": "input_layernorm",
    "wq": "self_attn.q_proj",
    "wk": "self_attn.k_proj",
    "wv": "self_attn.v_proj",
    "wo": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "w_gate": "mlp.gate_proj",
    "w_up": "mlp.up_proj",
    "w_down": "mlp.down_proj",
}
# As safetensors spells them. Fewer bits are quantized weights, whose scales this decoder does not apply.
_STORED = ("F64", "F32", "F16", "BF16")
_QK_NORM = {"q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm"}


class LibraryTokenizer:
    """A `tokenizer.json`, run by the library `tokenizers`, which is first needed where text is: ids do without it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def _tokenizer(self) -> Any:
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise ImportError(
                f"{self.path} is read by the library tokenizers: pip install 'refsim[models]', or work with ids"
            ) from error
        try:
            return Tokenizer.from_file(str(self.path))
        except Exception as error:  # the library raises nothing narrower
            raise ValueError(f"{self.path}: the library tokenizers can't read it ({error})") from error

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text).ids)

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids)))


def load_huggingface(folder: Path, tokenizer: Path | None = None) -> Decoder:
    """Read a checkpoint folder; weights of any floating type become float32.

    Raises ValueError when tensors are missing, unknown, misshapen or cut short, NotImplementedError for another
    architecture and for quantized weights, ImportError when a library is absent.
    """
    raw = json_object(folder / "config.json", (folder / "config.json").read_bytes())
    config = config_of(raw)
    weights = _weights(folder, read_tensors(folder), config, raw)
    path = tokenizer or folder / "tokenizer.json"
    text = LibraryTokenizer(path) if path.is_file() else None
    return Decoder(config, weights, text, name=folder.name)


def read_tensors(folder: Path) -> dict[str, np.ndarray]:
    """All tensors of model.safetensors, or of the shards that model.safetensors.index.json names."""
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise ImportError(
            f"{folder} holds safetensors: pip install 'refsim[models]' brings the library that reads them"
        ) from error
    index = folder / "model.safetensors.index.json"
    files = ["model.safetensors"]
    if index.is_file():
        files = _shards(index)
    tensors: dict[str, np.ndarray] = {}
    for name in files:
        path = folder / name
        if not path.is_file():
            raise FileNotFoundError(f"{path} is missing; a checkpoint folder holds config.json and model.safetensors")
        try:
            with safe_open(path, "numpy") as file:
                names = list(file.keys())
                for tensor in names:
                    if (stored := file.get_slice(tensor).get_dtype()) not in _STORED:
                        raise NotImplementedError(
                            f"{path}: {tensor} is stored as {stored}; the decoder takes {', '.join(_STORED)} "
                            "(quantized weights are not supported yet)"
                        )
                tensors |= {tensor: file.get_tensor(tensor) for tensor in names}
        except SafetensorError as error:
            raise ValueError(f"{path}: damaged or cut short ({error})") from error
    return tensors


def _shards(index: Path) -> list[str]:
    """The files that an index names, which lie beside it."""
    where = json_object(index, index.read_bytes()).get("weight_map")
    if not isinstance(where, dict) or not all(isinstance(f, str) and Path(f).name == f for f in where.values()):
        raise ValueError(f"{index}: expected weight_map to give each tensor a file of this folder; got {where!r:.80}")
    return sorted(set(where.values()))


def _weights(folder: Path, tensors: dict[str, np.ndarray], config: Config, raw: dict[str, object]) -> Weights:
    check_layers(folder, config.num_layers, len(tensors))
    tied = bool(raw.get("tie_word_embeddings", False))
    names = _LAYER | (_QK_NORM if raw["model_type"] == "qwen3" else {})
    per_layer = [
        {ours: f"model.layers.{i}.{theirs}.weight" for ours, theirs in names.items()} for i in range(config.num_layers)
    ]
    wanted = {"model.embed_tokens.weight", "model.norm.weight"}
    wanted |= {name for layer in per_layer for name in layer.values()}
    wanted |= set() if tied else {"lm_head.weight"}
    # Some checkpoints also store what the config already says: RoPE's frequencies, or a head tied to the embedding.
    given = {n for n in tensors if not n.endswith("rotary_emb.inv_freq") and not (tied and n == "lm_head.weight")}
    check_names(folder, "tensors", wanted, given)

    def array(name: str) -> np.ndarray:
        return tensors[name].astype(np.float32, copy=False).T  # stored rows by output; a vector's .T is itself

    embedding = array("model.embed_tokens.weight").T
    return Weights(
        embedding=embedding,
        layers=tuple(Layer(**{ours: array(name) for ours, name in layer.items()}) for layer in per_layer),
        norm=array("model.norm.weight"),
        unembedding=embedding.T if tied else array("lm_head.weight"),
    )
