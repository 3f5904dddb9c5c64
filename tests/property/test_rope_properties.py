"""What RoPE promises for any head: lengths stay, and scores know only the distance between two tokens."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from refsim.model import rope
from refsim.model.rope_scaling import DynamicNtk, Linear, Llama3, NtkAware, Yarn, plain

pairs = st.integers(1, 8)
styles = st.sampled_from(rope.STYLES)
bases = st.floats(2.0, 1e6)
seeds = st.integers(0, 2**32 - 1)
positions = st.integers(0, 100_000)


@given(pairs, styles, bases, seeds, positions, positions, st.integers(0, 100_000))
def test_a_score_depends_on_the_distance_only(half, style, base, seed, m, n, shift):
    q, k = np.random.default_rng(seed).standard_normal((2, 2 * half))
    f = rope.inv_freq(2 * half, base)

    def score(at_q: int, at_k: int) -> float:
        return float(rope.apply(q, at_q, f, style) @ rope.apply(k, at_k, f, style))

    np.testing.assert_allclose(score(m + shift, n + shift), score(m, n), atol=1e-9 * half)


@given(pairs, styles, bases, seeds, positions)
def test_a_turn_keeps_the_length_and_can_be_undone(half, style, base, seed, m):
    x = np.random.default_rng(seed).standard_normal((1, 3, 2 * half))
    f = rope.inv_freq(2 * half, base)
    turned = rope.apply(x, [m], f, style)
    np.testing.assert_allclose(np.linalg.norm(turned, axis=-1), np.linalg.norm(x, axis=-1), rtol=1e-12)
    np.testing.assert_allclose(rope.apply(turned, [-m], f, style), x, atol=1e-9)


@given(pairs, seeds, positions)
def test_the_pairings_differ_by_a_permutation_of_the_head_alone(half, seed, m):
    x = np.random.default_rng(seed).standard_normal(2 * half)
    f = rope.inv_freq(2 * half, 1e4)
    order = np.arange(2 * half).reshape(2, half).T.ravel()  # 0, half, 1, half + 1, ...
    np.testing.assert_allclose(
        rope.apply(x[order], m, f, "interleaved"), rope.apply(x, m, f, "half")[order], atol=1e-12
    )


@given(st.integers(2, 128), bases, st.floats(1.0, 64.0))
def test_ntk_keeps_the_fastest_and_slows_the_slowest_by_exactly_s(half, base, s):
    before, after = plain(2 * half, base), rope.inv_freq(2 * half, base, NtkAware(s))
    assert after[0] == before[0] == 1.0
    np.testing.assert_allclose(before[-1] / after[-1], s, rtol=1e-9)
    assert (np.diff(before / after) >= -1e-9).all()


@given(st.integers(2, 64), bases, st.floats(1.0, 64.0), st.integers(16, 65536), st.integers(1, 8))
def test_no_rule_turns_faster_than_plain_nor_slower_than_interpolation(half, base, factor, original, times):
    before = plain(2 * half, base)
    stretched = times * original
    for rule, most in [
        (Linear(factor), factor),
        (NtkAware(factor), factor),
        (DynamicNtk(factor, original).at(stretched), factor * times - (factor - 1)),
        (Yarn(factor, original), factor),
        (Llama3(factor, original), factor),
    ]:
        slowed = before / rope.inv_freq(2 * half, base, rule)
        assert (slowed >= 1 - 1e-9).all(), rule
        assert (slowed <= most * (1 + 1e-9)).all(), rule


@given(st.integers(2, 64), bases, st.integers(16, 65536))
def test_every_rule_at_factor_one_is_plain(half, base, original):
    rules = [Linear(1.0), NtkAware(1.0), DynamicNtk(1.0, original), Yarn(1.0, original), Llama3(1.0, original)]
    for rule in rules:
        np.testing.assert_allclose(rope.inv_freq(2 * half, base, rule), plain(2 * half, base), rtol=1e-12)
        assert rule.attention_factor == 1.0
