"""Five mistakes that texts on attention make, each run beside the right version."""

from __future__ import annotations

import numpy as np

from refsim import mistakes, softmax
from refsim.tour.page import Chapter, Prose, Table

KEYS, HEAD_DIM, BLOCK, DV = 24, 2, 8, 128


def wrong_and_right() -> Chapter:
    """A row a mistake: the claim, what it gives, what is right; then the overflow of one large score, type by type."""
    overflow = mistakes.overflow_table()
    return Chapter(
        "Mistakes that texts make",
        (
            Prose("Each claim was computed as it stands, beside the right version, on the same numbers."),
            Table.of(("", "the claim", "it gives", "right is"), rows(overflow), "llll"),
            Prose(
                "E4 in full, for one key with that score and a value of 1. The plain sum of exponentials overflows in "
                "float32 as it does in the 16-bit types. Subtracting the maximum is what saves it, and (m, l) is as "
                "safe as the LSE, which buys one number less and a merge that needs no m."
            ),
            Table.of(
                ("type", "largest", "e^score", "its answer", "(m, l)", "its answer", "LSE", "its answer"),
                [
                    (
                        row.dtype,
                        *(f"{x:.3g}" for x in (row.largest, row.naive_sum, row.naive)),
                        f"({row.m:g}, {row.l:g})",
                        *(f"{x:g}" for x in (row.by_state, row.lse, row.by_lse)),
                    )
                    for row in overflow
                ],
                "lrrrrrrr",
            ),
        ),
    )


def rows(overflow: list[mistakes.OverflowRow]) -> list[tuple[str, str, str, str]]:
    """E1 to E5: name, claim, what it gives, what is right. E1 stands in two places of its text."""
    rng = np.random.default_rng(0)
    s, v = 2 * rng.standard_normal(KEYS), rng.standard_normal((KEYS, HEAD_DIM))
    merged = mistakes.merge_without_the_blocks_factor(s, v, BLOCK)
    states = softmax.absorb(
        softmax.empty(KEYS // BLOCK, 1, head_dim=HEAD_DIM), s.reshape(-1, 1, BLOCK), v.reshape(-1, BLOCK, HEAD_DIM)
    )
    outs, lses = softmax.finish(states)
    reduced = mistakes.largest_lse_as_the_global_one(outs[:, 0], lses[:, 0])
    q, k = rng.standard_normal(HEAD_DIM), rng.standard_normal((KEYS, HEAD_DIM))
    listing = mistakes.listing_without_scale_and_l(2 * q, k, v, BLOCK)
    saving = mistakes.saving_of_the_lse_handover(DV)
    float32 = next(row for row in overflow if row.dtype == "float32")
    a100 = mistakes.bandwidth_of_an_a100()
    return [
        (
            "E1",
            "merging blocks: add P V, with P taken against the block's own maximum",
            _numbers(merged.wrong),
            _numbers(merged.right),
        ),
        (
            "E1",
            "the tiled listing: scores without 1/sqrt(D)",
            _numbers(listing.without_scale),
            _numbers(listing.right),
        ),
        ("", "its l: only the newest block's sum", _numbers(listing.without_l), _numbers(listing.right)),
        ("E2", "reducing splits: the largest LSE is the global LSE", _numbers(reduced.wrong), _numbers(reduced.right)),
        (
            "E3",
            f"the LSE in place of (m, l) halves the traffic of splits (Dv = {DV})",
            f"{saving.of_scalars:.0%} less",
            f"{saving.of_traffic:.2%} less (1/{1 / saving.of_traffic:.0f})",
        ),
        (
            "E4",
            f"without the LSE, a score of {float32.lse:g} overflows",
            f"{float32.naive_sum:g}, {float32.naive:g}",
            f"(m, l) = ({float32.m:g}, {float32.l:g}) gives {float32.by_state:g}",
        ),
        (
            "E5",
            f"an A100 has 40 to 80 GB of HBM at {a100.claimed / 1e12:g} TB/s",
            f"{a100.claimed / 1e12:.3f} TB/s",
            f"{a100.a100_40 / 1e12:.3f} (40 GB), {a100.a100_80 / 1e12:.3f} (80 GB)",
        ),
    ]


def _numbers(values: np.ndarray) -> str:
    return "  ".join(f"{value:+.3f}" for value in values)
