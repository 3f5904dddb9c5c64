"""Rules that stretch RoPE past the length a model was trained on.

Every rule answers two questions: which inverse frequencies to rotate by, and by how much to multiply cos and sin
(`attention_factor`, 1 for all but YaRN). A pair of low index turns fast and tells neighbours apart; a pair of high
index turns slowly and tells far from near. The rules differ in which of them they slow down.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from refsim.checks import is_finite, is_positive

if TYPE_CHECKING:
    from jaxtyping import Float64


class Scaling(Protocol):
    """A RoPE scaling rule."""

    @property
    def attention_factor(self) -> float:
        """What cos and sin are multiplied by."""

    def inv_freq(self, d: int, base: float) -> Float64[np.ndarray, "d//2"]:
        """Radians a position, one for each of the d/2 pairs."""


def plain(d: int, base: float) -> Float64[np.ndarray, "d//2"]:
    """Unscaled inverse frequencies base^(-2i/d), i = 0 .. d/2-1, in radians a position.

    Source: RoFormer (Su et al. 2021), section 3.2.2. Raises ValueError for an odd or empty d and a base of 1 or less.

    >>> plain(4, 10000.0)
    array([1.  , 0.01])
    """
    if d < 2 or d % 2:
        raise ValueError(f"RoPE rotates pairs, so the head size must be even and at least 2; got d={d}")
    if not is_finite(base) or base <= 1:
        raise ValueError(f"RoPE's base must be a finite number above 1 (10000 is usual); got base={base!r}")
    return float(base) ** (-np.arange(0, d, 2, dtype=np.float64) / d)


def ntk_base(base: float, d: int, s: float) -> float:
    """The larger base of NTK-aware scaling, base * s^(d/(d-2)): the fastest pair keeps its speed, the slowest is
    slowed by exactly s.

    >>> round(ntk_base(10000.0, 128, 2.0), 1)
    20221.3
    """
    if d <= 2:
        raise ValueError(f"NTK-aware scaling needs at least two pairs (d >= 4) to keep one and slow another; got d={d}")
    return float(base * s ** (d / (d - 2)))


def _check(**numbers: float) -> None:
    """Every parameter is a finite number above zero, and a factor is at least 1."""
    for name, value in numbers.items():
        if not is_positive(value):
            raise ValueError(f"RoPE scaling: {name} must be a finite number above 0; got {value!r}")
    if numbers.get("factor", 1.0) < 1:
        raise ValueError(f"RoPE scaling stretches: factor must be at least 1; got {numbers['factor']}")


@dataclass(frozen=True)
class Linear:
    """Position interpolation: every pair turns `factor` times slower (Chen et al. 2023, "Extending context window")."""

    factor: float
    attention_factor: float = 1.0

    def __post_init__(self) -> None:
        _check(factor=self.factor)

    def inv_freq(self, d: int, base: float) -> Float64[np.ndarray, "d//2"]:
        return plain(d, base) / self.factor


@dataclass(frozen=True)
class NtkAware:
    """NTK-aware scaling: a larger base, base * factor^(d/(d-2))."""

    factor: float
    attention_factor: float = 1.0

    def __post_init__(self) -> None:
        _check(factor=self.factor)

    def inv_freq(self, d: int, base: float) -> Float64[np.ndarray, "d//2"]:
        return plain(d, ntk_base(base, d, self.factor))


@dataclass(frozen=True)
class DynamicNtk:
    """NTK-aware scaling that grows with the length in use: s = factor * length / original - (factor - 1).

    Up to the `original` length nothing changes. Keys are rotated before they are cached, so one run has to keep to one
    length: choose it with `at(length)`.
    """

    factor: float
    original: int
    length: int = 0
    attention_factor: float = 1.0

    def __post_init__(self) -> None:
        _check(factor=self.factor, original=self.original)

    def at(self, length: int) -> DynamicNtk:
        """The same rule for a run of up to `length` tokens."""
        return replace(self, length=length)

    def inv_freq(self, d: int, base: float) -> Float64[np.ndarray, "d//2"]:
        length = max(self.length, self.original)
        return plain(d, ntk_base(base, d, self.factor * length / self.original - (self.factor - 1)))


@dataclass(frozen=True)
class Yarn:
    """YaRN (Peng et al. 2023, "YaRN", section 3): fast pairs stay, slow pairs are interpolated, a ramp lies between.

    Fast means at least `beta_fast` whole turns within the `original` length, slow at most `beta_slow`. The scores are
    sharpened too: cos and sin are multiplied by 0.1 ln(factor) + 1, so q.k by its square.
    """

    factor: float
    original: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    given_attention_factor: float | None = None
    truncate: bool = True

    def __post_init__(self) -> None:
        _check(factor=self.factor, original=self.original, beta_fast=self.beta_fast, beta_slow=self.beta_slow)
        if self.given_attention_factor is not None:
            _check(attention_factor=self.given_attention_factor)
        if self.beta_fast <= self.beta_slow:
            raise ValueError(f"YaRN: beta_fast={self.beta_fast} must be above beta_slow={self.beta_slow}")

    @property
    def attention_factor(self) -> float:
        return 0.1 * math.log(self.factor) + 1.0 if self.given_attention_factor is None else self.given_attention_factor

    def correction_range(self, d: int, base: float) -> tuple[float, float]:
        """The pair indices (low, high) between which the ramp runs: the last fast pair and the first slow one."""

        def pair_that_turns(times: float) -> float:
            return d * math.log(self.original / (times * 2 * math.pi)) / (2 * math.log(base))

        low, high = pair_that_turns(self.beta_fast), pair_that_turns(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        return max(low, 0), min(high, d - 1)

    def inv_freq(self, d: int, base: float) -> Float64[np.ndarray, "d//2"]:
        fast = plain(d, base)
        low, high = self.correction_range(d, base)
        # A ramp of no width is a step; the tiny width keeps the division defined.
        slowness = np.clip((np.arange(d // 2) - low) / max(high - low, 1e-3), 0.0, 1.0)
        return fast * (1.0 - slowness) + fast / self.factor * slowness


@dataclass(frozen=True)
class Llama3:
    """The rule of Llama 3.1: pairs are kept, divided by `factor`, or smoothed, by their wavelength 2 pi / inv_freq.

    Wavelengths below original / high_freq_factor are kept, above original / low_freq_factor divided; between the two
    the frequency is a mean of both, weighted by the turns within the original length.
    """

    factor: float
    original: int
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    attention_factor: float = 1.0

    def __post_init__(self) -> None:
        _check(factor=self.factor, original=self.original, low_freq_factor=self.low_freq_factor)
        if not self.high_freq_factor > self.low_freq_factor:
            raise ValueError(
                f"Llama 3 scaling: high_freq_factor={self.high_freq_factor} must be above "
                f"low_freq_factor={self.low_freq_factor}"
            )

    def inv_freq(self, d: int, base: float) -> Float64[np.ndarray, "d//2"]:
        kept = plain(d, base)
        turns = self.original * kept / (2 * np.pi)
        weight = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        weight = np.clip(weight, 0.0, 1.0)
        return weight * kept + (1.0 - weight) * kept / self.factor
