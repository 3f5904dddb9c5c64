"""One case judged: values against the oracle and the reference, bytes tensor by tensor, and what the emulator found."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpu.crosscheck.cases import ATTENTION, PAGED, Case
from gpu.crosscheck.closed_forms import closed_form_ledger
from gpu.crosscheck.diagnose import diagnose
from gpu.crosscheck.problem import INPLACE, Problem, outputs
from gpu.crosscheck.traffic import Bytes, byte_rows
from gpu.ops.arrays import to_host
from gpu.ops.launch import Prepared
from gpu.runtime import Runtime
from refsim.machine import Ledger
from refsim.numerics import unit_roundoff

# A kernel may be this many times as far from the reference as the reference, which rounds as a kernel does, is from
# the oracle; and a few roundings of the accumulation type more, for sums taken in another order. The reference's own
# error counts for at most some roundings of the storage type: more would be a mistake of the reference.
ERROR_FACTOR, ROUNDINGS, MOST_OWN_ROUNDINGS = 4, 16, 4


@dataclass(frozen=True)
class Error:
    """How far one output is from the reference. `units`: the largest error over its tolerance; above 1 is wrong."""

    output: str
    largest: float
    tolerance: float
    first: str | None  # where the first element beyond the tolerance lies

    @property
    def units(self) -> float:
        """The largest error in units of the tolerance."""
        return self.largest / self.tolerance


@dataclass(frozen=True)
class CaseReport:
    """What came of one case."""

    case: Case
    errors: tuple[Error, ...] = ()
    bytes: tuple[Bytes, ...] = ()
    finding: str | None = None  # of the emulator's checks, or an exception
    kind: str | None = None  # which mistake gives these very values, where one of those known does
    seconds: float = 0.0
    launches: Any = field(default=(), repr=False, compare=False)

    @property
    def values_agree(self) -> bool:
        """Every output within its tolerance."""
        return self.finding is None and all(error.first is None for error in self.errors)

    @property
    def bytes_agree(self) -> bool:
        """Closed form, reference and kernel count the same bytes of every tensor."""
        return all(row.agree for row in self.bytes)

    @property
    def ok(self) -> bool:
        """Nothing wrong."""
        return self.values_agree and self.bytes_agree

    def complaints(self) -> list[str]:
        """What is wrong, a line each."""
        lines = [] if self.finding is None else self.finding.splitlines()
        for error in self.errors:
            if error.first is not None:
                lines.append(
                    f"{error.output} differs by up to {error.largest:.3g}, {error.units:.3g} times the tolerance; "
                    f"first at {error.first}"
                )
        if self.kind is not None:
            lines.append(f"these are the values of: {self.kind}")
        return lines + [str(row) for row in self.bytes if not row.agree]


def run_case(case: Case, runtime: Runtime, *, counted: bool = False) -> CaseReport:
    """Run a case by oracle, reference and kernel, and judge the kernel.

    counted: also run the build of the kernel that adds up its own bytes, which is the way to count on a GPU.
    """
    begin = time.perf_counter()
    problem = Problem.of(case)
    arrays = problem.fresh()
    try:
        prepared = problem.prepare(runtime, device_arrays(runtime, arrays))
        result = prepared.result()
        left = outputs(case, written_arrays(case, prepared, arrays), result)
        got = {name: host(array) for name, array in left.items()}  # a GPU tells only here what went wrong on it
        own = None if not counted else count_itself(problem, runtime)
    except Exception as error:  # whatever a kernel does wrong, the other cases go on
        return CaseReport(case, finding=f"{type(error).__name__}: {error}", seconds=time.perf_counter() - begin)
    expected, ledger = problem.reference()
    exact = problem.oracle()
    errors = tuple(compare(problem, name, got[name], expected[name], exact[name]) for name in expected)
    wrong = any(error.first is not None for error in errors)
    emulated = result if isinstance(result, Ledger) else result.ledger
    rows = byte_rows(closed_form_ledger(problem), ledger, emulated if emulated.nbytes else None, own, prepared.launches)
    kind = diagnose(problem, got, exact, errors) if wrong and case.op in ATTENTION else None
    return CaseReport(case, errors, rows, None, kind, time.perf_counter() - begin, tuple(prepared.launches))


def device_arrays(runtime: Runtime, arrays: dict[str, Any]) -> dict[str, Any]:
    """The inputs where the runtime's kernels reach them."""
    if runtime.name == "emulator":
        return arrays
    return {name: runtime.asarray(array) for name, array in arrays.items()}


