"""Every algorithm against the oracle, on random ragged batches, masks, tiles and block sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.attention_cases import ALGORITHMS, Problem, run

SIDE = st.sampled_from([None, -1, 0, 1, 3, 8])


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    G, group = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    H = G * group
    lengths = draw(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 40)), min_size=1, max_size=3))
    variant: dict[str, Any] = {
        "causal": draw(st.booleans()),
        "align": draw(st.sampled_from(["bottom-right", "top-left"])),
        "window": draw(st.none() | st.tuples(SIDE, SIDE)),
        "softcap": draw(st.sampled_from([None, 1.5])),
        "scale": draw(st.sampled_from([None, 0.5])),
        "alibi_slopes": draw(st.none() | st.just(np.linspace(0.05, 0.5, H))),
        "sinks": draw(st.none() | st.just(np.linspace(-1, 2, H))),
    }
    D, Dv = draw(st.sampled_from([(4, 4), (8, 3), (5, 8)]))
    return Problem.random(draw(st.integers(0, 2**16)), lengths, H, G, D, Dv, **variant)


@pytest.mark.parametrize(("algorithm", "over_cache", "options"), ALGORITHMS)
@settings(max_examples=80)
@given(
    problem=problems(),
    tile=st.none() | st.tuples(st.integers(1, 9), st.integers(1, 20)),
    block_size=st.sampled_from([1, 3, 4, 16]),
)
def test_equals_the_oracle(
    algorithm: str, over_cache: bool, options: dict[str, Any], problem: Problem, tile: Any, block_size: int
) -> None:
    result = run(algorithm, problem, block_size=block_size if over_cache else None, tile=tile, **options)
    out, lse = problem.truth()
    # float32 sums of at most 40 terms of size about 1: a few hundred roundings of 2**-24
    np.testing.assert_allclose(result.out, out, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(result.lse, lse, rtol=2e-5, atol=2e-5)


@settings(max_examples=40)
@given(problem=problems(), block_size=st.sampled_from([2, 5, 16]))
def test_stage_a_and_stage_b_agree_bit_for_bit_at_one_tile(problem: Problem, block_size: int) -> None:
    """Both fold the same tiles in the same order; only where the keys were read from differs."""
    a = run("paged_gather", problem, block_size=block_size, tile=(8, 2 * block_size))
    b = run("paged", problem, block_size=block_size, tile=(8, 2 * block_size))
    if problem.variant["window"] is None:  # under a window, stage B's tiles begin at whole blocks, stage A's don't
        np.testing.assert_array_equal(a.out, b.out)
    np.testing.assert_allclose(a.out, b.out, atol=2e-5)
