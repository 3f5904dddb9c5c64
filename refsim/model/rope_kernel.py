"""RoPE as a kernel does it: a program a token, which turns all its heads by the same angles."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from refsim.checks import one_of
from refsim.machine import Ledger, Machine, Step, Watch, algorithm
from refsim.machine.machine import machine_of
from refsim.model.rope import STYLES, Style
from refsim.numerics import dtype_of

if TYPE_CHECKING:
    from jaxtyping import Float, Int


class Rotated(NamedTuple):
    """out (tokens, heads, d) in the type of x, and what it cost."""

    out: Float[np.ndarray, "tokens heads d"]
    ledger: Ledger


@algorithm
def rope(
    watch: Watch,
    x: Float[np.ndarray, "tokens heads d"],
    positions: Int[np.ndarray, "tokens"],
    inv_freq: Float[np.ndarray, "pairs"],
    style: Style = "half",
    *,
    attention_factor: float = 1.0,
    machine: Machine | None = None,
) -> Generator[Step | None, None, Rotated]:
    """`rope.apply` on the machine, for x of three axes and one position a token (64-bit). Returns (out, ledger).

    Angles are computed in float64: at position 100000 float32 has lost the fast frequencies.

    Raises ValueError for shapes that don't fit, positions that aren't whole numbers and an unknown style.

    Source: "RoFormer: Enhanced Transformer with Rotary Position Embedding", equation 15.

    >>> rope(np.array([[[1.0, 2.0, 3.0, 4.0]]]), np.array([1]), np.array([1.0, 0.01])).out.round(4)
    array([[[-1.9841,  1.9599,  2.4624,  4.0198]]])
    """
    x = np.asarray(x)
    at, frequencies = check_rope(x, positions, inv_freq, style)
    machine = machine_of(machine).apart()
    tokens, heads, d = x.shape
    out = np.full(x.shape, np.nan, x.dtype)
    # The first and the second number of each pair.
    parts = [slice(0, d // 2), slice(d // 2, d)] if style == "half" else [slice(0, d, 2), slice(1, d, 2)]
    halves_in = [machine.hbm("x", x[..., part]) for part in parts]
    halves_out = [machine.hbm("out", out[..., part], writable=True) for part in parts]
    where, turns = machine.hbm("positions", at), machine.hbm("inv_freq", frequencies[None])
    with machine.kernel("rope") as kernel, kernel.programs(tokens) as prog:
        position = prog.load_index(where, ..., per_program=1)
        frequency = prog.load(turns, ..., into=prog.buffer("inv_freq", (d // 2,), turns.dtype))
        angle = frequency * position[:, None]
        cos, sin = np.cos(angle) * attention_factor, np.sin(angle) * attention_factor
        a, b = (
            prog.load(half, ..., into=prog.buffer(f"x {i}", (heads, d // 2), x.dtype))
            for i, half in enumerate(halves_in)
        )
        turned = a * cos[..., None, :] - b * sin[..., None, :], b * cos[..., None, :] + a * sin[..., None, :]
        for half, target in zip(turned, halves_out, strict=True):
            prog.store(half, target, ...)
        yield watch.step("turn", machine, "rope", {"tokens": tokens}, cos=cos, sin=sin)
    return Rotated(out, machine.ledger())


def check_rope(
    x: Any, positions: Any, inv_freq: Any, style: Any
) -> tuple[Int[np.ndarray, "tokens"], Float[np.ndarray, "pairs"]]:
    """Positions in 64 bits and inverse frequencies in float64, once they are known to fit x. Touches no values of x."""
    dtype_of(x.dtype)
    at, frequencies = np.asarray(positions), np.asarray(inv_freq)
    if len(x.shape) != 3 or frequencies.ndim != 1 or x.shape[2] != 2 * len(frequencies):
        raise ValueError(
            "RoPE: x must be (tokens, heads, d) with an inverse frequency for each of its d/2 pairs; got x of shape "
            f"{tuple(x.shape)} with inv_freq of shape {frequencies.shape}"
        )
    if at.shape != tuple(x.shape[:1]) or (at.size and at.dtype.kind not in "iu"):
        raise ValueError(f"RoPE: one whole position a token; got {at.dtype} {at.shape} for {x.shape[0]} tokens")
    one_of("style", style, STYLES)
    return at.astype(np.int64), frequencies.astype(np.float64)
