"""What a kernel's text says before a compiler sees it: its kernels, their parameters, and two small rewritings."""

from __future__ import annotations

import re
from dataclasses import dataclass

# nvcc's device compilers have no such headers, so neither has the emulator.
HOST_HEADERS = frozenset(
    [
        *("algorithm", "chrono", "deque", "filesystem", "fstream", "functional", "iomanip", "iostream", "list", "map"),
        *("memory", "mutex", "numeric", "ostream", "queue", "random", "regex", "set", "sstream", "stack", "stdexcept"),
        *("string", "thread", "unordered_map", "unordered_set", "vector", "windows.h", "unistd.h"),
    ]
)


class SourceError(ValueError):
    """The text can't be a kernel as it stands."""


@dataclass(frozen=True)
class KernelText:
    """One `__global__` function as found in the text."""

    name: str
    parameters: tuple[str, ...]
    template: bool
    extern_c: bool
    bounds: tuple[str, ...]  # the arguments of __launch_bounds__
    line: int
    conditional: tuple[int, ...] = ()  # its lines, where all are between #if and #endif: it may be compiled out


def without_comments(text: str) -> str:
    """The text with comments and the insides of strings blanked; every other character stays where it was.

    >>> without_comments('a /* b */ "c" // d')
    'a         " "     '
    """

    def blank(match: re.Match[str]) -> str:
        piece = match[0]
        if piece[0] in "\"'":
            return piece[0] + re.sub(r"[^\n]", " ", piece[1:-1]) + piece[-1]
        return re.sub(r"[^\n]", " ", piece)

    return re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', blank, text, flags=re.DOTALL)


def _closing(text: str, at: int) -> int:
    """Where the bracket that opens at `at` closes."""
    depth = 0
    for i in range(at, len(text)):
        depth += (text[i] in "([{") - (text[i] in ")]}")
        if depth == 0:
            return i
    raise SourceError(f"the bracket on line {text.count(chr(10), 0, at) + 1} is never closed")


def _split(text: str) -> list[str]:
    """Pieces between the commas that stand outside of brackets of any kind."""
    pieces, depth, last = [], 0, 0
    for i, c in enumerate(text):
        depth += (c in "([{<") - (c in ")]}>")
        if c == "," and depth == 0:
            pieces.append(text[last:i])
            last = i + 1
    pieces.append(text[last:])
    return [p.strip() for p in pieces if p.strip()]


def _parameter_name(declaration: str, position: int) -> str:
    declaration = re.sub(r"=.*|\[[^]]*\]", "", declaration, flags=re.DOTALL)
    words = re.findall(r"[A-Za-z_]\w*", declaration)
    return words[-1] if len(words) > 1 else f"arg{position}"


def _without_directives(code: str) -> tuple[str, list[bool]]:
    """The code with its preprocessor lines blanked, and for each line: does it stand between #if and #endif?"""
    depth, conditional = 0, []
    code = re.sub(r"^[ \t]*#(?:[^\n]*\\\r?\n)*[^\n]*", lambda m: _directive(m[0]), code, flags=re.MULTILINE)
    for line in code.split("\n"):
        depth += line.startswith("#if") - line.startswith("#endif")
        conditional.append(depth > 0)
    return re.sub(r"^#[a-z]*", lambda m: " " * len(m[0]), code, flags=re.MULTILINE), conditional


def _directive(text: str) -> str:
    """A directive with all but its #if or #endif blanked."""
    word = re.match(r"[ \t]*#[ \t]*(if|endif)", text)
    blank = re.sub(r"[^\n]", " ", text)
    return f"#{word[1]}{blank[len(word[1]) + 1 :]}" if word else blank


def _extern_c_blocks(code: str) -> list[tuple[int, int]]:
    return [(m.end() - 1, _closing(code, m.end() - 1)) for m in re.finditer(r'\bextern\s*"[^"]*"\s*\{', code)]


