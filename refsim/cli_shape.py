"""A shape of an attention call, as the command line spells it, and its ledger in closed form."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from refsim import attention
from refsim.attention.plan import LONGEST
from refsim.checks import one_of
from refsim.numerics import DTYPES

if TYPE_CHECKING:
    from refsim.machine import Ledger

CONTIGUOUS = ("standard", "flash")
PAGED = ("paged_gather", "paged", "split_kv")
ALGORITHMS = (*CONTIGUOUS, *PAGED)


@dataclass(frozen=True)
class Shape:
    """An attention call by its sizes: `lengths` holds (queries, keys) of each sequence."""

    lengths: tuple[tuple[int, int], ...]
    heads: int
    kv_heads: int
    head_dim: int
    dtype: str = "float32"
    tile: tuple[int, int] | None = None
    block_size: int = 16
    num_splits: int = 4
    mask: dict[str, Any] = field(default_factory=dict)

    def ragged(self, name: str) -> bool:
        """Whether the algorithm gets cu_seqlens. Over a paged cache, decode steps (a query each) need none."""
        return any(n != 1 for n, _ in self.lengths) if name in PAGED else len(self.lengths) > 1

    def closed_form(self, name: str, sram_nbytes: int | None) -> Ledger:
        """The ledger that an algorithm's run on this shape would have, without the run.

        Raises ValueError where the run would find too little on-chip memory.
        """
        from refsim.cost import closed_form

        self.check()
        plan = attention.Plan.of(
            self.lengths,
            self.heads,
            self.kv_heads,
            self.head_dim,
            dtype=self.dtype,
            tile=self.tile,
            sram_nbytes=sram_nbytes,
            packed=name in PAGED,
            block_size=self.block_size if name in PAGED else None,
            **self.mask,
        )
        own: dict[str, Any] = {"standard": {"sram_nbytes": sram_nbytes}, "split_kv": {"num_splits": self.num_splits}}
        ledger = getattr(closed_form, name)(plan, ragged=self.ragged(name), **own.get(name, {}))
        need = max(work.sram_peak_nbytes for work in ledger.work.values())
        if sram_nbytes is not None and need > sram_nbytes:
            raise ValueError(f"{name} would need {need:,} B on chip and has {sram_nbytes:,} B; choose a smaller --tile")
        return ledger

    def check(self) -> None:
        """Raise ValueError for sizes that no call can have, in the words of the command line."""
        for name in ("heads", "kv_heads", "head_dim", "block_size", "num_splits"):
            if getattr(self, name) < 1:
                option = "splits" if name == "num_splits" else name.replace("_", "-")
                raise ValueError(f"--{option} must be 1 or more, got {getattr(self, name)}")
        for n, T in self.lengths:
            if min(n, T) < 0:
                raise ValueError(f"queries and keys can't be negative, got {n} queries over {T} keys")
            if max(n, T) > LONGEST:
                raise ValueError(f"lengths are int32, {LONGEST:,} at most; got {n} queries over {T} keys")

    @property
    def scores(self) -> int:
        """Scores of all heads, each query against each key of its sequence."""
        return self.heads * sum(n * T for n, T in self.lengths)

    @property
    def numbers(self) -> int:
        """Numbers in q, k and v."""
        queries, keys = (sum(each) for each in zip(*self.lengths, strict=True))
        return (queries * self.heads + 2 * keys * self.kv_heads) * self.head_dim

    @property
    def starts(self) -> tuple[np.ndarray, np.ndarray]:
        """cu_seqlens_q and cu_seqlens_k."""
        queries, keys = zip(*self.lengths, strict=True)
        return np.cumsum([0, *queries]).astype(np.int32), np.cumsum([0, *keys]).astype(np.int32)


def parse_algorithm(given: str) -> str:
    """The algorithm's name in Python; dashes are as good as underscores.

    >>> parse_algorithm("split-kv")
    'split_kv'
    """
    name = given.replace("-", "_")
    if name not in ALGORITHMS:
        raise ValueError(f"there is no algorithm {given!r}; choose one of {', '.join(ALGORITHMS)}")
    return name


def parse_tile(given: str | None) -> tuple[int, int] | None:
    """A tile "ROWSxKEYS".

    >>> parse_tile("128x64")
    (128, 64)
    """
    if given is None:
        return None
    if not (match := re.fullmatch(r"([1-9]\d*)[xX,]([1-9]\d*)", given)):
        raise ValueError(f"--tile must be ROWSxKEYS, both 1 or more, such as 128x64; got {given!r}")
    return int(match[1]), int(match[2])


def parse_dtype(given: str) -> str:
    """A type that kernels store, by its short name.

    >>> parse_dtype("bfloat16")
    'bfloat16'
    """
    return one_of("--dtype", given, DTYPES)


def parse_mask(causal: bool, window: int | None) -> dict[str, Any]:
    """The mask's keywords. `window` counts the keys a query sees, its own position among them, as model configs do.

    >>> parse_mask(True, 4)
    {'causal': True, 'window': (3, None)}
    """
    if window is not None and window < 1:
        raise ValueError(f"--window counts the query's own position, so it is at least 1; got {window}")
    if window is not None and window > LONGEST:
        raise ValueError(f"--window is at most {LONGEST:,}, as lengths are; got {window}")
    return {"causal": causal} | ({} if window is None else {"window": (window - 1, None)})
