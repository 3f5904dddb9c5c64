"""Which host compiler builds kernels, and with what flags."""

from __future__ import annotations

import functools
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass

COMMON = (
    *("-std=c++17", "-O1", "-fPIC", "-fvisibility=hidden", "-g1", "-gdwarf-4"),
    *("-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics", "-fno-strict-aliasing", "-ffp-contract=off"),
    *("-fno-builtin-printf", "-fno-delete-null-pointer-checks", "-fstack-clash-protection"),
    "-fno-optimize-sibling-calls",  # a call must leave its return address: it says where it was
    *("-Werror=vla", "-Wno-attributes", "-Wno-unknown-pragmas", "-Wno-unused"),
)
# Instructions are counted as they are written: no loops turned into vectors or library calls, no copies of code for
# the two ways into it.
GCC = (
    *("-fno-gnu-unique", "-fno-thread-jumps", "-fno-tree-loop-distribute-patterns", "-fno-tree-vectorize"),
    "-fno-isolate-erroneous-paths-dereference",
)
CLANG = ("-fno-vectorize", "-fno-slp-vectorize", "-fno-unroll-loops", "-fno-builtin-memset", "-fno-builtin-memcpy")
TRACED = ("-fsanitize=thread", "-fsanitize=signed-integer-overflow,bounds")
TRACED_GCC = ("--param", "tsan-instrument-func-entry-exit=0")
# Clang would leave out a read that a write to the same place follows.
TRACED_CLANG = (*("-mllvm", "-tsan-instrument-func-entry-exit=0", "-mllvm", "-tsan-instrument-read-before-write=1"),)
RUNTIME = ("-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti")


class CompilerNotFound(RuntimeError):
    """No C++ compiler on this machine."""


@dataclass(frozen=True)
class Compiler:
    """A command and what family of flags it takes ("gcc" or "clang")."""

    command: tuple[str, ...]
    family: str
    identity: str
    zig: bool = False

    def kernel_flags(self, *, traced: bool) -> list[str]:
        """Flags that turn a kernel's text into an object file."""
        gcc = self.family == "gcc"
        flags = [*COMMON, *(GCC if gcc else CLANG)]
        if self.zig:
            flags += ["-Wno-unused-command-line-argument", "-UNDEBUG", *([] if traced else ["-fno-sanitize=all"])]
        if traced:
            flags += [*TRACED, *(TRACED_GCC if gcc else TRACED_CLANG)]
        else:
            flags += ["-fwrapv"]
        return flags

    def runtime_flags(self) -> list[str]:
        """Flags that turn the runtime into an object file."""
        return [*RUNTIME, *(["-fno-sanitize=all"] if self.zig else [])]

    def link(self, *objects: str) -> list[str]:
        """The command that makes a shared library of objects and libraries, bar its `-o`.

        Zig's own driver would first spend a minute on building a C library; its linker alone does not, and what the
        objects need of the C library is in the process that loads them.
        """
        if self.zig:
            return [self.command[0], "ld.lld", "-shared", "--build-id=none", *objects]
        lazily = ["-Wl,-z,undefs"] if sys.platform == "linux" else ["-undefined", "dynamic_lookup"]
        return [*self.command, "-shared", *objects, "-lm", *lazily]


def _compiler(command: tuple[str, ...]) -> Compiler:
    """A compiler by its command: its family, and what tells it from every other by path, date and version."""
    version = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False).stdout
    family = "clang" if "clang" in version.lower() else "gcc"
    programs = [path for word in command if (path := shutil.which(word))]  # "ccache g++" has two
    return Compiler(command, family, " ".join([*command, *map(_stamp, programs), version]))


def _stamp(path: str) -> str:
    status = os.stat(path)
    return f"{os.path.realpath(path)} {status.st_size} {status.st_mtime_ns}"


@functools.cache
def find_compiler(wanted: str | None = None) -> Compiler:
    """The C++ compiler: `wanted`, else `CXX`, else g++, clang++, c++, else the one in the `ziglang` wheel.

    Raises
    ------
    CompilerNotFound
        Nothing of the sort is here, or the one asked for isn't.
    """
    asked = wanted or os.environ.get("CXX")
    for candidate in [asked] if asked else ["g++", "clang++", "c++"]:
        if candidate == "zig":
            break
        command = tuple(shlex.split(candidate))
        path = shutil.which(command[0]) if command else None
        if path:
            return _compiler((path, *command[1:]))
    spec = importlib.util.find_spec("ziglang")
    if spec is not None and spec.origin is not None and asked in (None, "zig"):
        zig = os.path.join(os.path.dirname(spec.origin), "zig")
        return Compiler((zig, "c++"), "clang", _stamp(zig), zig=True)
    if asked:
        raise CompilerNotFound(
            f"the C++ compiler {asked!r} (from {'the call' if wanted else 'CXX'}) is not on the path"
        )
    raise CompilerNotFound(
        "the emulator compiles kernels with a C++ compiler and found none: install g++ or clang++, set CXX, "
        "or `pip install ziglang`"
    )
