"""Merging attention over two sets of keys as a kernel does it: by LSE, a program for some tokens of a head."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import numpy as np

from refsim.attention.call import Result
from refsim.machine import Machine, Step, Watch, algorithm
from refsim.machine.machine import machine_of
from refsim.numerics import carrier, dtype_of
from refsim.softmax import check_lse

if TYPE_CHECKING:
    from jaxtyping import Float

ROWS = 16  # tokens a program


@algorithm
def merge(
    watch: Watch,
    out_a: Float[np.ndarray, "n H Dv"],
    lse_a: Float[np.ndarray, "H n"],
    out_b: Float[np.ndarray, "n H Dv"],
    lse_b: Float[np.ndarray, "H n"],
    *,
    machine: Machine | None = None,
) -> Generator[Step | None, None, Result]:
    """`softmax.merge` on the machine: (out, lse) over both sets of keys. out has the type of out_a, LSEs are natural.

    Two empty sets give 0 and -inf; what weighs nothing may be NaN.

    Raises ValueError for an LSE of +inf or NaN, and for shapes or types that don't match.

    Source: "Flash-Decoding for long-context inference"; FlashInfer's attention states.

    >>> merge(np.ones((1, 1, 1)), np.array([[4.0]]), np.zeros((1, 1, 1)), np.array([[2.0]])).out.item().__round__(4)
    0.8808
    """
    out_a, lse_a, out_b, lse_b = (np.asarray(x) for x in (out_a, lse_a, out_b, lse_b))
    check_merge(out_a, lse_a, out_b, lse_b)
    check_lse(lse_a)
    check_lse(lse_b)
    machine = machine_of(machine).apart()
    n, H, Dv = out_a.shape
    acc = carrier(out_a.dtype)
    out, lse = np.full(out_a.shape, np.nan, out_a.dtype), np.full((H, n), np.nan, lse_a.dtype)
    outs = [machine.hbm(name, x.swapaxes(0, 1)) for name, x in (("out_a", out_a), ("out_b", out_b))]
    lses = [machine.hbm(name, x) for name, x in (("lse_a", lse_a), ("lse_b", lse_b))]
    to_out = machine.hbm("out", out.swapaxes(0, 1), writable=True)
    to_lse = machine.hbm("lse", lse, writable=True)
    with machine.kernel("merge") as kernel:
        for start in range(0, n, ROWS):
            at = np.s_[:, start : min(start + ROWS, n)]
            with kernel.programs(H) as prog:
                a, b = (prog.load(x, at, into=prog.buffer(x.name, (ROWS,), acc)) for x in lses)
                m = np.maximum(a, b)
                shift = np.maximum(m, np.finfo(acc).min)  # two empty sets: no (-inf) - (-inf)
                weights = [np.exp(a - shift), np.exp(b - shift)]
                some = np.maximum(weights[0] + weights[1], np.finfo(acc).tiny)
                total = prog.buffer("out", (ROWS, Dv), acc).full(0, m.shape[0], Dv)
                for weight, source in zip(weights, outs, strict=True):
                    part = prog.load(source, at, into=prog.buffer(source.name, (ROWS, Dv), source.dtype))
                    with np.errstate(invalid="ignore"):
                        share = part * (weight / some)[..., None]
                    share.mask(weight.data[..., None] == 0, 0)  # 0 * NaN is NaN
                    np.add(total, share, out=total)
                merged = m + np.log(some)
                prog.store(total, to_out, at)
                prog.store(merged, to_lse, at)
                yield watch.step("merge", machine, "merge", {"first_token": start}, out=total, lse=merged)
    return Result(out, lse, machine.ledger())


def check_merge(out_a: Any, lse_a: Any, out_b: Any, lse_b: Any) -> None:
    """Check shapes and types of two answers that are to be merged. Touches no values."""
    for name, a, b in (("outputs", out_a, out_b), ("LSEs", lse_a, lse_b)):
        if tuple(a.shape) != tuple(b.shape):
            raise ValueError(f"the two {name} must have one shape, got {tuple(a.shape)} and {tuple(b.shape)}")
        if dtype_of(a.dtype) != dtype_of(b.dtype):
            raise ValueError(f"the two {name} must have one type, got {a.dtype} and {b.dtype}")
    if len(out_a.shape) != 3 or tuple(lse_a.shape) != (out_a.shape[1], out_a.shape[0]):
        raise ValueError(
            "expected out (tokens, heads, Dv) and lse (heads, tokens), "
            f"got {tuple(out_a.shape)} and {tuple(lse_a.shape)}"
        )
