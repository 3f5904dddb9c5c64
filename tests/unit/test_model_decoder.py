"""The decoder against a slow, separate rendering of the same model, and every attention algorithm against that."""

import numpy as np
import pytest

from refsim import model, oracle
from refsim.model import attend
from refsim.model.decoder import rms_norm, silu
from refsim.model.rope_scaling import Yarn

SMALL = {"dim": 12, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "head_dim": 6, "hidden": 20, "vocab": 17}
KINDS = {
    "plain": {},
    "untied": {"tied": False},
    "interleaved": {"rope_style": "interleaved"},
    "window": {"windows": (3, None)},
    "qk_norm": {"qk_norm": True},
    "yarn": {"rope_scaling": Yarn(4.0, 16)},
    "one KV head": {"num_kv_heads": 1},
}
IDS = [3, 16, 0, 5, 5, 9, 1, 12, 7]


def decoder_of(kind: str) -> model.Decoder:
    return model.random_decoder(seed=7, **{**SMALL, "context": 64, **KINDS[kind]})


def slow_logits(decoder: model.Decoder, ids: list[int]) -> np.ndarray:
    """The same model in float64, one head, one query at a time, pairs turned as complex numbers, nothing cached."""
    c, w = decoder.config, decoder.weights
    f = c.inv_freq(len(ids))
    stretch = c.rope_scaling.attention_factor if c.rope_scaling else 1.0

    def norm(y, weight):
        return y / np.sqrt((y**2).mean(axis=-1, keepdims=True) + c.eps) * weight

    def turn(y, weight, position):
        y = y if weight is None else norm(y, weight)
        half = len(y) // 2
        pairs = y[0::2] + 1j * y[1::2] if c.rope_style == "interleaved" else y[:half] + 1j * y[half:]
        pairs = pairs * np.exp(1j * position * f) * stretch
        if c.rope_style == "interleaved":
            return np.stack([pairs.real, pairs.imag], axis=1).ravel()
        return np.concatenate([pairs.real, pairs.imag])

    x = w.embedding.astype(np.float64)[ids]
    for i, layer in enumerate(w.layers):
        h = norm(x, layer.attn_norm)
        q, k, v = h @ layer.wq, h @ layer.wk, h @ layer.wv
        out = np.zeros_like(q)
        for head in range(c.num_heads):
            mine = slice(head * c.head_dim, (head + 1) * c.head_dim)
            group = head // (c.num_heads // c.num_kv_heads)
            theirs = slice(group * c.head_dim, (group + 1) * c.head_dim)
            for m in range(len(ids)):
                width = c.windows[i] if c.windows else None
                seen = range(0 if width is None else max(0, m - width + 1), m + 1)
                query = turn(q[m, mine], layer.q_norm, m)
                s = np.array([query @ turn(k[t, theirs], layer.k_norm, t) for t in seen]) / np.sqrt(c.head_dim)
                p = np.exp(s - s.max())
                out[m, mine] = p / p.sum() @ v[list(seen), theirs]
        x = x + out @ layer.wo
        h = norm(x, layer.ffn_norm)
        gate = h @ layer.w_gate
        x = x + (gate / (1 + np.exp(-gate)) * (h @ layer.w_up)) @ layer.w_down
    return norm(x, w.norm) @ w.unembedding


def assert_close(found, expected, rel=1e-5):
    assert np.abs(found - expected).max() <= rel * np.abs(expected).max()


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_the_slow_rendering(kind):
    decoder = decoder_of(kind)
    found = decoder.logits(IDS, attention="oracle")
    assert found.dtype == np.float32
    assert_close(found, slow_logits(decoder, IDS))


@pytest.mark.parametrize("kind", ["plain", "window"])
@pytest.mark.parametrize("attention", attend.NAMES)
def test_every_algorithm_gives_the_same_logits(attention, kind):
    decoder = decoder_of(kind)
    expected = slow_logits(decoder, IDS)
    for block_size in (1, 3, 16):
        assert_close(decoder.logits(IDS, attention=attention, block_size=block_size, chunk=4), expected)


