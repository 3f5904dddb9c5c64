"""The sums behind closed forms, against walking every tile."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from refsim.attention import Plan
from refsim.cost.closed_form.spans import floor_sum, stretches
from refsim.cost.closed_form.totals import totals_of
from refsim.variant import Band


@given(st.integers(0, 40), st.integers(0, 30), st.integers(-100, 100), st.integers(1, 25))
def test_floor_sum_is_the_sum(count: int, a: int, b: int, m: int) -> None:
    assert floor_sum(count, a, b, m) == sum((a * i + b) // m for i in range(count))


def test_floor_sum_is_exact_where_64_bits_are_not() -> None:
    """Sum of floor(k i / k + 0) with everything huge: floor(i) summed is count (count - 1) / 2, about 5e29."""
    count, k = 10**15, 10**18
    assert floor_sum(count, k, k - 1, k) == count * (count - 1) // 2


@st.composite
def problems(draw: Any) -> tuple[Band, int, int, int, int, int]:
    n, T = draw(st.integers(0, 80)), draw(st.integers(0, 80))
    side = st.none() | st.integers(0, 30)
    band = Band(n, T, draw(st.sampled_from([0, T - n])), draw(side), draw(side))
    low, high = sorted((draw(st.integers(0, T)), draw(st.integers(0, T))))
    unit = draw(st.integers(1, 8))
    whole = draw(st.booleans())
    return (
        band,
        draw(st.integers(1, 12)),
        0 if whole else low,
        T if whole else high,
        unit,
        unit * draw(st.integers(1, 4)),
    )


@settings(max_examples=1500)
@given(problems())
def test_stretches_sum_to_what_a_walk_finds(problem: tuple[Band, int, int, int, int, int]) -> None:
    band, t, low, high, unit, size = problem
    keys = tiles = longest = 0
    for i in range(band.n // t):
        first, stop = max(int(band.first(i * t)), low), min(int(band.stop(i * t + t - 1)), high)
        for start in range(first // unit * unit, stop if first < stop else 0, size):
            part = min(start + size, stop) - max(start, first)
            keys, tiles, longest = keys + part, tiles + 1, max(longest, part)
    found = list(stretches(band, t, 0, band.n // t, low, high))
    assert len(found) <= 5
    assert sum(s.keys() for s in found) == keys
    assert sum(s.tiles(size, unit) for s in found) == tiles
    assert max((s.longest(size, unit) for s in found), default=0) == longest


@settings(max_examples=25)
@given(
    st.integers(2000, 9000),
    st.integers(2000, 9000),
    st.sampled_from([(16, 48), (48, 16), (128, 128), (7, 96)]),
    st.sampled_from([None, (1000, 0), (700, -1), (3000, 500)]),
    st.booleans(),
    st.sampled_from([None, 16, 100]),
    st.sampled_from([None, 5]),
)
def test_long_sequences(
    n: int, T: int, tile: tuple[int, int], window: Any, causal: bool, block_size: int | None, num_splits: int | None
) -> None:
    """Thousands of tokens, where execution would take too long: the plan's own walk is added up instead."""
    plan = Plan.of([(n, T)], 1, 1, 8, tile=tile, window=window, causal=causal, block_size=block_size)
    seq = plan.sequences[0]
    sums = np.zeros(4, np.int64)
    for tokens in plan.query_tiles(seq):
        low, high = plan.key_span(seq, tokens)
        for first, stop in [(0, T)] if num_splits is None else plan.splits(seq, num_splits):
            parts = list(plan.key_tiles(max(first, low), min(stop, high)))
            seen, blocks = sum(map(len, parts)), 0
            if block_size:
                blocks = sum(-(-part.stop // block_size) - part.start // block_size for part in parts)
            sums += [len(parts), seen, blocks, len(tokens) * seen]
    total = totals_of(plan, num_splits=num_splits)
    assert [total.key_tiles, total.keys, total.entries, total.scores] == sums.tolist()
