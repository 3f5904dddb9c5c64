"""NVIDIA's run-time compiler from its wheel (`nvidia-cuda-nvrtc`): kernels to machine code, with no GPU and no driver.

It says whether a GPU compiler accepts a text, and how many registers and bytes of shared memory a kernel takes.
Kernels that include headers of the CUDA toolkit also need `nvidia-cuda-runtime` and `nvidia-cuda-cccl`.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")


class NvrtcNotFound(RuntimeError):
    """The compiler's wheel is not installed."""


class NvrtcError(RuntimeError):
    """The compiler refused the text; the message is its log."""


@dataclass(frozen=True)
class Usage:
    """What one kernel takes of a multiprocessor: registers a thread, bytes a block, bytes spilled a thread."""

    registers: int
    shared_nbytes: int
    stack_nbytes: int
    spill_store_nbytes: int
    spill_load_nbytes: int


@dataclass(frozen=True)
class Compiled:
    """A text compiled for one architecture."""

    architecture: str
    cubin: bytes
    ptx: str
    log: str
    usage: dict[str, Usage]
    lowered: dict[str, str] = field(default_factory=dict)


@functools.cache
def wheel_folder() -> Path:
    """The folder of the wheel: `lib/` and `include/` are in it.

    Raises
    ------
    NvrtcNotFound
    """
    spec = importlib.util.find_spec("nvidia")
    for root in spec.submodule_search_locations or () if spec else ():
        for library in sorted(Path(root).glob("*/lib/libnvrtc.so.*"), reverse=True):
            return library.parent.parent
    raise NvrtcNotFound("NVRTC is not installed: pip install nvidia-cuda-nvrtc")


@functools.cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(str(sorted((wheel_folder() / "lib").glob("libnvrtc.so.*"))[-1]))


def available() -> bool:
    """Is the compiler here?"""
    try:
        _library()
    except (NvrtcNotFound, OSError):
        return False
    return True


def headers_available() -> bool:
    """Are the toolkit's headers (cuda_fp16.h and the rest) here too?"""
    include = wheel_folder() / "include"
    return (include / "cuda_fp16.h").exists() and (include / "cccl").exists()


@functools.cache
def version() -> tuple[int, int]:
    """The compiler's version."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check(_library().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    return major.value, minor.value


@functools.cache
def supported_architectures() -> tuple[str, ...]:
    """Every architecture that this version compiles for.

    Raises
    ------
    NvrtcNotFound
    """
    count = ctypes.c_int()
    _check(_library().nvrtcGetNumSupportedArchs(ctypes.byref(count)))
    numbers = (ctypes.c_int * count.value)()
    _check(_library().nvrtcGetSupportedArchs(numbers))
    return tuple(f"sm_{n}" for n in numbers)


def _check(code: int) -> None:
    if code:
        _library().nvrtcGetErrorString.restype = ctypes.c_char_p
        raise NvrtcError(_library().nvrtcGetErrorString(code).decode())


def _text(program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    _check(getattr(_library(), f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(max(size.value, 1))
    _check(getattr(_library(), f"nvrtcGet{what}")(program, buffer))
    return buffer.raw[: size.value]


def parse_usage(log: str) -> dict[str, Usage]:
    """Read the assembler's own figures from its verbose log, by kernel.

    >>> parse_usage('''ptxas info    : Compiling entry function 'f' for 'sm_80'
    ... ptxas         .     8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
    ... ptxas info    : Used 10 registers, used 1 barriers, 256 bytes smem, 368 bytes cmem[0]''')
    {'f': Usage(registers=10, shared_nbytes=256, stack_nbytes=8, spill_store_nbytes=4, spill_load_nbytes=12)}
    """
    usage = {}
    parts = re.split(r"Compiling entry function '([^']+)' for '[^']+'", log)
    for name, part in zip(parts[1::2], parts[2::2], strict=True):

        def number(pattern: str, part: str = part) -> int:
            found = re.search(pattern, part)
            return int(found[1]) if found else 0

        usage[name] = Usage(
            number(r"Used (\d+) registers"),
            number(r"(\d+) bytes smem"),
            number(r"(\d+) bytes stack frame"),
            number(r"(\d+) bytes spill stores"),
            number(r"(\d+) bytes spill loads"),
        )
    return usage


def compile_text(
    text: str,
    architecture: str = "sm_90",
    options: Sequence[str] = (),
    name_expressions: Sequence[str] = (),
) -> Compiled:
    """Compile CUDA C++ to machine code.

    Parameters
    ----------
    architecture
        Such as "sm_90"; `supported_architectures` lists them.
    options
        As for NVRTC. The toolkit's headers are found where their wheels are installed.
    name_expressions
        Instances of templates to make; `Compiled.lowered` has their names in the machine code.

    Raises
    ------
    NvrtcError
        The text is no CUDA C++, with the compiler's log.
    NvrtcNotFound
    """
    library, program = _library(), ctypes.c_void_p()
    _check(library.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"kernel.cu", 0, None, None))
    try:
        for expression in name_expressions:
            _check(library.nvrtcAddNameExpression(program, expression.encode()))
        include = wheel_folder() / "include"
        own = [f"--gpu-architecture={architecture}", "--ptxas-options=-v", f"-I{include}", f"-I{include / 'cccl'}"]
        words = [o.encode() for o in (*options, *own)]
        code = library.nvrtcCompileProgram(program, len(words), (ctypes.c_char_p * len(words))(*words))
        log = _text(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
        if code:
            raise NvrtcError(log or f"NVRTC failed with code {code}")
        lowered = {}
        for expression in name_expressions:
            name = ctypes.c_char_p()
            _check(library.nvrtcGetLoweredName(program, expression.encode(), ctypes.byref(name)))
            lowered[expression] = (name.value or b"").decode()
        ptx = _text(program, "PTX").rstrip(b"\0").decode()
        return Compiled(architecture, _text(program, "CUBIN"), ptx, log, parse_usage(log), lowered)
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))
