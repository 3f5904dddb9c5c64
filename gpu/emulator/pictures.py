"""Pictures of a trace, drawn from real addresses: each takes a Trace and returns a matplotlib Axes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gpu.emulator.trace import SECTOR_NBYTES, Trace, WarpAccess

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BANKS, BANK_NBYTES = 32, 4


def _axes(ax: Axes | None, size: tuple[float, float]) -> Axes:
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=size, layout="constrained")[1]


def pick(trace: Trace, tensor: str, *, direction: str = "read", line: int | None = None, warp: int = 0) -> WarpAccess:
    """The first kept access of a warp to a tensor (or to "shared").

    Raises
    ------
    LookupError
        None was kept: launch with ``run(..., accesses=1)``, or look at the names and lines that there are.
    """
    for a in trace.accesses:
        if a.tensor == tensor and a.direction == direction and line in (None, a.line) and a.warp == warp:
            return a
    kept = sorted({(a.tensor, a.direction, a.line) for a in trace.accesses})
    raise LookupError(
        f"no {direction} of {tensor!r} by warp {warp}{f' at line {line}' if line else ''} was kept; "
        + (f"kept are {kept}" if kept else "launch with run(..., accesses=1)")
    )


def sector_table(access: WarpAccess) -> np.ndarray:
    """For each sector that a warp access touches (rows) and each of its 32 bytes, the lowest lane that asked for it.

    -1 where nobody did: bytes that are moved for nothing.
    """
    first = min(access.offsets) // SECTOR_NBYTES
    last = (max(access.offsets) + access.size - 1) // SECTOR_NBYTES
    table = np.full((last - first + 1) * SECTOR_NBYTES, -1)
    for lane, offset in sorted(zip(access.lanes, access.offsets, strict=True), reverse=True):
        at = offset - first * SECTOR_NBYTES
        table[at : at + access.size] = lane
    rows = table.reshape(-1, SECTOR_NBYTES)
    return rows[(rows >= 0).any(axis=1)]


def sectors(access: WarpAccess, ax: Axes | None = None) -> Axes:
    """The sectors of one warp access: a row a sector, coloured by lane, white where bytes are moved for nothing."""
    table = sector_table(access)
    ax = _axes(ax, (7, 0.8 + 0.22 * len(table)))
    ax.imshow(np.ma.masked_less(table, 0), aspect="auto", cmap="viridis", vmin=0, vmax=31, interpolation="nearest")
    used = (table >= 0).mean()
    ax.set_title(f"{access.tensor}, line {access.line}: {len(table)} sectors, {used:.0%} of their bytes asked for")
    ax.set_xlabel("byte of the sector")
    ax.set_ylabel("sector")
    return ax


def bank_table(access: WarpAccess) -> np.ndarray:
    """How many different 4-byte words each of the 32 banks has to give for one access to shared memory."""
    words = {
        (offset + step) // BANK_NBYTES
        for offset in access.offsets
        for step in range(0, max(access.size, 1), BANK_NBYTES)
    }
    counts = np.zeros(BANKS, int)
    for word in words:
        counts[word % BANKS] += 1
    return counts


def banks(access: WarpAccess, ax: Axes | None = None) -> Axes:
    """The bank map of one access to shared memory: the tallest bar is the number of wavefronts of 4-byte accesses."""
    counts = bank_table(access)
    ax = _axes(ax, (7, 2.4))
    ax.bar(np.arange(BANKS), counts, color=["C3" if c > 1 else "C0" for c in counts])
    ax.set_title(f"shared memory, line {access.line}: {access.direction} of {len(access.lanes)} lanes")
    ax.set_xlabel("bank")
    ax.set_ylabel("different words")
    ax.set_ylim(0, max(2, counts.max() + 1))
    return ax


def heat(trace: Trace, tensor: str, ax: Axes | None = None) -> Axes:
    """How often each element of a tensor was read; tensors of more than two axes are folded to rows of their last.

    Raises
    ------
    LookupError
        The launch kept no counts: ``run(..., heat=True)`` does.
    """
    if tensor not in trace.heat:
        raise LookupError(f"no reads of {tensor!r} were counted; launch with run(..., heat=True)")
    counts = trace.heat[tensor]
    table = counts.reshape(-1, counts.shape[-1]) if counts.ndim > 1 else counts.reshape(1, -1)
    ax = _axes(ax, (6, 4))
    image: Any = ax.imshow(table, aspect="auto", cmap="magma", interpolation="nearest", vmin=0)
    ax.figure.colorbar(image, ax=ax, label="reads")
    ax.set_title(f"{tensor}: read {counts.min()} to {counts.max()} times an element")
    ax.set_xlabel("last axis")
    ax.set_ylabel("row")
    return ax


def timeline(trace: Trace, block: int = 0, ax: Axes | None = None) -> Axes:
    """When each warp of a block came to each barrier, and how long it waited there.

    Raises
    ------
    LookupError
        The launch kept no barriers: ``run(..., barriers=True)`` does.
    """
    events = [e for e in trace.barriers if e.block == block]
    if not events:
        raise LookupError(f"no barriers of block {block} were kept; launch with run(..., barriers=True)")
    ax = _axes(ax, (8, 3))
    begun: dict[int, int] = {}
    for e in events:
        ax.barh(e.warp, e.arrived - begun.get(e.warp, 0), left=begun.get(e.warp, 0), color="C0", height=0.8)
        ax.barh(e.warp, e.released - e.arrived, left=e.arrived, color="0.85", height=0.8)
        begun[e.warp] = e.released
    for at in sorted({e.released for e in events}):
        ax.axvline(at, color="C3", linewidth=1)
    ax.set_title(f"block {block}: work (blue), waiting (grey), barriers (red)")
    ax.set_xlabel("warp accesses to memory")
    ax.set_ylabel("warp")
    return ax
