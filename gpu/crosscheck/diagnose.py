"""Naming a mistake: the values that well-known mistakes give, held beside the values that a kernel gave."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from gpu.crosscheck.cases import PAGED
from gpu.crosscheck.problem import Problem

if TYPE_CHECKING:
    pass

Values = tuple[np.ndarray, np.ndarray]  # out (tokens, heads, Dv) and lse (heads, tokens)


def diagnose(problem: Problem, got: dict[str, np.ndarray], exact: dict[str, np.ndarray], errors: Any) -> str | None:
    """The mistake whose values are those of the kernel, within the same tolerances; None where no known one fits."""
    tolerances = {error.output: error.tolerance for error in errors}
    if not all(np.isfinite(got[name][np.isfinite(exact[name])]).all() for name in got):
        return "NaN or inf where the answer is finite: poison was read (an unwritten workspace, or slots past the end)"
    for name, make in mistakes(problem, exact):
        try:
            out, lse = make()
        except (ValueError, IndexError):  # the case has no such mistake
            continue
        changed = any(_apart(exact[key], value) > 4 * tolerances[key] for key, value in (("out", out), ("lse", lse)))
        near = all(_apart(got[key], value) <= 4 * tolerances[key] for key, value in (("out", out), ("lse", lse)))
        if changed and near:
            return name
    return None


def mistakes(problem: Problem, exact: dict[str, np.ndarray]) -> Iterator[tuple[str, Callable[[], Values]]]:
    """Mistakes by name, each with the values that it gives."""
    variant, case = problem.case.variant, problem.case
    out, lse = exact["out"], exact["lse"]
    left, right = variant.get("window") or (None, None)
    left = None if left == -1 else left
    yield "the LSE in base 2, not base e", lambda: (out, lse / np.log(2))
    yield "query heads interleaved over the KV heads (h % G, not h // (H/G))", lambda: _heads(problem, "interleaved")
    yield "KV heads in blocks of G (h // G, not h // (H/G))", lambda: _heads(problem, "blocks")
    if left is not None:
        yield "a window one key too wide", lambda: problem.oracle_attention(window=(left + 1, right))
        if left > 0:
            yield "a window one key too narrow", lambda: problem.oracle_attention(window=(left - 1, right))
        yield "no window", lambda: problem.oracle_attention(window=(None, right))
    if variant.get("causal"):
        other = "bottom-right" if variant.get("align") == "top-left" else "top-left"
        yield f"the causal mask aligned {other}", lambda: problem.oracle_attention(align=other)
        yield "no causal mask", lambda: problem.oracle_attention(causal=False)
        yield "a causal mask that peeks one key ahead", lambda: problem.oracle_attention(causal=False, window=(left, 1))
    scale = variant.get("scale") or case.D**-0.5
    yield "the scale left out", lambda: problem.oracle_attention(scale=1.0)
    yield "the scale applied twice", lambda: problem.oracle_attention(scale=scale**2)
    for name in ("softcap", "alibi_slopes", "sinks"):
        if variant.get(name) is not None:
            yield f"{name} left out", partial(problem.oracle_attention, **{name: None})
    yield "keys past the end counted with score 0 (no tail mask)", lambda: _counted_tail(problem, exact)


def _apart(a: np.ndarray, b: np.ndarray) -> float:
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if a.shape != b.shape or (np.isfinite(a) != np.isfinite(b)).any():
        return float("inf")
    finite = np.isfinite(a)
    return float(np.abs(a[finite] - b[finite]).max(initial=0))


def _heads(problem: Problem, order: str) -> Values:
    """The oracle, where query head h reads the KV head that the mistaken map gives it."""
    case = problem.case
    h = np.arange(case.H)
    wrong = h % case.G if order == "interleaved" else np.minimum(h // case.G, case.G - 1)
    names = ("k_cache", "v_cache") if case.op in PAGED else ("k", "v")
    arrays = problem.arrays | {name: np.take(problem.arrays[name], wrong, axis=-2) for name in names}
    return Problem(case, arrays, problem.keywords).oracle_attention()


def _counted_tail(problem: Problem, exact: dict[str, np.ndarray]) -> Values:
    """The oracle, where each key tile's tail past the last key counts as so many keys of score 0 and value 0."""
    out, lse = np.array(exact["out"]), np.array(exact["lse"])
    tile, start = problem.keywords["tile"][1], 0
    for n, T in problem.case.lengths:
        tail, rows = -T % tile, slice(start, start + n)
        if tail and T:
            grown = np.logaddexp(lse[:, rows], np.log(tail))
            out[rows] *= np.exp(lse[:, rows] - grown).T[:, :, None]
            lse[:, rows] = grown
        start += n
    return out, lse