def find_kernels(text: str) -> list[KernelText]:
    """Every `__global__` function with a body or a declaration, in order.

    >>> find_kernels('extern "C" __global__ void f(const float* x, int n) {}')[0].parameters
    ('x', 'n')
    """
    code, conditional = _without_directives(without_comments(text))
    blocks = _extern_c_blocks(code)
    found: dict[str, KernelText] = {}
    for match in re.finditer(r"\b__global__\b", code):
        at = match.end()
        bounds: tuple[str, ...] = ()
        while word := re.compile(r"\s*([A-Za-z_]\w*)\s*").match(code, at):
            at = word.end()
            if at >= len(code) or code[at] != "(":
                continue
            end = _closing(code, at)
            if word[1] in ("__launch_bounds__", "__cluster_dims__", "__align__", "__attribute__"):
                if word[1] == "__launch_bounds__":
                    bounds = tuple(_split(code[at + 1 : end]))
                at = end + 1
                continue
            head = code[max(code.rfind(c, 0, match.start()) for c in ";}{") + 1 : match.start()]
            names = [_parameter_name(d, i) for i, d in enumerate(_split(code[at + 1 : end]))]
            if names == ["arg0"] and code[at + 1 : end].strip() == "void":
                names = []
            before = re.compile(r"\s*__launch_bounds__\s*\(([^)]*)\)").search(head)
            line = code.count("\n", 0, match.start()) + 1
            earlier = found.get(word[1])
            known = () if earlier is None else earlier.conditional
            found[word[1]] = KernelText(
                word[1],
                tuple(names),
                "template" in head,
                'extern "' in head or any(low < match.start() < high for low, high in blocks),
                tuple(_split(before[1])) if before else bounds,
                line,
                (*known, line) if conditional[line - 1] and (earlier is None or known) else (),
            )
            break
    return list(found.values())


def made_by_macro(text: str, name: str) -> bool:
    """Could a macro of the text make a kernel of that name?

    >>> made_by_macro("#define KERNEL(name) __global__ void name(float* x)\\nKERNEL(f) { *x = 1; }", "f")
    True
    """
    code = without_comments(text).replace("\\\n", "  ")
    return bool(
        re.search(r"^[ \t]*#[ \t]*define\b.*__global__", code, re.MULTILINE) and re.search(rf"\b{name}\b", code)
    )


def find_constants(text: str) -> tuple[str, ...]:
    """Names of the `__constant__` variables.

    >>> find_constants("__constant__ float weights[4];")
    ('weights',)
    """
    names = []
    for match in re.finditer(r"\b__constant__\b([^;={}]*)", without_comments(text)):
        names += [re.findall(r"[A-Za-z_]\w*", re.sub(r"\[[^]]*\]", "", piece))[-1] for piece in _split(match[1])]
    return tuple(names)


def rewrite(text: str) -> tuple[str, bool]:
    """Make the text a host compiler's, line for line; and whether it uses dynamic shared memory.

    `extern __shared__ T name[]` becomes another name of one array that the emulator sizes at each launch; every
    other `__shared__` array is a static of its function already, so a second `static` goes.

    Raises
    ------
    SourceError
        A header that device compilers lack, or a `__shared__` array with an initialiser.
    """
    code = without_comments(text)
    for match in re.finditer(r"^[ \t]*#[ \t]*include[ \t]*<([^>\n]+)>", code, flags=re.MULTILINE):
        if match[1] in HOST_HEADERS:
            raise SourceError(
                f"line {code.count(chr(10), 0, match.start()) + 1}: <{match[1]}> is a header for the host: a device "
                "compiler such as NVRTC can't include it"
            )
    for match in re.finditer(r"\b__shared__\b([^;{}()=]*|[^;{}=]*\([^)]*\)[^;{}()=]*)=", code):
        line = code.count("\n", 0, match.start()) + 1
        raise SourceError(f"line {line}: a __shared__ variable can't have an initialiser; write to it and synchronise")
    pieces, last, dynamic = [], 0, False
    pattern = r"\bextern\b([^;{}]*?)\b__shared__\b([^;{}]*?\[\s*\])|\bstatic\s+(?=__shared__\b)"
    for match in re.finditer(pattern, code):
        pieces.append(text[last : match.start()])
        if match[2] is not None:
            dynamic = True
            middle = text[match.start(1) : match.end(1)], text[match.start(2) : match.end(2)]
            pieces.append(f'extern{middle[0]}{middle[1]} __asm__(REFSIM_SYMBOL("refsim_dynamic_shared"))')
        last = match.end()
    pieces.append(text[last:])
    return "".join(pieces), dynamic
