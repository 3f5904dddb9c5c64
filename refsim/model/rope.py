"""Rotary position embedding: turn each pair of numbers of a head by an angle that grows with the position.

After the turn the inner product of a query at m and a key at n depends on m - n alone (RoFormer, Su et al. 2021,
equation 16). Which numbers form a pair is a convention, and mixing conventions up yields fluent nonsense, no error:

    "half"          x[i] with x[i + d/2]    GPT-NeoX, Llama and Qwen3 in Hugging Face's layout
    "interleaved"   x[2i] with x[2i + 1]    GPT-J, Llama in Meta's own layout, llama2.c
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from refsim.checks import is_real, one_of
from refsim.model.rope_scaling import Scaling, plain

if TYPE_CHECKING:
    from jaxtyping import Float, Float64, Int

Style = Literal["half", "interleaved"]
STYLES = ("half", "interleaved")


def inv_freq(d: int, base: float, scaling: Scaling | None = None) -> Float64[np.ndarray, "d//2"]:
    """Inverse frequencies of a head of d numbers, in radians a position; `scaling` is a rule of `rope_scaling`.

    >>> from refsim.model.rope_scaling import Linear
    >>> inv_freq(4, 10000.0, Linear(factor=2.0))
    array([0.5  , 0.005])
    """
    if scaling is not None and not hasattr(scaling, "inv_freq"):
        raise TypeError(f"scaling must be a rule of refsim.model.rope_scaling, such as Linear(8), got {scaling!r}")
    return plain(d, base) if scaling is None else scaling.inv_freq(d, base)


def angles(
    positions: Int[np.ndarray, "*tokens"], inv_freq: Float[np.ndarray, "pairs"], attention_factor: float = 1.0
) -> tuple[Float64[np.ndarray, "*tokens pairs"], Float64[np.ndarray, "*tokens pairs"]]:
    """cos and sin of position * inv_freq, times `attention_factor` (YaRN's; 1 otherwise)."""
    turned = np.asarray(positions)[..., None] * np.asarray(inv_freq, dtype=np.float64)
    return np.cos(turned) * attention_factor, np.sin(turned) * attention_factor


def rotate(
    x: Float[np.ndarray, "tokens heads d"],
    cos: Float[np.ndarray, "tokens pairs"],
    sin: Float[np.ndarray, "tokens pairs"],
    style: Style = "half",
) -> Float[np.ndarray, "tokens heads d"]:
    """Turn the pairs of x by angles given as cos and sin. Computes in float32, or float64 for float64 input."""
    half = x.shape[-1] // 2
    if one_of("style", style, STYLES) == "half":
        first, second = slice(None, half), slice(half, None)
    else:
        first, second = slice(0, None, 2), slice(1, None, 2)
    compute = np.float64 if x.dtype == np.float64 else np.float32
    # One more axis for each one (heads) that x has between tokens and numbers.
    lead = cos.shape[:-1] + (1,) * (x.ndim - cos.ndim) + cos.shape[-1:]
    cos, sin = cos.reshape(lead).astype(compute), sin.reshape(lead).astype(compute)
    a, b = x[..., first].astype(compute), x[..., second].astype(compute)
    out = np.empty(x.shape, dtype=x.dtype)
    out[..., first] = a * cos - b * sin
    out[..., second] = b * cos + a * sin
    return out


def apply(
    x: Float[np.ndarray, "tokens heads d"],
    positions: Int[np.ndarray, "tokens"],
    inv_freq: Float[np.ndarray, "pairs"],
    style: Style = "half",
    *,
    attention_factor: float = 1.0,
) -> Float[np.ndarray, "tokens heads d"]:
    """Rotate queries or keys x by their positions; the result has the shape and dtype of x (integers become float64).

    The leading axes of x are those of `positions`; axes between them and the last one (heads) share the angle.
    Raises ValueError when shapes do not fit, x is not made of real numbers, positions are not whole numbers, or the
    style is unknown.

    >>> apply(np.array([1.0, 2.0, 3.0, 4.0]), 1, np.array([1.0, 0.01]), "half").round(4)
    array([-1.9841,  1.9599,  2.4624,  4.0198])
    >>> apply(np.array([1.0, 2.0, 3.0, 4.0]), 1, np.array([1.0, 0.01]), "interleaved").round(4)
    array([-1.1426,  1.9221,  2.9599,  4.0298])
    """
    x, positions, inv_freq = np.asarray(x), np.asarray(positions), np.asarray(inv_freq)
    if inv_freq.ndim != 1 or x.ndim < 1 or x.shape[-1] != 2 * len(inv_freq):
        raise ValueError(
            f"RoPE: the last axis of x must hold a pair for each inverse frequency; got x of shape {x.shape} "
            f"with inv_freq of shape {inv_freq.shape}"
        )
    if not is_real(x.dtype):
        raise ValueError(f"RoPE: x must hold real numbers; got dtype {x.dtype}")
    if positions.size == 0:
        positions = positions.astype(np.int64)  # an empty list has no type of its own
    if positions.dtype.kind not in "iu":
        raise ValueError(f"RoPE: positions must be whole numbers; got dtype {positions.dtype}")
    if positions.shape != x.shape[: positions.ndim] or positions.ndim >= x.ndim:
        raise ValueError(
            f"RoPE: one position for each token: positions of shape {positions.shape} do not match the leading axes "
            f"of x of shape {x.shape}"
        )
    if x.dtype.kind in "iub":
        x = x.astype(np.float64)
    return rotate(x, *angles(positions, inv_freq, attention_factor), style)


def identify(
    x: Float[np.ndarray, "tokens heads d"],
    rotated: Float[np.ndarray, "tokens heads d"],
    positions: Int[np.ndarray, "tokens"],
    inv_freq: Float[np.ndarray, "pairs"],
    rtol: float = 1e-3,
) -> str:
    """Say how somebody's `rotated` came from x: which pairing, and whether it was turned once, twice, backwards or not.

    Answers "half", "interleaved", "half, twice", "half, backwards" and so on, "not rotated", or "unknown". Rotating
    what was rotated already, and rotating by the other pairing, are the mistakes seen most in the field.

    Raises ValueError as `apply` does, and when `rotated` has another shape than x.

    >>> f, x = np.array([1.0, 0.01]), np.array([[1.0, 2.0, 3.0, 4.0]])
    >>> identify(x, apply(apply(x, [1], f), [1], f), [1], f)
    'half, twice'
    """
    x, rotated, positions = np.asarray(x), np.asarray(rotated), np.asarray(positions)
    if x.shape != rotated.shape:
        raise ValueError(f"RoPE: what was rotated must have x's shape {x.shape}; got {rotated.shape}")
    if positions.dtype.kind == "u":
        positions = positions.astype(np.int64)  # to turn backwards
    guesses = {"not rotated": x}
    for style in STYLES:
        for how, times in {"": 1, ", twice": 2, ", backwards": -1}.items():
            guesses[style + how] = apply(x, positions * times, inv_freq, style)  # type: ignore[arg-type]
    scale = float(np.abs(x).max(initial=0.0)) or 1.0
    distance = {name: float(np.abs(guess - rotated).max(initial=0.0)) / scale for name, guess in guesses.items()}
    best = min(distance, key=lambda name: distance[name])
    return best if distance[best] <= rtol else "unknown"
