"""Compiling: a kernel's text becomes a shared object, kept in a cache under the hash of everything that went in."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu.emulator import native
from gpu.emulator.cache import HEADERS, RUNTIME, cache_folder, compile_whole, digest, is_whole, own_digest
from gpu.emulator.messages import TABLE, readable
from gpu.emulator.options import as_text, host_options
from gpu.emulator.source import (
    HOST_HEADERS,
    KernelText,
    SourceError,
    find_constants,
    find_kernels,
    rewrite,
    without_comments,
)
from gpu.emulator.toolchain import Compiler, find_compiler

DYNAMIC_SHARED_NBYTES = 232_448  # the most that any GPU so far gives a block: 227 KiB


class CompileError(RuntimeError):
    """The compiler refused the text; the message is the compiler's own, with lines of the text as given."""


@dataclass(frozen=True)
class Header:
    """A header that a text includes from the folders of -I options."""

    path: Path
    text: str


@dataclass(frozen=True)
class Module:
    """A compiled text: where the object is, what it was made of, and the names of its kernels."""

    path: Path
    runtime: Path
    text: str
    headers: dict[str, Header]
    kernels: dict[str, KernelText]
    names: tuple[str, ...]
    constants: tuple[str, ...]
    traced: bool


def build_runtime(compiler: Compiler) -> Path:
    """The runtime, compiled once for this compiler and version of the emulator."""
    flags = compiler.runtime_flags()
    target = cache_folder() / f"runtime-{digest(compiler.identity, own_digest(), *flags)}.so"
    if not is_whole(target):
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            unit, made = Path(folder) / "unit.cpp", Path(folder) / "runtime.o"
            unit.write_text(f'#include "{RUNTIME / "runtime.cpp"}"\n{native.layout()}')
            result = compile_whole([*compiler.command, *flags, "-c", str(unit)], made)
            if result.returncode == 0:
                result = compile_whole(compiler.link(str(made)), target)
        if "native.layout" in result.stderr:
            raise CompileError("gpu.emulator has changed since this process began: start Python again")
        if result.returncode:
            raise CompileError(f"the emulator's runtime does not compile with {compiler.command[0]}:\n{result.stderr}")
    return target


def _local_headers(text: str, options: Sequence[str]) -> dict[str, Header]:
    """Headers that the text includes from the folders of -I options, and theirs in turn, by name from those folders."""
    folders = [Path(o[2:]) for o in options if o.startswith("-I")]
    found: dict[str, Header] = {}
    waiting: list[tuple[str, str, Path | None]] = [(text, "", None)]
    while waiting:
        code, includer, own = waiting.pop()
        for name in re.findall(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"\n]+)[>"]', code, flags=re.MULTILINE):
            if name in HOST_HEADERS:
                continue
            beside = os.path.normpath(os.path.join(os.path.dirname(includer), name))
            places = [(beside, own / name)] if own else []
            places += [(name, folder / name) for folder in folders]
            full, path = next(((n, p) for n, p in places if p.is_file()), (name, None))
            if path is not None and full not in found:
                found[full] = Header(path, path.read_text())
                waiting.append((found[full].text, full, path.parent))
    return found


def _rewritten_headers(headers: dict[str, Header], folder: Path) -> list[str]:
    """Copies of the headers in a folder that is searched first, where one of them declares dynamic shared memory."""
    if not any(rewrite(header.text)[1] for header in headers.values()):
        return []
    for name, header in headers.items():
        if not name.startswith(".."):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(f'#line 1 "{header.path}"\n{rewrite(header.text)[0]}')
    return [f"-I{folder}"]


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


def _mark(number: int) -> str:
    """A macro that is defined where the kernel of that number isn't compiled out."""
    return f"REFSIM_HAS_{number}"


