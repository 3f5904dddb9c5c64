"""Which problems a cross-check runs: by op, type, shape and mask, at three levels."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from refsim.checks import one_of

ATTENTION = ("standard", "flash", "paged", "paged_gather", "split_kv", "split_kv_paged")
OPS = (*ATTENTION, "append", "copy_blocks", "merge", "rope")
PAGED = ("paged", "paged_gather", "split_kv_paged")
LEVELS = ("quick", "standard", "exhaustive")
DTYPES = ("float32", "float16", "bfloat16")

# (queries, keys) of each sequence: more of either, one, none, and sizes around a block and a tile.
MIXED = ((20, 37), (1, 5), (0, 7), (3, 0), (17, 17), (9, 4))
DECODE = ((1, 37), (1, 16), (1, 0), (1, 65))
ONE = ((33, 50),)


@dataclass(frozen=True)
class Case:
    """One problem: an op with everything that makes its inputs. `variant` and `options` are keywords of the call."""

    op: str
    dtype: str = "float32"
    lengths: tuple[tuple[int, int], ...] = MIXED
    H: int = 4
    G: int = 2
    D: int = 32
    Dv: int = 32
    block_size: int = 8
    tile: tuple[int, int] | None = (16, 16)
    variant: MappingProxyType[str, Any] = field(default_factory=lambda: MappingProxyType({}), hash=False)
    options: MappingProxyType[str, Any] = field(default_factory=lambda: MappingProxyType({}), hash=False)
    seed: int = 0

    @property
    def ragged(self) -> bool:
        """Is the batch given by cu_seqlens? Paged decode has one query a sequence without."""
        return any(n != 1 for n, _ in self.lengths) if self.op in PAGED else len(self.lengths) != 1

    def __str__(self) -> str:
        sizes = f"{self.D}" if self.Dv == self.D else f"{self.D}/{self.Dv}"
        words = [self.op, self.dtype, f"{self.H}/{self.G} heads of {sizes}"]
        if self.op in ATTENTION:
            words.append("decode" if self.lengths == DECODE else f"{len(self.lengths)} sequences")
        words += [f"{name}={value}" for name, value in {**self.variant, **self.options}.items()]
        return " ".join(words)


def keywords(**values: Any) -> MappingProxyType[str, Any]:
    """Keywords of a call, which can't change any more."""
    return MappingProxyType(values)


CAUSAL = keywords(causal=True)
WINDOW = keywords(causal=True, window=(5, 0))
# Everything at once; slopes and sinks of 4 heads.
LOADED = keywords(
    causal=True, window=(9, -1), softcap=5.0, scale=0.3, alibi_slopes=(0.0, 0.1, 0.2, 0.3), sinks=(0.0, 0.5, -1.0, 2.0)
)
TOP_LEFT = keywords(causal=True, align="top-left")
BOTH_SIDES = keywords(window=(3, 2))


def cases(level: str = "quick", ops: tuple[str, ...] = OPS) -> list[Case]:
    """The cases of a level for some ops.

    >>> {case.op for case in cases("quick")} == set(OPS)
    True
    """
    one_of("level", level, LEVELS)
    if unknown := set(ops) - set(OPS):
        raise ValueError(f"no op {min(unknown)!r}; there are {', '.join(OPS)}")
    return [case for op in ops for case in (_attention(op, level) if op in ATTENTION else _small(op, level))]


def _attention(op: str, level: str) -> list[Case]:
    base = Case(op)
    packed, apart = _options(op, True), _options(op, False)
    odd: dict[str, Any] = {"D": 33, "Dv": 41, "block_size": 3, "tile": (8, 7)}
    quick = [
        replace(base, variant=LOADED, options=packed),
        replace(base, dtype="float16", D=64, Dv=64, lengths=DECODE if op in PAGED else ONE, options=packed),
        replace(base, dtype="bfloat16", D=64, Dv=32, variant=CAUSAL, options=apart),
        replace(base, **odd, variant=WINDOW, options=_options(op, True, num_splits=9)),
    ]
    if op in ("flash", "paged"):  # on tensor cores as well
        plain = keywords(pack_gqa=False, form="mma")
        quick.append(
            replace(base, dtype="float16", D=64, Dv=64, variant=LOADED, options=keywords(pack_gqa=True, form="mma"))
        )
        quick.append(replace(base, dtype="bfloat16", D=32, Dv=48, tile=(33, 40), variant=WINDOW, options=plain))
    if level == "quick":
        return quick
    more = [
        replace(base, lengths=lengths, variant=variant, options=_options(op, pack, num_splits=splits), seed=1)
        for (lengths, variant), (pack, splits) in itertools.product(
            [(MIXED, TOP_LEFT), (MIXED, BOTH_SIDES), (DECODE, WINDOW), (ONE, keywords())],
            [(True, 3)] if level == "standard" else [(True, 1), (False, 7)],
        )
    ]
    more.append(replace(base, options=_options(op, True, handover="state"), variant=LOADED))
    if level == "exhaustive":
        more += [
            replace(base, dtype=dtype, D=D, Dv=Dv, block_size=B, variant=variant, tile=tile, options=packed)
            for dtype, (D, Dv), (B, tile), variant in itertools.product(
                DTYPES,
                [(32, 32), (96, 64), (128, 128), (80, 80), (256, 256)],
                [(16, None), (1, (32, 16)), (48, (16, 32))],
                [CAUSAL, LOADED],
            )
        ]
    return quick + more


def _options(op: str, packed: bool, **split: Any) -> MappingProxyType[str, Any]:
    """Keywords that the op takes, of those given."""
    taken: dict[str, Any] = {} if op == "standard" else {"pack_gqa": packed}
    if op in ("flash", "paged"):
        taken["form"] = "scalar"
    if op.startswith("split_kv"):
        taken |= {"num_splits": 3} | split
    return keywords(**taken)


def _small(op: str, level: str) -> list[Case]:
    base = Case(op, lengths=((37, 37),))
    quick = [
        replace(base, dtype=dtype, D=D, Dv=Dv) for dtype, D, Dv in zip(DTYPES, (32, 64, 34), (32, 48, 34), strict=True)
    ]
    if op == "rope":
        quick = [replace(case, options=keywords(style=style)) for case in quick for style in ("half", "interleaved")]
    if level == "quick":
        return quick
    tokens = (1, 16, 33) if level == "standard" else (0, 1, 15, 16, 17, 100)
    return quick + [replace(case, lengths=((n, n),), seed=1) for case, n in itertools.product(quick, tokens)]
