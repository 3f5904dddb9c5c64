"""Compiling: a kernel's text becomes a shared object, kept in a cache under the hash of everything that went in."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu.emulator.source import HOST_HEADERS, KernelText, SourceError, find_constants, find_kernels, rewrite
from gpu.emulator.toolchain import Compiler, find_compiler

HERE = Path(__file__).parent
HEADERS, RUNTIME = HERE / "include", HERE / "runtime"
DYNAMIC_SHARED_NBYTES = 232_448  # the most that any GPU so far gives a block: 227 KiB
# Options of NVRTC that mean nothing to a host compiler.
IGNORED_OPTIONS = (
    r"--?(arch|gpu-architecture|maxrregcount|rdc|relocatable-device-code|ptxas-options|Xptxas|dopt|ftz|fmad|prec-sqrt|"
    r"prec-div|use_fast_math|extra-device-vectorization|lineinfo|generate-line-info|device-debug|G|g|w|dlto|"
    r"default-device|device-as-default-execution-space|restrict|split-compile|diag-suppress|no-source-include|minimal|"
    r"jitify|time|pch|builtin-\w+|extensible-whole-program|ewp|device-int128|disable-warnings)(=.*)?"
)


class CompileError(RuntimeError):
    """The compiler refused the text; the message is the compiler's own, with lines of the text as given."""


@dataclass(frozen=True)
class Module:
    """A compiled text: where the object is, what it was made of, and the names of its kernels."""

    path: Path
    runtime: Path
    text: str
    kernels: dict[str, KernelText]
    names: tuple[str, ...]
    constants: tuple[str, ...]
    traced: bool


def cache_folder() -> Path:
    """Where compiled objects are kept: `REFSIM_CACHE`, else the user's cache folder."""
    root = os.environ.get("REFSIM_CACHE") or os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(root) / "refsim" / "emulator"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


@functools.cache
def _own_digest() -> str:
    files = [p for p in sorted([*HEADERS.rglob("*"), *RUNTIME.rglob("*")]) if p.is_file()]
    return _digest(*(part for p in files for part in (p.name, p.read_text())))


def _compile(command: list[str], target: Path) -> subprocess.CompletedProcess[str]:
    """Run a compiler that writes `target`, whole or not at all."""
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = Path(folder) / target.name
        result = subprocess.run([*command, "-o", str(made)], capture_output=True, text=True, check=False)
        if result.returncode == 0:
            os.replace(made, target)
    return result


@functools.cache
def build_runtime(compiler: Compiler) -> Path:
    """The runtime, compiled once for this compiler and version of the emulator."""
    flags = compiler.runtime_flags()
    target = cache_folder() / f"runtime-{_digest(compiler.identity, _own_digest(), *flags)}.so"
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            made = Path(folder) / "runtime.o"
            result = _compile([*compiler.command, *flags, "-c", str(RUNTIME / "runtime.cpp")], made)
            if result.returncode == 0:
                result = _compile(compiler.link(str(made)), target)
        if result.returncode:
            raise CompileError(f"the emulator's runtime does not compile with {compiler.command[0]}:\n{result.stderr}")
    return target


def host_options(options: Sequence[str]) -> list[str]:
    """What a host compiler understands of the options given to NVRTC.

    >>> host_options(("-DN=4", "--use_fast_math", "--std=c++14", "-I", "inc"))
    ['-DN=4', '-Iinc']

    Raises
    ------
    ValueError
        An option that NVRTC doesn't have either.
    """
    kept, rest = [], list(options)
    while rest:
        option = rest.pop(0)
        value = re.fullmatch(r"(-D|-U|-I|--define-macro=|--undefine-macro=|--include-path=|--pre-include=)(.*)", option)
        if value:
            short = {"--d": "-D", "--u": "-U", "--i": "-I", "--p": "-include"}.get(option[:3], value[1])
            kept.append(short + (value[2] or rest.pop(0)))
        elif standard := re.fullmatch(r"--?std=c\+\+(\d+)", option):
            if standard[1] in ("20", "23"):
                kept.append(f"-std=c++{standard[1]}")
        elif not re.fullmatch(IGNORED_OPTIONS, option):
            raise ValueError(f"unknown compiler option {option!r}: known are -D, -U, -I, -std and NVRTC's own")
    return kept


def _local_headers(text: str, options: Sequence[str]) -> dict[str, Path]:
    """Headers that the text includes from the folders of -I options, and theirs in turn."""
    folders = [Path(o[2:]) for o in options if o.startswith("-I")]
    found: dict[str, Path] = {}
    waiting = [text]
    while waiting:
        for name in re.findall(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"\n]+)[>"]', waiting.pop(), flags=re.MULTILINE):
            path = next((f / name for f in folders if (f / name).is_file()), None)
            if path is not None and name not in found and name not in HOST_HEADERS:
                found[name] = path
                waiting.append(path.read_text())
    return found


def _rewritten_headers(headers: dict[str, Path], folder: Path) -> list[str]:
    """Copies of headers that declare dynamic shared memory, in a folder that is searched first."""
    changed = False
    for name, path in headers.items():
        text, dynamic = rewrite(path.read_text())
        if dynamic:
            changed = True
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(f'#line 1 "{path}"\n{text}')
    return [f"-I{folder}"] if changed else []


