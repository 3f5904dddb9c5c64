"""Operations: a call is prepared (checked, compiled, given its workspaces), then run, once or many times."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar

from gpu.ops.launch import Prepared

P = ParamSpec("P")
R = TypeVar("R")


class Operation(Generic[P, R]):
    """A function that prepares a call. Call it for the answer; `.prepare(...)` stops before the launch.

    >>> from gpu import ops
    >>> ops.merge
    <operation gpu.ops.merge>
    """

    def __init__(self, prepare: Callable[P, Prepared[R]]) -> None:
        self._prepare = prepare
        functools.update_wrapper(self, prepare)
        # What a caller gives and gets, which help() and notebooks show: the answer, and not what is prepared for it.
        whole = inspect.signature(prepare)
        answer = str(whole.return_annotation).removeprefix("Prepared[").removesuffix("]")
        self.__signature__ = whole.replace(return_annotation=answer)

    def __repr__(self) -> str:
        return f"<operation gpu.ops.{self._prepare.__name__}>"

    def __reduce__(self) -> str:
        """Pickled by name, as a function is, so that it may be sent to other processes."""
        return self._prepare.__qualname__

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._prepare(*args, **kwargs).result()

    def prepare(self, *args: P.args, **kwargs: P.kwargs) -> Prepared[R]:
        """Everything that comes before the launch: the same arguments, ready to run as often as you like."""
        return self._prepare(*args, **kwargs)


def operation(prepare: Callable[P, Prepared[R]]) -> Operation[P, R]:
    """Decorate a function that returns `Prepared`."""
    return Operation(prepare)
