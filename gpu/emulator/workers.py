"""The processes that run the blocks of a launch: forked from this one, so that a crash of theirs is none of ours."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time

from gpu.emulator import native

ANSWER_SECONDS = 1.0
STILL_RUNNING = "was still running"  # what a worker says when it is asked where it is
_PAUSE_SECONDS = 0.0005
_starting = threading.Lock()


class Workers:
    """The workers of one launch; `pids` are those that haven't ended."""

    def __init__(self, library: ctypes.CDLL, kernel: str) -> None:
        self.library, self.kernel = library, kernel
        self.pids: list[int] = []

    def start(self, control: native.Launch, threads: int) -> None:
        """Fork them. One launch at a time: stacks are made for the next and inherited by them."""
        nbytes = control.stack_nbytes
        with _starting:
            if not self.library.refsim_stacks(threads, nbytes):
                raise MemoryError(f"no memory for {threads} stacks of {nbytes} bytes")
            for i in range(control.workers):
                pid = self.library.refsim_spawn(ctypes.byref(control), i)
                if pid < 0:
                    raise OSError("the emulator could not fork a worker")
                self.pids.append(pid)

    def wait(self, seconds: float | None) -> bool:
        """Until all have ended: True. False where that takes longer; None waits as long as it takes.

        Raises
        ------
        RuntimeError
            A worker was killed from outside.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        while self.pids:
            pid, status = os.waitpid(self.pids[0], 0 if deadline is None else os.WNOHANG)
            if pid:
                self.pids.pop(0)
                if status:
                    raise RuntimeError(f"a worker of kernel `{self.kernel}` ended with status {status}; was it killed?")
            elif deadline is not None and time.monotonic() > deadline:
                return False
            else:
                time.sleep(_PAUSE_SECONDS)
        return True

    def ask_where(self) -> None:
        """End them, each with a report of the thread and the place that it was at."""
        for pid in self.pids:
            os.kill(pid, signal.SIGUSR1)
        patience = time.monotonic() + ANSWER_SECONDS
        while self.pids and time.monotonic() < patience:
            if os.waitpid(self.pids[0], os.WNOHANG)[0]:
                self.pids.pop(0)
            else:
                time.sleep(_PAUSE_SECONDS)

    def kill(self) -> None:
        """End those that are left."""
        while self.pids:
            pid = self.pids.pop()
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
