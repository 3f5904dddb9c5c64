"""How a launch is to be run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpu.emulator.limits import STATIC_SHARED_NBYTES
from refsim.checks import is_positive, whole_number

STACK_NBYTES = 128 * 1024
LEAST_STACK_NBYTES = 16 * 1024  # what the emulator itself needs below a kernel's frames


@dataclass(frozen=True)
class Settings:
    """How to run: see `gpu.emulator.run` for what each means."""

    checks: Mapping[str, str]
    workers: int | None = None
    shared_limit: int = STATIC_SHARED_NBYTES
    stack_nbytes: int = STACK_NBYTES
    timeout: float | None = None
    keep_samples: int = 0
    keep_barriers: bool = False
    heat: bool = False
    step_block: int = -1

    def __post_init__(self) -> None:
        if self.workers is not None:
            whole_number("workers", self.workers, 1)
        whole_number("stack_nbytes", self.stack_nbytes, LEAST_STACK_NBYTES)
        whole_number("accesses", self.keep_samples, 0)
        if self.timeout is not None and not is_positive(self.timeout):
            raise ValueError(f"timeout must be a number of seconds above 0, or None for no limit, got {self.timeout!r}")
