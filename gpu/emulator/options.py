"""Compiler options as they are given to NVRTC, for a host compiler."""

from __future__ import annotations

import re
from collections.abc import Sequence

# Options of NVRTC that mean nothing to a host compiler.
IGNORED = (
    r"--?(arch|gpu-architecture|maxrregcount|rdc|relocatable-device-code|ptxas-options|Xptxas|dopt|ftz|fmad|prec-sqrt|"
    r"prec-div|use_fast_math|extra-device-vectorization|lineinfo|generate-line-info|device-debug|G|g|w|dlto|"
    r"default-device|device-as-default-execution-space|restrict|split-compile|diag-suppress|no-source-include|minimal|"
    r"jitify|time|pch|builtin-\w+|extensible-whole-program|ewp|device-int128|disable-warnings)(=.*)?"
)


def words(name: str, given: Sequence[str]) -> tuple[str, ...]:
    """Several strings, as a tuple. Raises TypeError for a single one, and for anything else.

    >>> words("options", ["-DN=4"])
    ('-DN=4',)
    """
    if isinstance(given, str) or not all(isinstance(word, str) for word in given):
        raise TypeError(f"{name} must be a tuple of strings, got {given!r}" + (", one string" * isinstance(given, str)))
    return tuple(given)


def host_options(options: Sequence[str]) -> list[str]:
    """What a host compiler understands of the options given to NVRTC.

    >>> host_options(("-DN=4", "--use_fast_math", "--std=c++14", "-I", "inc"))
    ['-DN=4', '-Iinc']

    Raises
    ------
    ValueError
        An option that NVRTC doesn't have either, or one that lacks its value.
    """
    kept, rest = [], list(options)
    while rest:
        option = rest.pop(0)
        value = re.fullmatch(r"(-D|-U|-I|--define-macro=|--undefine-macro=|--include-path=|--pre-include=)(.*)", option)
        if value:
            short = {"--d": "-D", "--u": "-U", "--i": "-I", "--p": "-include"}.get(option[:3], value[1])
            if not value[2] and not rest:
                raise ValueError(f"compiler option {option!r} is the last and lacks its value")
            kept.append(short + (value[2] or rest.pop(0)))
        elif standard := re.fullmatch(r"--?std=c\+\+(\d+)", option):
            if standard[1] in ("20", "23"):
                kept.append(f"-std=c++{standard[1]}")
        elif not re.fullmatch(IGNORED, option):
            raise ValueError(f"unknown compiler option {option!r}: known are -D, -U, -I, -std and NVRTC's own")
    return kept


def as_text(option: str) -> str:
    """A -D, -U or -include option as the line of text that it stands for.

    >>> as_text("-DN=4"), as_text("-DFAST"), as_text("-UN"), as_text("-includea.h")
    ('#define N 4', '#define FAST 1', '#undef N', '#include "a.h"')
    """
    if option.startswith("-include"):
        return f'#include "{option[8:]}"'
    name, equals, value = option[2:].partition("=")
    if option.startswith("-U"):
        return f"#undef {name}"
    return f"#define {name} {value if equals else '1'}"