def test_options_reach_the_algorithm():
    decoder = decoder_of("plain")
    expected = slow_logits(decoder, IDS)
    assert_close(decoder.logits(IDS, attention="split_kv", block_size=2, num_splits=3), expected)
    assert_close(decoder.logits(IDS, attention="flash", tile=(2, 3)), expected)
    with pytest.raises(TypeError, match="no_such_option"):
        decoder.logits(IDS, attention="flash", no_such_option=1)


def test_any_function_can_be_the_attention():
    seen = []

    def mean_of_visible(q, k, v, *, scale, causal, window):
        seen.append((q.shape, k.shape, scale, causal, window))
        first = k.shape[0] - q.shape[0]
        return np.stack([np.repeat(v[: first + i + 1].mean(axis=0), 2, axis=0) for i in range(q.shape[0])])

    decoder = decoder_of("window")
    decoder.logits(IDS, attention=mean_of_visible, chunk=5)
    assert seen[0] == ((5, 4, 6), (5, 2, 6), 6**-0.5, True, (2, 0))
    assert seen[-1] == ((4, 4, 6), (9, 2, 6), 6**-0.5, True, None)


def test_greedy_text_takes_the_largest_logit_each_time():
    decoder = decoder_of("plain")
    ids = list(IDS)
    for _ in range(6):
        ids.append(int(slow_logits(decoder, ids)[-1].argmax()))
    assert decoder.generate(IDS, 6, attention="oracle") == ids[len(IDS) :]
    assert decoder.generate(IDS, 6, attention="oracle", chunk=2) == ids[len(IDS) :]
    assert decoder.generate(IDS, 6, attention="oracle", stop={ids[-2]}) == ids[len(IDS) : ids.index(ids[-2], len(IDS))]
    assert decoder.generate(IDS, 0, attention="oracle") == []


def test_sampling_follows_the_seed_and_the_temperature():
    decoder = decoder_of("plain")

    def sample(seed, temperature, n=12):
        return decoder.generate(IDS, n, attention="oracle", temperature=temperature, rng=np.random.default_rng(seed))

    assert sample(0, 5.0) == sample(0, 5.0) != sample(1, 5.0)
    assert sample(0, 1e-6) == sample(0, 1e-320) == decoder.generate(IDS, 12, attention="oracle")
    # At one draw each, frequencies follow softmax(logits / temperature) to four standard deviations.
    logits = slow_logits(decoder, IDS)[-1] / 2.0
    p = np.exp(logits - logits.max())
    p /= p.sum()
    choose = model.sampling.chooser(2.0, np.random.default_rng(5))
    counts = np.bincount([choose(logits * 2.0) for _ in range(4000)], minlength=17)
    assert (np.abs(counts / 4000 - p) <= 4 * np.sqrt(p * (1 - p) / 4000) + 1e-3).all()


@pytest.mark.parametrize(
    ("keywords", "says"),
    [
        ({"temperature": 0.5}, "rng"),
        ({"temperature": 0.5, "rng": 7}, "rng=7"),
        ({"temperature": -1.0, "rng": np.random.default_rng(0)}, "above 0"),
    ],
)
def test_sampling_without_what_it_needs_is_refused(keywords, says):
    with pytest.raises(ValueError, match=says):
        decoder_of("plain").generate(IDS, 1, attention="oracle", **keywords)


def test_norm_and_silu_at_their_edges():
    np.testing.assert_array_equal(
        rms_norm(np.zeros((2, 3), np.float32), np.ones(3, np.float32), 1e-5), np.zeros((2, 3))
    )
    x = np.array([-1e4, -80.0, -1.0, 0.0, 1.0, 80.0, 1e4], np.float32)
    with np.errstate(all="raise", under="ignore"):
        found = silu(x)
    np.testing.assert_allclose(found, x.astype(float) / (1 + np.exp(-np.clip(x.astype(float), -700, 700))), atol=1e-5)


def test_an_attention_may_return_lists():
    def by_hand(q, k, v, **mask):
        return oracle.attention(q, k, v, **mask)[0].tolist()

    decoder = decoder_of("plain")
    found = decoder.logits(IDS, attention=by_hand)
    np.testing.assert_allclose(found, decoder.logits(IDS, attention="oracle"), rtol=1e-6, atol=1e-6)


