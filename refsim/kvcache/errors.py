"""What the managers raise; every one of them leaves the manager exactly as it was."""

from __future__ import annotations


class OutOfBlocks(RuntimeError):
    """Too few free and evictable blocks: wait, free a sequence, or preempt one."""

    def __init__(self, needed: int, available: int, what: str) -> None:
        self.needed = needed
        self.available = available
        super().__init__(
            f"{what} needs {needed} more block(s), but only {available} are free or evictable; "
            "free or preempt a sequence, or build the manager with more blocks"
        )


class UnknownSequence(KeyError):
    """The sequence id was never allocated, or has been freed already."""

    def __init__(self, seq_id: object) -> None:
        super().__init__(f"sequence {seq_id!r} is unknown: never allocated, or freed already")

    def __str__(self) -> str:
        return str(self.args[0])


class DuplicateSequence(ValueError):
    """The sequence id is already live."""

    def __init__(self, seq_id: object) -> None:
        super().__init__(f"sequence {seq_id!r} is live already; free it first, or choose another id")
