"""What a launch may ask for: dimensions, threads, shared memory, and the modes of the checks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from gpu.emulator import native
from gpu.emulator.build import DYNAMIC_SHARED_NBYTES
from gpu.emulator.loaded import Entry, Loaded

MAX_THREADS = 1024
STATIC_SHARED_NBYTES = 48 * 1024
CONSTANT_NBYTES = 64 * 1024


class LaunchError(ValueError):
    """The launch asks for more than a device has, or for nothing at all."""


def modes(checks: Mapping[str, str] | str | None) -> dict[str, str]:
    """The mode of each check: one for all, or by name over the default "raise".

    Raises
    ------
    ValueError
        No such check or mode.
    """
    given = dict.fromkeys(native.CHECKS, checks) if isinstance(checks, str) else dict(checks or {})
    for name, mode in given.items():
        if name not in native.CHECKS:
            raise ValueError(f"no check {name!r}; there are {', '.join(native.CHECKS)}")
        if mode not in native.MODES:
            raise ValueError(f"no mode {mode!r} (for {name}); there are {', '.join(native.MODES)}")
    return {**dict.fromkeys(native.CHECKS, "raise"), **given}


def dimensions(what: str, given: int | Sequence[int]) -> tuple[int, int, int]:
    """A grid or block as three numbers.

    Raises
    ------
    LaunchError
        Not one to three positive whole numbers.
    """
    sizes = tuple(given) if isinstance(given, Iterable) else (given,)
    if not 1 <= len(sizes) <= 3 or not all(isinstance(s, (int, np.integer)) and s > 0 for s in sizes):
        raise LaunchError(f"{what} must be one to three positive whole numbers, not {given!r}")
    return tuple(int(s) for s in (*sizes, 1, 1)[:3])  # type: ignore[return-value]


def dynamic_nbytes(shared_mem: int) -> int:
    """The shared memory that a launch asks for.

    Raises
    ------
    LaunchError
        No whole number of bytes.
    """
    if not isinstance(shared_mem, (int, np.integer)) or shared_mem < 0:
        raise LaunchError(f"shared_mem must be a whole number of bytes, not {shared_mem!r}")
    return int(shared_mem)


def check_limits(
    loaded: Loaded, entry: Entry, grid: tuple[int, ...], block: tuple[int, ...], shared: int, limit: int
) -> None:
    """What the driver refuses before a kernel starts.

    Raises
    ------
    LaunchError
        Naming what was asked for and what there is.
    """
    threads = math.prod(block)
    if threads > MAX_THREADS or block[2] > 64:
        raise LaunchError(
            f"kernel `{entry.name}`: a block of {block} has {threads} threads; at most 1024 fit (64 along z)"
        )
    if grid[0] > 2**31 - 1 or max(grid[1:]) > 65535:
        raise LaunchError(f"kernel `{entry.name}`: a grid of {grid} is too large: at most (2147483647, 65535, 65535)")
    if entry.bounds and threads > entry.bounds:
        raise LaunchError(
            f"kernel `{entry.name}` was compiled for at most {entry.bounds} threads (__launch_bounds__), but the "
            f"block has {threads}: its registers would not fit"
        )
    if entry.bounds * entry.min_blocks > 2048:
        raise LaunchError(
            f"kernel `{entry.name}`: __launch_bounds__({entry.bounds}, {entry.min_blocks}) asks for "
            f"{entry.bounds * entry.min_blocks} resident threads; a multiprocessor holds 2048"
        )
    constants = sum(symbol.nbytes for symbol in loaded.constants)
    if constants > CONSTANT_NBYTES:
        raise LaunchError(f"the module's __constant__ variables take {constants} bytes; there are {CONSTANT_NBYTES}")
    static = loaded.shared_of(entry)
    if static > STATIC_SHARED_NBYTES:
        raise LaunchError(
            f"kernel `{entry.name}` declares {static} bytes of static shared memory; a kernel gets at most "
            f"{STATIC_SHARED_NBYTES}: use extern __shared__ and ask for it at launch"
        )
    if static + shared > limit:
        raise LaunchError(
            f"kernel `{entry.name}` needs {static + shared} bytes of shared memory ({static} static, {shared} "
            f"dynamic); a block has {limit}. Above {STATIC_SHARED_NBYTES}, set max_dynamic_shared_size_bytes; "
            f"no device has more than {DYNAMIC_SHARED_NBYTES}"
        )