def test_an_attention_that_returns_another_shape_is_named():
    def keeps_values_apart(q, k, v, **mask):
        return v

    with pytest.raises(
        ValueError, match=r"'keeps_values_apart' returned shape \(9, 2, 6\) for queries of .*\(9, 4, 6\)"
    ):
        decoder_of("plain").logits(IDS, attention=keeps_values_apart)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda d: d.logits([]), ValueError, "non-empty"),
        (lambda d: d.logits([[1, 2]]), ValueError, "non-empty list of token ids"),
        (lambda d: d.logits([1.5]), TypeError, "whole numbers"),
        (lambda d: d.logits("text"), ValueError, "shape"),
        (lambda d: d.logits([17]), ValueError, r"\[0, 17\)"),
        (lambda d: d.logits([-1]), ValueError, r"\[0, 17\)"),
        (lambda d: d.logits([0] * 65), ValueError, "context of 64"),
        (lambda d: d.generate([0] * 60, 6), ValueError, "context of 64"),
        (lambda d: d.generate([0], -1), ValueError, "n must be a whole number from 0, got -1"),
        (lambda d: d.logits([0], chunk=0), ValueError, "chunk"),
        (lambda d: d.logits([0], attention="flush"), ValueError, "unknown attention 'flush'; choose one of oracle"),
        (lambda d: d.logits([0], attention=3), TypeError, "must be one of"),
        (lambda d: d.logits([0], attention="paged", block_size=0), ValueError, "block_size"),
        (lambda d: d.start(sequences=0), ValueError, "sequences must be a whole number from 1, got 0"),
    ],
)
def test_wrong_input_is_refused_with_a_reason(call, error, says):
    with pytest.raises(error, match=says):
        call(decoder_of("plain"))


def test_a_prompt_as_long_as_the_context_fits_exactly():
    decoder = decoder_of("plain")
    assert decoder.logits([1] * 64, attention="oracle").shape == (64, 17)
    assert len(decoder.generate([1] * 60, 5, attention="oracle")) == 5  # the last one is never fed back


def test_the_same_seed_gives_the_same_decoder():
    a, b, c = (model.random_decoder(seed=s).logits([1, 2], attention="oracle") for s in (0, 0, 1))
    np.testing.assert_array_equal(a, b)
    assert not np.array_equal(a, c)


def test_weights_that_do_not_fit_the_config_are_named():
    decoder = decoder_of("plain")
    first = decoder.weights.layers[0]
    from dataclasses import replace

    for bad, says in [
        (replace(first, wk=first.wk[:, :-1]), r"layers.0.wk: the config asks for float32 of shape \(12, 12\)"),
        (replace(first, w_up=first.w_up.astype(np.float64)), "layers.0.w_up"),
    ]:
        weights = replace(decoder.weights, layers=(bad, *decoder.weights.layers[1:]))
        with pytest.raises(ValueError, match=says):
            model.Decoder(decoder.config, weights)
    with pytest.raises(ValueError, match="1 layers, the config says 2"):
        model.Decoder(decoder.config, replace(decoder.weights, layers=(first,)))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"num_kv_heads": 3}, "3 KV heads"),
        ({"head_dim": 5}, "even"),
        ({"dim": 0}, "dim"),
        ({"vocab": 2.0}, "vocab"),
        ({"eps": 0.0}, "eps"),
        ({"windows": (3,)}, "an entry a layer"),
        ({"windows": (0, 3)}, r"windows\[0\] must be a whole number from 1, or None for no window, got 0"),
        ({"windows": (3, 2.5)}, r"windows\[1\] must be a whole number from 1, .* got 2\.5"),
        ({"dim": True}, "dim"),
        ({"rope_style": "neox"}, "rope_style"),
    ],
)
def test_sizes_that_do_not_fit_together_are_refused(change, says):
    with pytest.raises(ValueError, match=says):
        model.Config(**{**SMALL, "context": 64, **change})


def test_half_a_token_is_refused():
    with pytest.raises(TypeError, match=r"n must be a whole number from 0, got 1\.5"):
        model.random_decoder(seed=0).generate([1, 2], 1.5)
