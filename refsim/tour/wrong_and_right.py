"""Five mistakes that texts on attention make, each run beside the right version."""

from __future__ import annotations

import numpy as np

from refsim import mistakes
from refsim.tour.page import Chapter, Prose, Table

KEYS, HEAD_DIM, BLOCK = 24, 2, 8


def wrong_and_right() -> Chapter:
    """A row a mistake: the claim, what it gives, what is right."""
    rng = np.random.default_rng(0)
    s, v = 2 * rng.standard_normal(KEYS), rng.standard_normal((KEYS, HEAD_DIM))
    merged = mistakes.merge_without_the_blocks_factor(s, v, BLOCK)
    parts = [(part.max() + np.log(np.exp(part - part.max()).sum())) for part in s.reshape(-1, BLOCK)]
    answers = [
        np.exp(part - lse) @ rows
        for part, lse, rows in zip(s.reshape(-1, BLOCK), parts, v.reshape(-1, BLOCK, HEAD_DIM), strict=True)
    ]
    reduced = mistakes.largest_lse_as_the_global_one(np.stack(answers), np.array(parts))
    saving = mistakes.saving_of_the_lse_handover(128)
    rows = [
        (
            "E1",
            "merging blocks: add P V, with P taken against the block's own maximum",
            _numbers(merged.wrong),
            _numbers(merged.right),
        ),
        ("E2", "reducing splits: the largest LSE is the global LSE", _numbers(reduced.wrong), _numbers(reduced.right)),
        (
            "E3",
            "handing over an LSE in place of (m, l) halves the traffic, Dv = 128",
            f"{saving.of_scalars:.0%} less",
            f"{saving.of_traffic:.2%} less (1/{1 / saving.of_traffic:.0f})",
        ),
    ]
    overflow = [
        (
            row.dtype,
            f"{row.largest:.3g}",
            f"{row.naive_sum:.3g}",
            f"{row.naive:g}",
            f"({row.m:g}, {row.l:g})",
            f"{row.by_state:g}",
            f"{row.lse:g}",
            f"{row.by_lse:g}",
        )
        for row in mistakes.overflow_table()
    ]
    return Chapter(
        "Mistakes that texts make",
        (
            Prose("Each claim was computed as it stands, beside the right version, on the same numbers."),
            Table.of(("", "the claim", "it gives", "right is"), rows, "llll"),
            Prose(
                "E4: the LSE is said to be what prevents overflow. Here is one key with a score of 120 and a value of "
                "1. The plain sum of exponentials overflows in float32 as it does in the 16-bit types; subtracting the "
                "maximum is what saves it, and (m, l) is as safe as the LSE. The LSE buys one number less, and a merge "
                "that needs no m."
            ),
            Table.of(
                ("type", "largest", "e^120", "answer by it", "(m, l)", "answer by it", "LSE", "answer by it"),
                overflow,
                "lrrrrrrr",
            ),
        ),
    )


def _numbers(values: np.ndarray) -> str:
    return "  ".join(f"{value:+.3f}" for value in values)
