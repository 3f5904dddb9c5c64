"""Five mistakes that texts on attention make, each computed beside the right answer. Notebooks and the tour show them.

Nothing here is used by an algorithm: the right versions call the algorithms, the wrong ones do what the texts say.
"""

from refsim.mistakes.figures import (
    Bandwidths,
    HandoverSaving,
    OverflowRow,
    bandwidth_of_an_a100,
    overflow_table,
    saving_of_the_lse_handover,
)
from refsim.mistakes.merging import (
    Compared,
    ListingCompared,
    largest_lse_as_the_global_one,
    listing_without_scale_and_l,
    merge_without_the_blocks_factor,
)

__all__ = [
    "Bandwidths",
    "Compared",
    "HandoverSaving",
    "ListingCompared",
    "OverflowRow",
    "bandwidth_of_an_a100",
    "largest_lse_as_the_global_one",
    "listing_without_scale_and_l",
    "merge_without_the_blocks_factor",
    "overflow_table",
    "saving_of_the_lse_handover",
]
