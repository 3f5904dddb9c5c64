"""Where compiled objects are kept, and under which names: the hash of everything that goes into them."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from gpu.emulator import native

HERE = Path(__file__).parent
HEADERS, RUNTIME = HERE / "include", HERE / "runtime"


def digest(*parts: str) -> str:
    """A name for exactly these texts in this order.

    >>> digest("ab", "c") == digest("a", "bc")
    False
    """
    return hashlib.sha256("".join(f"{len(p)}:{p}" for p in parts).encode()).hexdigest()[:32]


def own_digest() -> str:
    """A name for this version of the emulator: its headers, its runtime, the layout of the structs that they share with
    Python, and how it rewrites texts. Read anew each time: what is compiled now is named by the files of now."""
    files = [p for p in sorted([*HEADERS.rglob("*"), *RUNTIME.rglob("*")]) if p.is_file()]
    files += [HERE / "build.py", HERE / "source.py"]
    return digest(native.layout(), *(part for p in files for part in (str(p.relative_to(HERE)), p.read_text())))


def _candidates() -> Iterator[Path]:
    for root in (os.environ.get("XDG_CACHE_HOME", ""), os.path.expanduser("~/.cache")):
        if os.path.isabs(root):
            yield Path(root) / "refsim" / "emulator"
    own = Path(tempfile.gettempdir()) / f"refsim-{os.getuid()}"
    try:
        own.mkdir(mode=0o700, exist_ok=True)
        status = own.lstat()
    except OSError:
        return
    if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022:
        yield own / "emulator"  # nobody else can put objects there for us to load


def _fault(folder: Path) -> str:
    """Why objects can't be kept in a folder, which is made where it isn't there; nothing where they can."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return str(error)


def cache_folder() -> Path:
    """The folder of compiled objects: under `REFSIM_CACHE`, else the user's cache folder, else among temporary files.

    Raises
    ------
    OSError
        `REFSIM_CACHE` is set, but nothing can be written there; or nowhere at all.
    """
    given = os.environ.get("REFSIM_CACHE")
    folders = [Path(given).absolute() / "refsim" / "emulator"] if given else _candidates()
    faults = []
    for folder in folders:
        fault = _fault(folder)
        if not fault:
            return folder
        faults.append(fault)
    raise OSError(f"set REFSIM_CACHE to a folder where compiled kernels can be kept ({'; '.join(faults)})")


def is_whole(path: Path) -> bool:
    """Is there a complete shared object? Its last part is the table of sections that its header announces."""
    try:
        with path.open("rb") as file:
            head = file.read(64)
            nbytes = file.seek(0, os.SEEK_END)
    except FileNotFoundError:
        return False
    if len(head) < 64 or head[:6] != b"\x7fELF\x02\x01":
        return False
    table, entry, count = (int.from_bytes(head[a:b], "little") for a, b in ((40, 48), (58, 60), (60, 62)))
    return nbytes >= table + entry * count > 0


def compile_whole(command: list[str], target: Path) -> subprocess.CompletedProcess[str]:
    """Run a compiler that writes `target`, whole or not at all, whoever else is writing it."""
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = Path(folder) / target.name
        # Zig keeps files of its own and would look for a home; ours is known to take them.
        environment = {"ZIG_GLOBAL_CACHE_DIR": str(cache_folder() / "zig")} | os.environ
        result = subprocess.run(
            [*command, "-o", str(made)], capture_output=True, text=True, check=False, env=environment
        )
        if result.returncode == 0:
            os.replace(made, target)
    return result