def _bounds(kernel: KernelText | None) -> str:
    """Launch bounds as two expressions; those of a template that hang on its parameters are left out."""
    if kernel is None or not kernel.bounds:
        return "0, 0"
    values = [*kernel.bounds, "0"][:2]
    if kernel.template and not all(re.fullmatch(r"\d+", v) for v in values):
        return "0, 0"
    return ", ".join(f"(unsigned)({v})" for v in values)


def _own_headers(texts: Sequence[str]) -> list[str]:
    """The emulator's headers that the texts include: they go first, out of reach of the user's macros."""
    names = re.findall(r"^[ \t]*#[ \t]*include[ \t]*<([^>\n]+)>", "\n".join(texts), flags=re.MULTILINE)
    return [name for name in dict.fromkeys(names) if (HEADERS / name).exists() and name != "assert.h"]


def _unit(
    text: str, names: Sequence[str], kernels: dict[str, KernelText], before: Sequence[str], *, dynamic: bool
) -> str:
    """The whole translation unit: the headers, the text as written, and a table of its kernels."""
    lines = ['#include "refsim_cuda.h"', *before, '#line 1 "kernel.cu"', text, '#line 1 "refsim_table"']
    if dynamic:
        lines.append(
            'extern "C" __attribute__((visibility("hidden"), used, aligned(1024))) unsigned char '
            f"refsim_dynamic_shared[{DYNAMIC_SHARED_NBYTES}];"
        )
        lines.append(f"unsigned char refsim_dynamic_shared[{DYNAMIC_SHARED_NBYTES}];")
    for i, name in enumerate(names):
        kernel = kernels.get(re.split(r"[<:]", name)[0].strip())
        quoted = name.replace('"', '\\"')
        lines.append(f'REFSIM_KERNEL({i}, "{quoted}", {_bounds(kernel)}, {name})')
    return "\n".join(lines) + "\n"


def _macro(option: str) -> str:
    """A -D or -U option as the line of text that it stands for."""
    name, equals, value = option[2:].partition("=")
    if option.startswith("-U"):
        return f"#undef {name}"
    return f"#define {name} {value if equals else '1'}"


def _readable(errors: str) -> str:
    kept = [line for line in errors.splitlines() if "refsim_table" not in line]
    return "\n".join(kept).replace(str(HEADERS) + os.sep, "")


def build(
    text: str,
    options: Sequence[str] = (),
    *,
    name_expressions: Sequence[str] = (),
    traced: bool = True,
    compiler: str | None = None,
) -> Module:
    """Compile a text, or find it compiled.

    Parameters
    ----------
    options
        As for NVRTC; -D, -U, -I and -std matter, its other options are accepted and mean nothing here.
    name_expressions
        Instances of templates to make, such as ``"scale<float, 4>"``. Kernels that are no templates are there anyway.
    traced
        With every load and store seen, or at the compiler's plain speed.

    Raises
    ------
    SourceError, CompileError, CompilerNotFound
    """
    tool = find_compiler(compiler)
    kernels = {k.name: k for k in find_kernels(text)}
    plain = [k.name for k in kernels.values() if not k.template and k.extern_c]
    names = tuple(dict.fromkeys([*plain, *name_expressions]))
    if not names:
        raise SourceError('the text has no extern "C" __global__ function, and no name_expressions were given')
    body, dynamic = rewrite(text)
    host = host_options(options)
    headers = _local_headers(text, host)
    dynamic = dynamic or any(rewrite(p.read_text())[1] for p in headers.values())
    macros = [o for o in host if o.startswith(("-D", "-U"))]
    before = [f"#include <{name}>" for name in _own_headers([text, *(p.read_text() for p in headers.values())])]
    before += [*(_macro(option) for option in macros), "#include <assert.h>"]  # which heeds NDEBUG
    unit = _unit(body, names, kernels, before, dynamic=dynamic)
    flags = [*tool.kernel_flags(traced=traced), *(o for o in host if o not in macros)]
    runtime = build_runtime(tool)
    key = _digest(unit, *flags, str(runtime), *(p.read_text() for p in headers.values()))
    target = cache_folder() / f"kernel-{key}.so"
    if not target.exists():
        _build_object(tool, unit, flags, headers, runtime, target)
    return Module(target, runtime, text, kernels, names, find_constants(text), traced)


def _build_object(
    tool: Compiler, unit: str, flags: list[str], headers: dict[str, Path], runtime: Path, target: Path
) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as name:
        folder = Path(name)
        (folder / "kernel.cu").write_text(unit)
        extra = _rewritten_headers(headers, folder / "headers")
        command = [*tool.command, *extra, *flags, f"-I{HEADERS}", "-x", "c++", "-c", str(folder / "kernel.cu")]
        result = _compile(command, folder / "kernel.o")
        if result.returncode:
            raise CompileError(
                f"the kernel does not compile:\n{_readable(result.stderr)}".replace(f"{folder}{os.sep}", "")
            )
        result = _compile(tool.link(str(folder / "kernel.o"), str(runtime)), target)
        if result.returncode:
            raise CompileError(f"the kernel does not link:\n{_readable(result.stderr)}")


def clear_cache() -> None:
    """Throw away every compiled object."""
    shutil.rmtree(cache_folder(), ignore_errors=True)
    build_runtime.cache_clear()
