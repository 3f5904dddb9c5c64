"""Steps: an algorithm is written once, as a generator; calling it runs it, `.steps` walks it."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, ParamSpec, TypeVar

import numpy as np

from refsim.machine.ledger import Ledger
from refsim.machine.machine import Machine
from refsim.machine.tile import Tile

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Step:
    """One step of an algorithm.

    name: what it did ("absorb").  kernel: which launch it belongs to.  index: where (sequence, tile, split, ...).
    before, after: copies of the state it names, as NumPy arrays with the grid's axes in front; `before` holds what the
    previous step left of the same names.  delta: what it added to the ledger.  line: the source line, "file.py:87".
    """

    name: str
    kernel: str
    index: MappingProxyType[str, int]
    before: MappingProxyType[str, np.ndarray]
    after: MappingProxyType[str, np.ndarray]
    delta: Ledger
    line: str

    def __str__(self) -> str:
        at = ", ".join(f"{name} {value}" for name, value in self.index.items())
        return f"{self.kernel}: {self.name} ({at})  {self.line}  HBM {self.delta.hbm_nbytes:,} B"


class Watch:
    """Makes the steps of one run. A silent watch makes none and costs next to nothing."""

    def __init__(self, *, silent: bool, machine: Any = None) -> None:
        self.silent = silent
        self._state: dict[str, np.ndarray] = {}
        # What a given machine did before the first step is no part of it; one that the run makes begins at nothing.
        self._ledgers = {machine: machine.ledger()} if isinstance(machine, Machine) else {}

    def step(self, name: str, machine: Machine, kernel: str, index: dict[str, int], **state: Any) -> Step | None:
        """Record a step. `state` holds tiles, arrays or numbers; their values are copied."""
        if self.silent:
            return None
        frame = sys._getframe(1)
        now, ledger = {key: _copy(value) for key, value in state.items()}, machine.ledger()
        step = Step(
            name=name,
            kernel=kernel,
            index=MappingProxyType({key: int(at) for key, at in index.items()}),
            before=MappingProxyType({key: self._state[key] for key in now if key in self._state}),
            after=MappingProxyType(now),
            delta=ledger - self._ledgers.get(machine, Ledger()),
            line=f"{frame.f_code.co_filename.rsplit('/', 1)[-1]}:{frame.f_lineno}",
        )
        self._state |= now
        self._ledgers[machine] = ledger
        return step


class Walk(Generic[R]):
    """An iterator over steps; `result` is there once it has ended."""

    def __init__(self, generator: Generator[Step | None, None, R]) -> None:
        self._generator = generator
        self._result: R | None = None
        self._ended = self._failed = False

    def __iter__(self) -> Iterator[Step]:
        return self

    def __next__(self) -> Step:
        try:
            while (step := next(self._generator)) is None:
                pass
        except StopIteration as end:
            if not self._ended:
                self._result, self._ended = end.value, True
            raise StopIteration from None
        except BaseException:
            self._failed = True
            raise
        return step

    @property
    def result(self) -> R:
        """What the algorithm returns. Raises RuntimeError before its last step, and after an error."""
        if self._failed:
            raise RuntimeError("the walk ended with an error and has no result")
        if not self._ended:
            raise RuntimeError("the walk has not ended yet: take its remaining steps first")
        return self._result  # type: ignore[return-value]


class Algorithm(Generic[P, R]):
    """A generator function that takes a `Watch` first. Call it for its result, or walk it with `.steps`."""

    def __init__(self, generator: Callable[..., Generator[Step | None, None, R]]) -> None:
        self.generator = generator
        functools.update_wrapper(self, generator)
        # What a caller gives and gets, which help() and notebooks show: no watch, and no generator.
        whole = inspect.signature(generator)
        self.__signature__ = whole.replace(
            parameters=list(whole.parameters.values())[1:], return_annotation=inspect.Signature.empty
        )

    def __repr__(self) -> str:
        return f"<algorithm {self.generator.__module__}.{self.generator.__qualname__}>"

    def __reduce__(self) -> str:
        """Pickled by name, as a function is, so that it may be sent to other processes."""
        return self.generator.__qualname__

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        run = self.generator(Watch(silent=True), *args, **kwargs)
        try:
            while True:
                next(run)
        except StopIteration as end:
            return end.value

    def steps(self, *args: P.args, **kwargs: P.kwargs) -> Walk[R]:
        """The same run, a step at a time."""

        def run() -> Generator[Step | None, None, R]:
            watch = Watch(silent=False, machine=kwargs.get("machine"))
            return (yield from self.generator(watch, *args, **kwargs))

        return Walk(run())


def algorithm(generator: Callable[..., Generator[Step | None, None, R]]) -> Algorithm[..., R]:
    """Decorate a generator function `(watch, ...)` that yields `watch.step(...)` and returns a result."""
    return Algorithm(generator)


def _copy(value: Any) -> np.ndarray:
    return np.array(value.data if isinstance(value, Tile) else value)
