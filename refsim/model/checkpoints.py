"""One door to every kind of weights."""

from __future__ import annotations

from pathlib import Path

from refsim.model.decoder import Decoder
from refsim.model.glass import installed, load_glass
from refsim.model.huggingface import load_huggingface
from refsim.model.llama2c import load_llama2c

HELP = (
    "pip install 'refsim[models]' brings glassllm's weights; or name a llama2.c .bin, a glassllm .npz, or a folder "
    "with config.json and model.safetensors; refsim.model.random_decoder(seed=0) needs no weights at all"
)


def load(path: str | Path | None = None, *, tokenizer: str | Path | None = None) -> Decoder:
    """A decoder from a checkpoint; without a path, the weights of the installed package glassllm.

    path: a llama2.c `.bin`, a glassllm `.npz`, a folder with config.json and model.safetensors (Llama, Mistral,
        Qwen3), or a folder that holds one `.bin` or `.npz` checkpoint.
    tokenizer: the tokenizer's file, where it is not the one that lies beside the weights.

    Raises FileNotFoundError when there are no such weights, ValueError when they are damaged or do not fit together,
    NotImplementedError for quantized weights and an architecture the decoder does not have, ImportError when a reader's
    library is missing.

    >>> load("/no/such/weights.bin")
    Traceback (most recent call last):
    FileNotFoundError: no weights at /no/such/weights.bin: pip install ...
    """
    if path is None:
        found = installed()
        if found is None:
            raise FileNotFoundError(f"the package glassllm, the default weights, is not installed: {HELP}")
        path = found
    path = Path(path)
    text = None if tokenizer is None else Path(tokenizer)
    if not path.exists():
        raise FileNotFoundError(f"no weights at {path}: {HELP}")
    if text is not None and not text.is_file():
        raise FileNotFoundError(f"no tokenizer at {text}; leave tokenizer= out for the one beside the weights")
    if path.is_dir() and (path / "config.json").is_file():
        return load_huggingface(path, text)
    if path.is_dir():
        path = _only_checkpoint_in(path)
    if path.suffix == ".bin":
        return load_llama2c(path, text)
    if path.suffix == ".npz":
        return load_glass(path, text)
    raise ValueError(f"{path}: not a kind of checkpoint this loader knows: {HELP}")


def _only_checkpoint_in(folder: Path) -> Path:
    files = [f for f in sorted(folder.iterdir()) if f.suffix in (".bin", ".npz") and not f.name.startswith("tok")]
    if len(files) != 1:
        names = ", ".join(f.name for f in files) or "none"
        raise FileNotFoundError(f"{folder} must hold one checkpoint; found {names}: {HELP}")
    return files[0]
