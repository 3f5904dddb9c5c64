"""RoPE against published figures and worked examples of mistakes seen in the field."""

import numpy as np
import pytest

from refsim.model import rope
from refsim.model.rope_scaling import DynamicNtk, Linear, Llama3, NtkAware, Yarn, ntk_base, plain

X = np.array([1.0, 2.0, 3.0, 4.0])
FREQ = np.array([1.0, 0.01])

# Head size 128, base 10000, trained for 2048 tokens, stretched tenfold.
D, BASE, TRAINED = 128, 1e4, 2048


@pytest.mark.parametrize(
    ("style", "expected"),
    [("half", [-1.9841, 1.9599, 2.4624, 4.0198]), ("interleaved", [-1.1426, 1.9221, 2.9599, 4.0298])],
)
def test_each_pairing_turns_its_own_pairs(style, expected):
    np.testing.assert_allclose(rope.apply(X, 1, FREQ, style), expected, atol=5e-5)


def test_rotating_what_is_rotated_already_is_recognised():
    once = rope.apply(X[None], [1], FREQ)
    twice = rope.apply(once, [1], FREQ)
    np.testing.assert_allclose(twice[0], [-3.1440, 1.9196, -0.3391, 4.0392], atol=5e-5)
    assert rope.identify(X[None], twice, [1], FREQ) == "half, twice"
    assert rope.identify(X[None], once, [1], FREQ) == "half"


@pytest.mark.parametrize(
    ("made_by", "verdict"),
    [
        (lambda x, p: rope.apply(x, p, FREQ, "interleaved"), "interleaved"),
        (lambda x, p: rope.apply(x, -p, FREQ, "half"), "half, backwards"),
        (lambda x, p: x, "not rotated"),
        (lambda x, p: rope.apply(x, p + 1, FREQ), "unknown"),
    ],
)
def test_other_ways_to_go_wrong_are_named(made_by, verdict):
    x, positions = np.random.default_rng(3).standard_normal((5, 2, 4)), np.arange(5)
    assert rope.identify(x, made_by(x, positions), positions, FREQ) == verdict


@pytest.mark.parametrize(("s", "expected"), [(2, 20221.3), (4, 40889.9), (8, 82684.6)])
def test_ntk_base_is_as_published(s, expected):
    assert ntk_base(BASE, D, s) == pytest.approx(expected, rel=1e-4)


SCALED = {
    "linear": (Linear(10.0), {0: 0.1, 1: 10000 ** (-2 / 128) / 10, 63: 10000 ** (-126 / 128) / 10}),
    "dynamic": (DynamicNtk(10.0, TRAINED).at(16384), {0: 1.0, 1: 0.80931, 2: 0.65498, 31: 1.4176e-3, 63: 1.6265e-6}),
    "yarn": (Yarn(10.0, TRAINED), {16: 0.1, 17: 0.083479, 40: 4.3007e-4, 41: 2.7384e-4, 63: 1.1548e-5}),
    "llama3": (
        Llama3(10.0, TRAINED, low_freq_factor=1.0, high_freq_factor=4.0),
        {30: 1.3335e-2, 31: 1.0730e-2, 36: 1.9675e-3, 40: 3.4539e-4, 41: 2.7384e-4},
    ),
}


@pytest.mark.parametrize("rule", SCALED)
def test_scaled_frequencies_are_as_published(rule):
    scaling, expected = SCALED[rule]
    found = rope.inv_freq(D, BASE, scaling)
    np.testing.assert_allclose(found[list(expected)], list(expected.values()), rtol=1e-4)


def test_dynamic_ntk_base_is_as_published_and_waits_for_the_trained_length():
    # s = 10 * 16384/2048 - 9 = 71
    assert ntk_base(BASE, D, 71) == pytest.approx(759702, rel=1e-4)
    for length in (0, 1, TRAINED):
        np.testing.assert_array_equal(rope.inv_freq(D, BASE, DynamicNtk(10.0, TRAINED).at(length)), plain(D, BASE))
    assert (rope.inv_freq(D, BASE, DynamicNtk(10.0, TRAINED).at(TRAINED + 1)) < plain(D, BASE))[1:].all()


def test_yarn_range_and_attention_factor_are_as_published():
    yarn = Yarn(10.0, TRAINED)
    assert yarn.correction_range(D, BASE) == (16, 41)
    assert yarn.attention_factor == pytest.approx(1.230259, rel=1e-4)
    assert Yarn(10.0, TRAINED, given_attention_factor=0.7).attention_factor == 0.7


