"""Checkpoints with known answers: logits and tokens of another implementation, and a story, letter for letter."""

import json
from pathlib import Path

import numpy as np
import pytest

from refsim import model
from refsim.model import attend

ALGORITHMS = [name for name in attend.NAMES if name != "oracle"]


@pytest.fixture(scope="module")
def golden(shared_data):
    pytest.importorskip("safetensors", reason="reading these checkpoints needs the `models` extra")
    loaded = {}

    def load(name: str):
        if name not in loaded:
            answers = np.load(shared_data / "golden" / name / "golden.npz")
            loaded[name] = model.load(shared_data / "golden" / name), {key: answers[key] for key in answers.files}
        return loaded[name]

    return load


def assert_logits(found, expected):
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize("attention", ALGORITHMS)
@pytest.mark.parametrize("name", ["llama-gqa", "qwen3", "mistral-window"])
def test_logits_and_greedy_tokens_are_the_known_ones(golden, name, attention):
    decoder, answers = golden(name)
    ids = answers["input_ids"].tolist()
    assert_logits(decoder.logits(ids, attention=attention), answers["logits"])
    assert decoder.generate(ids, 24, attention=attention) == answers["greedy"].tolist()


@pytest.mark.parametrize("attention", ALGORITHMS)
def test_llama_31_scaling_gives_the_known_logits_and_tokens(golden, attention):
    decoder, answers = golden("llama31-rope")
    ids = answers["input_ids"].tolist()
    assert_logits(decoder.logits(ids, attention=attention, chunk=16), answers["logits"])
    # The prompt holds one token 0. Its logits were computed with that token, but the program that then continued
    # the text took 0 for padding and left it out.
    assert ids.count(0) == 1
    unpadded = [token for token in ids if token != 0]
    assert decoder.generate(unpadded, 24, attention=attention) == answers["greedy"].tolist()


@pytest.mark.parametrize("name", ["llama-gqa", "qwen3", "llama31-rope", "mistral-window"])
def test_the_older_spelling_of_a_config_means_the_same(golden, shared_data, tmp_path, name):
    decoder, answers = golden(name)
    raw = json.loads((shared_data / "golden" / name / "config.json").read_text())
    rules = raw.pop("rope_parameters")
    raw["rope_theta"] = rules.pop("rope_theta")
    kind = rules.pop("rope_type")
    raw["rope_scaling"] = {"type": kind, **rules} if kind != "default" else None
    (tmp_path / "config.json").write_text(json.dumps(raw))
    (tmp_path / "model.safetensors").symlink_to(shared_data / "golden" / name / "model.safetensors")
    older = model.load(tmp_path)
    assert older.config == decoder.config
    assert_logits(older.logits(answers["input_ids"].tolist(), attention="oracle"), answers["logits"])


def test_the_window_matters(golden, tmp_path):
    """Keys just outside the window of 12 change the logits, so a window off by one would show above."""
    from dataclasses import replace

    decoder, answers = golden("mistral-window")
    assert decoder.config.window(0) == (11, 0)
    for width in (11, 13):
        off = model.Decoder(replace(decoder.config, windows=(width,) * 3), decoder.weights)
        found = off.logits(answers["input_ids"].tolist(), attention="oracle")
        assert np.abs(found - answers["logits"]).max() > 1e-2 * np.abs(answers["logits"]).max()


def test_an_architecture_without_code_is_refused_by_name(shared_data):
    with pytest.raises(NotImplementedError, match=r"model_type 'deepseek_v3' is not supported yet.*MLA"):
        model.load(shared_data / "golden" / "deepseek-v3-mla")


@pytest.fixture(scope="module")
def story(shared_data) -> tuple[model.Decoder, str]:
    folder = shared_data / "models" / "stories260K"
    return model.load(folder), (folder / "golden_greedy.txt").read_text().removesuffix("\n")


@pytest.mark.parametrize("block_size", [1, 3, 16, 512])
@pytest.mark.parametrize("attention", ALGORITHMS)
def test_the_story_is_told_letter_for_letter(story, attention, block_size):
    decoder, text = story
    begin = decoder.tokenizer.encode("")
    cache = model.PagedCache.of(decoder.config, -(-256 // block_size), block_size)
    told = decoder.generate(begin, 256, attention=attention, cache=cache)
    assert decoder.tokenizer.decode(begin + told) == text


def test_the_story_goes_on_from_its_own_beginning(story):
    """Encoding, chunked prefill and decoding together: the text after any prefix is the rest of the text."""
    decoder, text = story
    prompt = text[:120]
    ids = decoder.tokenizer.encode(prompt)
    told = decoder.generate(ids, 40, attention="paged", block_size=3, chunk=7)
    assert text.startswith(decoder.tokenizer.decode(ids + told))


def test_the_pairing_matters(story):
    """A checkpoint of neighbouring pairs rotated by halves still talks, but tells another story."""
    from dataclasses import replace

    decoder, text = story
    wrong = model.Decoder(replace(decoder.config, rope_style="half"), decoder.weights, decoder.tokenizer)
    assert not text.startswith(wrong.tokenizer.decode([1, *wrong.generate([1], 40, attention="oracle")]))


@pytest.fixture(scope="module")
def glass() -> tuple[model.Decoder, object]:
    package = pytest.importorskip("glassllm", reason="its weights come with the `models` extra")
    return model.load(), package.load_pretrained("en")


@pytest.mark.parametrize("attention", ALGORITHMS)
def test_glassllm_weights_give_its_own_logits(glass, attention):
    decoder, (theirs, tokenizer) = glass
    ids = tokenizer.encode("Alice was beginning to get very tired of sitting by her sister on the bank")
    assert_logits(decoder.logits(ids, attention=attention), theirs(ids).data[0])
    expected = [step.token for step in theirs.generate(ids, 30, greedy=True)]
    assert decoder.generate(ids, 30, attention=attention) == expected


def test_glassllm_text_is_cut_and_joined_as_its_own_tokenizer_does(glass):
    decoder, (_, tokenizer) = glass
    texts = ["", " ", "Alice", "  two  spaces ", "a line\n\nand more\n", "“Oh dear!”—café ☃", "the the thethe", "▁x y"]
    for text in texts:
        ids = decoder.tokenizer.encode(text)
        assert ids == tokenizer.encode(text)
        assert decoder.tokenizer.decode(ids) == tokenizer.decode(ids)
    assert decoder.tokenizer.decode([0, 1, 2, 3, 700]) == tokenizer.decode([0, 1, 2, 3, 700])


def test_the_package_folder_can_be_named_too(glass):
    import glassllm

    folder = Path(glassllm.__file__).parent / "weights"
    assert model.load(folder / "pt.npz").name == "glassllm pt"
    with pytest.raises(FileNotFoundError, match=r"must hold one checkpoint; found en\.npz, pt\.npz"):
        model.load(folder)
