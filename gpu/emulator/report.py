"""What the checks say: kernel, block, thread, tensor and element, source line, and what it means."""

from __future__ import annotations

from dataclasses import dataclass

MEANING = {
    "out_of_bounds": "A GPU reads or overwrites whatever lies there, or ends the program with an illegal address.",
    "misaligned": "A GPU stops with a misaligned address: a vector access must start at a multiple of its size.",
    "uninitialised": "Nobody has written there yet: on a GPU the value is whatever was left there before.",
    "race": "Nothing orders the two accesses, so the result depends on which thread happens to come first.",
    "barrier": "A barrier must be reached by every thread of the block, all at the same one; else a GPU may hang.",
    "mask": "A warp intrinsic must be called by exactly the lanes that its mask names; other values are undefined.",
    "deadlock": "No thread of the block can go on: a GPU would hang.",
    "const_write": "The kernel promised not to write there, and its reads may come from a cache that sees no writes.",
    "overflow": "The value wrapped round in 32 bits before it was widened: widen a factor first, (long long)a * b.",
    "assertion": "The kernel's own assertion does not hold.",
    "crash": "The thread was stopped; the memory of the caller is untouched.",
}


@dataclass(frozen=True)
class Report:
    """One finding.

    ``line`` is that of the text that was compiled, 0 where the place is in a header alone; ``header`` says where in a
    header it is, if in one. ``count`` is how often the same check failed at the same place (in report mode).
    """

    check: str
    kernel: str
    block: tuple[int, int, int]
    thread: tuple[int, int, int]
    line: int
    source: str
    what: str
    tensor: str | None = None
    element: tuple[int, ...] | int | None = None
    other_line: int | None = None
    other_block: tuple[int, int, int] | None = None
    other_thread: tuple[int, int, int] | None = None
    count: int = 1
    header: str = ""

    @property
    def meaning(self) -> str:
        return MEANING[self.check]

    @property
    def place(self) -> str:
        """Line and source, of the text and of the header."""
        places = [f"line {self.line}: {self.source}"] if self.line else []
        return "\n  ".join([*places, self.header] if self.header else places) or "unknown line"

    def __str__(self) -> str:
        times = f" ({self.count} times)" if self.count > 1 else ""
        where = f"kernel `{self.kernel}`, block {self.block}, thread {self.thread}{times}"
        return f"{self.check.replace('_', ' ')} in {where}\n  {self.place}\n  {self.what}\n  {self.meaning}"


class KernelError(RuntimeError):
    """A check failed in mode "raise". ``reports`` holds the findings, first the one that stopped the launch."""

    def __init__(self, reports: list[Report]) -> None:
        self.reports = tuple(reports)
        super().__init__("\n".join(str(r) for r in reports[:3]))

    @property
    def report(self) -> Report:
        return self.reports[0]
