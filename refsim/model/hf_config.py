"""A `config.json` of a Llama, Mistral or Qwen3 checkpoint, in either of its spellings, as a `Config`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from refsim.model import rope_scaling
from refsim.model.config import Config

MODEL_TYPES = ("llama", "mistral", "qwen3")
LAYER_TYPES = ("full_attention", "sliding_attention")


def config_of(raw: Mapping[str, Any]) -> Config:
    """Sizes, RoPE and windows from a parsed `config.json`.

    RoPE is spelled `rope_parameters` (which holds rope_theta too), or, older, `rope_theta` beside `rope_scaling`.
    Raises NotImplementedError, saying which, for what this decoder has no code for; ValueError for a missing key.
    """
    kind = raw.get("model_type")
    if kind not in MODEL_TYPES:
        raise NotImplementedError(
            f"model_type {kind!r} is not supported yet; this loader reads {', '.join(MODEL_TYPES)}"
            + (" (MLA needs a cache of latents)" if "kv_lora_rank" in raw else "")
        )
    if raw.get("hidden_act", "silu") != "silu":
        raise NotImplementedError(f"hidden_act {raw['hidden_act']!r} is not supported yet; the decoder has silu")
    if raw.get("attention_bias") or raw.get("mlp_bias"):
        raise NotImplementedError("attention_bias and mlp_bias are not supported yet; the decoder has no biases")
    if quantized := raw.get("quantization_config"):
        raise NotImplementedError(f"quantized weights ({quantized}) are not supported yet")
    try:
        dim, heads, layers = raw["hidden_size"], raw["num_attention_heads"], raw["num_hidden_layers"]
        base, scaling, context = rope_of(raw)
        return Config(
            dim=dim,
            num_layers=layers,
            num_heads=heads,
            num_kv_heads=raw.get("num_key_value_heads") or heads,
            head_dim=raw.get("head_dim") or dim // max(heads, 1),
            hidden=raw["intermediate_size"],
            vocab=raw["vocab_size"],
            context=context,
            eps=raw["rms_norm_eps"],
            rope_base=base,
            rope_style="half",
            rope_scaling=scaling,
            windows=_windows(raw, layers),
        )
    except KeyError as missing:
        raise ValueError(f"config.json has no key {missing}") from missing
    except TypeError as error:
        raise ValueError(f"config.json: a size or factor is not a number ({error})") from error


def rope_of(raw: Mapping[str, Any]) -> tuple[float, rope_scaling.Scaling | None, int]:
    """RoPE's base, its scaling rule, and the context that the rule stretches to."""
    rules = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if not isinstance(rules, Mapping):
        raise ValueError(f"config.json: rope_parameters (or rope_scaling) must be an object {{...}}; got {rules!r}")
    base = rules.get("rope_theta", raw.get("rope_theta", 10000.0))
    trained = raw["max_position_embeddings"]
    if rules.get("partial_rotary_factor", raw.get("partial_rotary_factor", 1.0)) != 1.0:
        raise NotImplementedError("partial_rotary_factor is not supported yet; the decoder rotates whole heads")
    scaling = scaling_of(rules, trained)
    if isinstance(scaling, rope_scaling.Llama3) or scaling is None:
        return base, scaling, trained
    # The other rules' configs may state the length before stretching; Llama 3's states the one after.
    return base, scaling, max(trained, int(scaling.factor * rules.get("original_max_position_embeddings", trained)))


def scaling_of(rules: Mapping[str, Any], trained: int) -> Any:
    """The rule a `rope_parameters` or `rope_scaling` dictionary names, or None.

    >>> scaling_of({"rope_type": "linear", "factor": 4.0}, 2048)
    Linear(factor=4.0, attention_factor=1.0)
    """
    kind = rules.get("rope_type", rules.get("type", "default"))
    original = rules.get("original_max_position_embeddings", trained)
    common = {"rope_type", "type", "rope_theta", "original_max_position_embeddings", "partial_rotary_factor"}
    known: dict[str, set[str]] = {
        "default": set(),
        "linear": {"factor"},
        "ntk": {"factor"},
        "dynamic": {"factor"},
        "yarn": {"factor", "attention_factor", "beta_fast", "beta_slow", "truncate", "finetuned"},
        "llama3": {"factor", "low_freq_factor", "high_freq_factor"},
    }
    if kind not in known:
        raise NotImplementedError(f"RoPE type {kind!r} is not supported yet; known are {', '.join(known)}")
    if unknown := set(rules) - common - known[kind]:
        raise NotImplementedError(f"RoPE type {kind!r}: {', '.join(sorted(unknown))} is not supported yet")
    if kind == "default":
        return None
    factor = rules["factor"]
    if kind == "linear":
        return rope_scaling.Linear(factor)
    if kind == "ntk":
        return rope_scaling.NtkAware(factor)
    if kind == "dynamic":
        return rope_scaling.DynamicNtk(factor, original)
    if kind == "llama3":
        return rope_scaling.Llama3(factor, original, rules["low_freq_factor"], rules["high_freq_factor"])
    return rope_scaling.Yarn(
        factor,
        original,
        beta_fast=rules.get("beta_fast") or 32.0,
        beta_slow=rules.get("beta_slow") or 1.0,
        given_attention_factor=rules.get("attention_factor"),
        truncate=rules.get("truncate", True),
    )


def _windows(raw: Mapping[str, Any], layers: int) -> tuple[int | None, ...]:
    """The window of each layer, where there is one: `layer_types` says which layers, else all of them have it.

    What a config leaves out has its family's default: Mistral has a window unless it says null, Qwen3 has none unless
    it says use_sliding_window, and then none in the first 28 layers.
    """
    kind = raw["model_type"]
    width = raw.get("sliding_window", 4096 if kind == "mistral" else None)
    if not raw.get("use_sliding_window", kind != "qwen3"):
        width = None
    kinds = raw.get("layer_types")
    if kinds is not None:
        if not isinstance(kinds, list) or not set(kinds) <= set(LAYER_TYPES):
            raise NotImplementedError(f"layer_types {kinds} are not supported yet; known are {', '.join(LAYER_TYPES)}")
        if width is None and "sliding_attention" in kinds:
            raise ValueError("config.json: layer_types has sliding_attention, but sliding_window gives no width")
    if width is None:
        return ()
    if kinds:
        return tuple(width if kind == "sliding_attention" else None for kind in kinds)
    # Qwen's older spelling: the first max_window_layers layers see everything.
    first = raw.get("max_window_layers", 28 if kind == "qwen3" else 0)
    return tuple(width if i >= first else None for i in range(layers))
