"""A finding of the runtime in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpu.emulator import native
from gpu.emulator.collect import Namer, index3
from gpu.emulator.declarations import declared, dynamic_names
from gpu.emulator.memory import Tensor
from gpu.emulator.report import Report

if TYPE_CHECKING:
    from gpu.emulator.launch import Running

Element = tuple[int, ...] | int | None
VERB = {"read": "reads", "write": "writes", "atomic": "updates atomically"}
PAST = {"read": "read", "write": "wrote", "atomic": "updated atomically"}


def _element_of(tensor: Tensor, offset: int) -> Element:
    array = tensor.array
    item = offset // array.dtype.itemsize
    if len(tensor.arrays) == 1 and array.flags.c_contiguous and 0 <= item < array.size:
        return tuple(int(i) for i in np.unravel_index(item, array.shape))
    return int(item)


def _shared_place(running: Running, address: int) -> tuple[str, int, int]:
    """The shared array at or below an address, the offset into it, and its size."""
    control = running.control
    best = ("shared memory", 0, 0)
    for i in range(control.nshared):
        r = control.shared[i]
        if r.base <= address and (best[1] == 0 or address - r.base < best[1] or address < r.base + r.nbytes):
            best = (running.shared_names[i], address - r.base, r.nbytes)
    return best


def _shared_target(running: Running, address: int) -> tuple[str, Element, str]:
    """Name, element and words for an address in shared memory; bytes where the text does not tell type and shape."""
    name, offset, nbytes = _shared_place(running, address)
    text = running.loaded.module.text
    dynamic = name == "dynamic"
    names = set(dynamic_names(text)) if dynamic else {name}
    kind = (
        f"dynamic shared memory ({nbytes} bytes asked for)" if dynamic else f"shared memory (`{name}`: {nbytes} bytes)"
    )
    dtype, shape = declared(text, next(iter(names))) if len(names) == 1 else (np.uint8, (-1,))
    item, within = divmod(offset, np.dtype(dtype).itemsize)
    if dtype is np.uint8 or within:
        return name, None, f"byte {offset} of {kind}"
    element: Element = item
    if shape != (-1,) and item < np.prod(shape):
        element = tuple(int(i) for i in np.unravel_index(item, shape)) if shape else ()
    index = "".join(f"[{i}]" for i in element) if isinstance(element, tuple) else f"[{element}]"
    return name, element, f"`{next(iter(names))}{index}` in {kind}"


def _target(running: Running, namer: Namer, raw: native.Report) -> tuple[str | None, Element, str]:
    """Tensor, element and words for where an access went."""
    if raw.region in namer.by_slot:
        tensor = namer.by_slot[raw.region]
        offset = raw.address - tensor.address
        element = _element_of(tensor, offset)
        where = f"`{tensor.name}`[{', '.join(map(str, element)) if isinstance(element, tuple) else element}]"
        if not 0 <= offset <= tensor.nbytes - raw.size:
            side = f"{-offset} bytes before its start" if offset < 0 else f"{offset - tensor.nbytes} bytes past its end"
            where = (
                f"element {element} of `{tensor.name}`, {side} "
                f"(shape {tensor.array.shape}, {tensor.array.dtype}, {tensor.nbytes} bytes)"
            )
        return tensor.name, element, where
    if raw.region == native.REGION_SHARED:
        return _shared_target(running, raw.address)
    if raw.region == native.REGION_MODULE:
        return None, None, "a __device__ or __constant__ variable"
    space = running.memory.space
    if raw.region >= 0:
        earlier = space.history.get(raw.region)
        return earlier, None, f"freed memory: `{earlier}` of an earlier launch" if earlier else "memory between tensors"
    if raw.address < 65536:
        return None, None, f"address {raw.address:#x}: a null pointer"
    return None, None, f"foreign memory at {raw.address:#x}, which belongs to no argument of this launch"


def _what(running: Running, namer: Namer, raw: native.Report, where: str, other: str) -> str:
    check, direction = native.CHECKS[raw.check], native.DIRECTIONS[raw.direction]
    detail = raw.detail.decode(errors="replace")
    if check == "race":
        both = {direction, native.DIRECTIONS[raw.other_direction]}
        hint = (
            "; a value that others update atomically is read by atomicAdd(p, 0)" if both == {"read", "atomic"} else ""
        )
        return f"{VERB[direction]} {where}, which {other} {PAST[native.DIRECTIONS[raw.other_direction]]}{hint}"
    if check == "uninitialised":
        return f"reads {where}, {detail or 'which nobody has written'}"
    if check == "const_write":
        return f"{VERB[direction]} {where}, which the kernel takes as const (or the array is read-only)"
    if check in ("out_of_bounds", "misaligned") and not detail:
        return f"{VERB[direction]} {raw.size} bytes at {where}"
    if check == "crash" and raw.size:
        return f"{detail} at {where}"
    return detail + (f", {other}" if other and check in ("barrier", "mask") else "")


def _place(namer: Namer, pc: int, known_line: int) -> tuple[int, str]:
    """The line of the text, and the place in a header. Calls that know their line say it, where no table does."""
    line, header = namer.places.line(pc), namer.places.in_header(pc)
    return line or (0 if header else known_line), header


def explain(running: Running, namer: Namer, raw: native.Report) -> Report:
    """Turn one entry of the runtime's table into a Report."""
    tensor, element, where = _target(running, namer, raw)
    line, header = _place(namer, raw.pc, raw.line)
    other_line, other_header = _place(namer, raw.other_pc, raw.other_line)
    other = ""
    other_thread = other_block = None
    if raw.other_block != native.NOBODY:
        other_block = index3(raw.other_block, running.grid)
        known = raw.other_thread != native.NOBODY
        other_thread = index3(raw.other_thread, running.block) if known else None
        who = f"thread {other_thread}" if other_thread else "a thread"
        at = f" at line {other_line}" if other_line else f" at {other_header.split(':')[0]}" if other_header else ""
        other = f"{who} of block {other_block}{at}"
    return Report(
        native.CHECKS[raw.check],
        running.entry.name,
        index3(raw.block, running.grid),
        index3(raw.thread, running.block),
        line,
        namer.places.source(line),
        _what(running, namer, raw, where, other),
        tensor,
        element,
        other_line or None,
        other_block,
        other_thread,
        raw.count,
        header,
    )