def written_arrays(case: Case, prepared: Prepared, arrays: dict[str, Any]) -> dict[str, Any]:
    """The arrays as the kernel left them: those that it writes in place are arguments of its launch."""
    if case.op not in INPLACE:
        return arrays
    launch = prepared.launches[0]
    return arrays | dict(zip(launch.tensors, launch.args[1:], strict=True))


def host(array: Any) -> np.ndarray:
    """Values on the host."""
    values = to_host(array)
    assert values is not None
    return values


def count_itself(problem: Problem, runtime: Runtime) -> Ledger:
    """The bytes that the kernel's counted build adds up."""
    from gpu.ops.counted import counted_ledger

    prepared = problem.prepare(runtime, device_arrays(runtime, problem.fresh()), counted=True)
    return counted_ledger(prepared)


def compare(problem: Problem, name: str, got: Any, expected: np.ndarray, exact: np.ndarray) -> Error:
    """The error of one output against the reference, with a tolerance that comes from the reference's own error."""
    if problem.case.op in INPLACE:
        return _compare_bits(problem, name, got, expected)
    got, expected, exact = (np.asarray(x, np.float64) for x in (got, expected, exact))
    finite = np.isfinite(exact)
    own = np.abs(expected[finite] - exact[finite]).max(initial=0)
    size = np.abs(exact[finite]).max(initial=0)
    own = min(own, MOST_OWN_ROUNDINGS * unit_roundoff(problem.case.dtype) * size)
    tolerance = float(ERROR_FACTOR * own + ROUNDINGS * unit_roundoff("float32") * max(size, 1e-30))
    with np.errstate(invalid="ignore"):  # -inf where a row sees no key
        difference = np.where(finite, np.abs(got - expected), np.where(got == expected, 0, np.inf))
    difference = np.where(np.isnan(difference), np.inf, difference)
    beyond = difference > tolerance
    first = None
    if beyond.any():
        at = tuple(int(i) for i in np.argwhere(beyond)[0])
        first = f"{place(problem, name, at)}: {got[at]:.6g}, the reference {expected[at]:.6g}"
    return Error(name, float(difference.max(initial=0)), tolerance, first)


def _compare_bits(problem: Problem, name: str, got: np.ndarray, expected: np.ndarray) -> Error:
    """Copies move bytes: they are equal or wrong."""
    unlike = got.view(np.uint8).reshape(*got.shape, -1) != expected.view(np.uint8).reshape(*got.shape, -1)
    beyond = unlike.any(axis=-1)
    first = None
    if beyond.any():
        at = tuple(int(i) for i in np.argwhere(beyond)[0])
        first = f"block {at[0]}, slot {at[1]}, head {at[2]}, column {at[3]}: {got[at]}, the reference {expected[at]}"
    return Error(name, float(beyond.any()), 0.5, first)


def place(problem: Problem, name: str, at: tuple[int, ...]) -> str:
    """An element of out (tokens, heads, columns) or lse (heads, tokens) in the words of the batch."""
    token, head = (at[0], at[1]) if name == "out" else (at[1], at[0])
    words = [f"token {token}", f"head {head}"]
    case = problem.case
    if case.op in ATTENTION:
        start = 0
        for sequence, (n, T) in enumerate(case.lengths):
            if token < start + n:
                words[0] = f"sequence {sequence}, query {token - start} of {n}"
                position = T - n + token - start
                if case.op in PAGED and position >= 0:
                    words.append(
                        f"block {position // case.block_size}, slot {position % case.block_size} (its own key)"
                    )
                break
            start += n
    return ", ".join(words + ([f"column {at[2]}"] if name == "out" else []))