def test_attention_factor_sharpens_the_scores_by_its_square():
    q, k = np.random.default_rng(0).standard_normal((2, 1, 3, 4))
    plain_score = np.sum(rope.apply(q, [5], FREQ) * rope.apply(k, [5], FREQ))
    sharp = np.sum(rope.apply(q, [5], FREQ, attention_factor=1.5) * rope.apply(k, [5], FREQ, attention_factor=1.5))
    assert sharp == pytest.approx(2.25 * plain_score)


def test_llama_31_keeps_29_smooths_6_and_divides_29():
    ratio = plain(128, 5e5) / rope.inv_freq(128, 5e5, Llama3(8.0, 8192, 1.0, 4.0))
    kept, divided = np.isclose(ratio, 1.0, rtol=1e-12), np.isclose(ratio, 8.0, rtol=1e-12)
    assert (kept.sum(), divided.sum(), (~kept & ~divided).sum()) == (29, 29, 6)
    assert kept[:29].all()
    assert divided[-29:].all()


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_the_dtype_of_x_is_kept(dtype):
    x = np.random.default_rng(1).standard_normal((3, 2, 4)).astype(dtype)
    out = rope.apply(x, np.array([0, 7, 100_000]), FREQ)
    assert out.dtype == dtype
    exact = rope.apply(x.astype(np.float64), np.array([0, 7, 100_000]), FREQ)
    np.testing.assert_allclose(out, exact, atol=4 * np.finfo(dtype).eps * np.abs(exact).max())


def test_position_zero_turns_nothing_and_x_is_left_alone():
    x = np.random.default_rng(2).standard_normal((2, 3, 4))
    before = x.copy()
    np.testing.assert_array_equal(rope.apply(x, [0, 0], FREQ), x)
    rope.apply(x, [5, 6], FREQ)
    np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: rope.inv_freq(5, 1e4), "even"),
        (lambda: rope.inv_freq(0, 1e4), "at least 2"),
        (lambda: rope.inv_freq(8, 1.0), "above 1"),
        (lambda: rope.inv_freq(8, float("nan")), "above 1"),
        (lambda: rope.inv_freq(2, 1e4, NtkAware(2.0)), "d >= 4"),
        (lambda: Linear(0.0), "factor must be a finite number above 0"),
        (lambda: Linear("2"), "factor must be a finite number above 0; got '2'"),
        (lambda: rope.inv_freq(8, "1e4"), "base must be a finite number above 1 .* got base='1e4'"),
        (lambda: Linear(0.5), "factor must be at least 1"),
        (lambda: Yarn(float("inf"), 2048), "factor"),
        (lambda: Yarn(2.0, 0), "original"),
        (lambda: Yarn(2.0, 2048, beta_fast=1.0, beta_slow=1.0), "beta_fast"),
        (lambda: Llama3(8.0, 8192, 4.0, 4.0), "high_freq_factor"),
        (lambda: DynamicNtk(2.0, -1), "original"),
        (lambda: rope.apply(X, 1, FREQ, "neox"), "style must be one of half, interleaved, got 'neox'"),
        (lambda: rope.apply(X, 1, FREQ[:1]), r"a pair for each inverse frequency; got x of shape \(4,\)"),
        (lambda: rope.apply(X[None], [1, 2], FREQ), r"positions of shape \(2,\)"),
        (lambda: rope.apply(X[None], [1.5], FREQ), "whole numbers; got dtype float64"),
        (lambda: rope.apply(X[None].astype(complex), [1], FREQ), "real numbers; got dtype complex128"),
        (lambda: rope.apply(X[None].astype(str), [1], FREQ), "real numbers; got dtype <U"),
        (lambda: rope.identify(X[None], np.zeros((2, 4)), [1], FREQ), r"x's shape \(1, 4\); got \(2, 4\)"),
    ],
)
def test_wrong_input_is_refused_with_a_reason(call, says):
    with pytest.raises(ValueError, match=says):
        call()


def test_a_rule_given_as_a_dict_is_named():
    with pytest.raises(TypeError, match=r"scaling must be a rule of refsim.model.rope_scaling.*got \{'factor': 8\}"):
        rope.inv_freq(8, 1e4, {"factor": 8})


def test_lists_unsigned_positions_and_no_tokens_at_all():
    back = rope.apply(X[None], [-1], FREQ)
    assert rope.identify([X.tolist()], back.tolist(), np.array([1], np.uint8), FREQ) == "half, backwards"
    assert rope.apply(np.zeros((0, 2, 4)), [], FREQ).shape == (0, 2, 4)
