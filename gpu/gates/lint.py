"""A lint for two habits that go wrong late: offsets in 32 bits, and warp intrinsics with part of a warp.

It reads text, not types, so it knows what is 64 bits wide by its declaration: `long long` variables, members and
functions. An offset into global memory that multiplies without any of them overflows in a large pool.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

FULL_MASKS = ("0xffffffff", "0xffffffffu", "~0u")


@dataclass(frozen=True)
class Remark:
    """One finding."""

    file: str
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.rule}: {self.text.strip()}"


def without_comments(text: str) -> str:
    """The text with comments blanked out, line for line."""
    return re.sub(r"//[^\n]*|/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m[0]), text, flags=re.DOTALL)


def wide_names(text: str) -> set[str]:
    """Names of 64-bit variables, members and functions that a text declares."""
    names: set[str] = set()
    for declared in re.findall(r"\blong long\s+([^;(){}]*)", text):
        names |= set(re.findall(r"\b([A-Za-z_]\w*)\s*(?:\[[^]]*\])?\s*(?:=[^,;]*)?(?=,|$|=)", declared))
        first = re.match(r"[A-Za-z_]\w*", declared)
        if first:
            names.add(first[0])
    return names | set(re.findall(r"\blong long\s+(\w+)\s*\(", text))


def global_pointers(text: str) -> set[str]:
    """Names of a text's kernels' pointer parameters: `__global__ void f(const T* q, ...)` gives q."""
    names: set[str] = set()
    for parameters in re.findall(r"__global__[^;{]*?\b\w+\s*\(([^{;]*)\)\s*\{", text):
        names |= set(re.findall(r"\*\s*(?:__restrict__\s+)?(\w+)", parameters))
    return names


def _subscripts(code: str, names: set[str]) -> list[tuple[int, str, str]]:
    """(position, pointer, expression) of every subscript of one of the names."""
    found = []
    for match in re.finditer(r"(?<![\w.])(\w+)\[", code):
        if match[1] not in names:
            continue
        depth, end = 1, match.end()
        while end < len(code) and depth:
            depth += {"[": 1, "]": -1}.get(code[end], 0)
            end += 1
        found.append((match.start(), match[1], code[match.end() : end - 1]))
    return found


def lint_text(text: str, file: str = "kernel.cu", *, known_wide: frozenset[str] = frozenset()) -> list[Remark]:
    """Remarks on one text; `known_wide` are 64-bit names that its headers declare.

    >>> [r.rule for r in lint_text("__global__ void f(float* x, int i, int n) { x[i * n] = 0; }")]
    ['32-bit offset']
    >>> lint_text("__global__ void f(float* x, long long i, int n) { x[i * n] = 0; }")
    []
    >>> [r.rule for r in lint_text("x = __shfl_down_sync(__activemask(), x, 1);")]
    ['partial mask']
    """
    code = without_comments(text)
    lines = text.splitlines()
    wide = wide_names(code) | known_wide

    def remark(position: int, rule: str) -> Remark:
        line = code.count("\n", 0, position) + 1
        return Remark(file, line, rule, lines[line - 1])

    # A kernel's own pointers, and whatever is passed to `read` and `write` of traffic.cuh.
    counted = {match[1] for match in re.finditer(r"\b(?:read|write)<\w+>\(\s*(?:\([^)]*\))?&(\w+)\[", code)}
    remarks = []
    for position, _, expression in _subscripts(code, global_pointers(code) | counted):
        words = set(re.findall(r"[A-Za-z_]\w*", expression))
        product = re.search(r"[A-Za-z_)\]]\s*\*\s*[A-Za-z_(]", expression)  # of two variables: a constant is small
        if product and "long long" not in expression and not words & wide:
            remarks.append(remark(position, "32-bit offset"))
    for match in re.finditer(r"\b__\w+_sync\(\s*([^,)]*(?:\([^)]*\))?)", code):
        if match[1].strip() not in (*FULL_MASKS, ""):
            remarks.append(remark(match.start(), "partial mask"))
    return sorted(remarks, key=lambda r: r.line)


def lint_folder(folder: Path) -> list[Remark]:
    """Remarks on every kernel and header of a folder; each may use the 64-bit names of all headers."""
    headers = "\n".join(without_comments(path.read_text()) for path in sorted(folder.glob("*.cuh")))
    known = frozenset(wide_names(headers))
    files = sorted([*folder.glob("*.cu"), *folder.glob("*.cuh")])
    return [remark for path in files for remark in lint_text(path.read_text(), path.name, known_wide=known)]
