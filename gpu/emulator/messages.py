"""A compiler's messages as the author of a kernel reads them: about the text, without the emulator's own machinery."""

from __future__ import annotations

import re

from gpu.emulator.cache import HEADERS

TABLE = "refsim_table"  # the file name that the unit gives to its table of kernels
MESSAGE = re.compile(r"([^:\n]+):(\d+):(?:\d+:)? ((?:fatal )?error|note|warning): (.*)")
CONTEXT = re.compile(r"In file included from .*|\s+from .*|[^:]+: (?:In|At) .*:")
HINTS = (  # what a message about the table or its header means
    (r"(?:undefined template|incomplete type) .refsim::Signature<", "a kernel must return void"),
    (r"static.assert.*a kernel takes no references", "a kernel takes no references: pass a pointer"),
)


def readable(errors: str, unit: str) -> str:
    """The messages on the text and on headers; those on the table in words, with the name that they are about.

    >>> unit = 'REFSIM_KERNEL(0, "f<__half>", 0, 0, f<__half>)'
    >>> print(readable("refsim_table:1:4: error: '__half' was not declared", unit))
    name expression f<__half>: error: '__half' was not declared
    """
    table = unit.split(f'#line 1 "{TABLE}"\n')[-1].splitlines()
    kept: list[str] = []
    context: list[str] = []
    own = False  # is the message at hand about the emulator's machinery?
    for line in errors.splitlines():
        found = MESSAGE.fullmatch(line)
        if found is None:
            (context if CONTEXT.fullmatch(line) else [] if own or line.startswith(TABLE) else kept).append(line)
            continue
        file, number, kind, words = found.groups()
        before, own = own, file == TABLE or file.endswith("refsim_entry.h")
        if not own and before and "to match this" in words:
            kept.append(line.replace(f"{kind}: {words}", "error: the bracket that opens here is never closed"))
        elif not own:
            kept += [*context, line]
        elif (message := _of_the_table(table, file, int(number), kind, words)) not in kept:
            kept.append(message)
        context = []
    if "overloaded function" in errors and not any("error: " in line for line in kept):
        kept = ["error: a name of several functions is no kernel's: make one of them a template, or rename it"]
    shown = "\n".join(filter(None, kept)) if any("error: " in line for line in kept) else errors
    return shown.replace(f"{HEADERS}/", "")


def _of_the_table(table: list[str], file: str, line: int, kind: str, words: str) -> str:
    """A message about an entry of the table; nothing for what only repeats another or follows from it."""
    hint = next((hint for pattern, hint in HINTS if re.search(pattern, words)), None)
    if file != TABLE:
        return f"error: {hint}" if hint else ""
    entry = re.match(r'REFSIM_KERNEL\(\d+, "(.*?)", ', table[line - 1] if line <= len(table) else "")
    if "error" not in kind or entry is None or (re.match("expected|.*refsim::", words) and not hint):
        return ""
    name = entry[1].replace('\\"', '"')
    return f"{'name expression' if '<' in name else 'kernel'} {name}: error: {hint or words}"