def _marked(body: str, names: Sequence[str], kernels: dict[str, KernelText]) -> str:
    """The body with a mark at each kernel that stands between #if and #endif; every line keeps its number."""
    lines = body.split("\n")
    marks = {i: kernels[name].conditional for i, name in enumerate(names) if name in kernels}
    if not any(marks.values()):
        return body
    for number, line in enumerate(without_comments(body).split("\n"), 1):
        if re.match(r"\s*#\s*(?:else|elif|endif)\b", line) and not line.rstrip().endswith("\\"):
            lines[number - 1] += f'\n#line {number + 1} "kernel.cu"'  # a mark before it may have been skipped or not
    for i, at in marks.items():
        for number in at:
            lines[number - 1] = f'#define {_mark(i)}\n#line {number} "kernel.cu"\n{lines[number - 1]}'
    return "\n".join(lines)


def _unit(
    text: str, names: Sequence[str], kernels: dict[str, KernelText], before: Sequence[str], *, dynamic: bool
) -> str:
    """The whole translation unit: the headers, the text as written, and a table of its kernels."""
    lines = ['#include "refsim_cuda.h"', *before, '#line 1 "kernel.cu"', text, f'#line 1 "{TABLE}"']
    if dynamic:
        lines.append(
            'extern "C" __attribute__((visibility("hidden"), used, aligned(1024))) unsigned char '
            f"refsim_dynamic_shared[{DYNAMIC_SHARED_NBYTES}];"
        )
        lines.append(f"unsigned char refsim_dynamic_shared[{DYNAMIC_SHARED_NBYTES}];")
    for i, name in enumerate(names):
        kernel = kernels.get(re.split(r"[<:]", name)[0].strip())
        quoted = name.replace('"', '\\"')
        row = f'REFSIM_KERNEL({i}, "{quoted}", {_bounds(kernel)}, {name})'
        lines += [f"#ifdef {_mark(i)}", row, "#endif"] if kernel and kernel.conditional else [row]
    return "\n".join(lines) + "\n"


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
    for name in name_expressions:
        if (named := kernels.get(name.strip())) is not None and named.template:
            raise SourceError(f"name expression {name!r} is a template: give its arguments, as in {named.name}<float>")
    body, dynamic = rewrite(text)
    host = host_options(options)
    macros = [as_text(o) for o in host if o.startswith(("-D", "-U", "-include"))]
    headers = _local_headers("\n".join([*macros, text]), host)
    texts = [header.text for header in headers.values()]
    dynamic = dynamic or any(rewrite(t)[1] for t in texts)
    before = [f"#include <{name}>" for name in _own_headers([text, *texts])]
    before += [*macros, "#include <assert.h>"]  # which heeds NDEBUG
    unit = _unit(_marked(body, names, kernels), names, kernels, before, dynamic=dynamic)
    flags = [*tool.kernel_flags(traced=traced), *(o for o in host if o.startswith(("-I", "-std")))]
    runtime = build_runtime(tool)
    key = digest(unit, *flags, str(runtime), *(part for n, h in headers.items() for part in (n, str(h.path), h.text)))
    target = cache_folder() / f"kernel-{key}.so"
    if not is_whole(target):
        _build_object(tool, unit, flags, headers, runtime, target)
    return Module(target, runtime, text, headers, kernels, names, find_constants(text), traced)


def _build_object(
    tool: Compiler, unit: str, flags: list[str], headers: dict[str, Header], runtime: Path, target: Path
) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as name:
        folder = Path(name)
        (folder / "kernel.cu").write_text(unit)
        extra = _rewritten_headers(headers, folder / "headers")
        command = [*tool.command, *extra, *flags, f"-I{HEADERS}", "-x", "c++", "-c", str(folder / "kernel.cu")]
        result = compile_whole(command, folder / "kernel.o")
        if result.returncode:
            raise CompileError(
                f"the kernel does not compile:\n{readable(result.stderr, unit)}".replace(f"{folder}{os.sep}", "")
            )
        result = compile_whole(tool.link(str(folder / "kernel.o"), str(runtime)), target)
        if result.returncode:
            raise CompileError(f"the kernel does not link:\n{readable(result.stderr, unit)}")


def clear_cache() -> None:
    """Throw away every compiled object."""
    shutil.rmtree(cache_folder(), ignore_errors=True)
