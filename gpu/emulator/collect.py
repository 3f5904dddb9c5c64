"""From the workers' tables to a Trace and to Reports."""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING

import numpy as np

from gpu.emulator import native
from gpu.emulator.lines import KERNEL, lines_of
from gpu.emulator.loaded import Loaded
from gpu.emulator.memory import Tensor, bytes_at
from gpu.emulator.report import Report
from gpu.emulator.trace import BarrierEvent, Site, TensorTraffic, Trace, Traffic, WarpAccess

if TYPE_CHECKING:
    from gpu.emulator.launch import Running

SITE = np.dtype(native.Site)
SUMMED = ("nbytes", "lanes", "requests", "sectors", "useful", "wavefronts", "ideal")


def printed(control: native.Launch) -> str:
    """What device printf wrote, block by block."""
    total = min(control.printed_nbytes, control.print_capacity)
    if not total:
        return ""
    data = bytes_at(control.printed, total).tobytes()
    messages, at = [], 0
    while at + 8 <= len(data):
        block, nbytes = struct.unpack_from("<II", data, at)
        messages.append((block, data[at + 8 : at + 8 + nbytes].decode(errors="replace")))
        at += 8 + nbytes
    text = "".join(text for _, text in sorted(messages, key=lambda m: m[0]))
    if control.printed_nbytes > control.print_capacity:
        lost = control.printed_nbytes - control.print_capacity
        text += f"\n[the emulator keeps {control.print_capacity:,} bytes of device printf; {lost:,} more are lost]\n"
    return text


def index3(number: int, shape: tuple[int, int, int]) -> tuple[int, int, int]:
    """A linear thread or block number as x, y, z."""
    return number % shape[0], number // shape[0] % shape[1], number // (shape[0] * shape[1])


class Places:
    """From an address in a loaded kernel to a line of its text; tables are read at the first question."""

    def __init__(self, loaded: Loaded) -> None:
        self.path, self.base, self.nbytes = loaded.module.path, loaded.base, loaded.elf.image_nbytes
        self.text = loaded.module.text.splitlines()
        self.headers = {os.path.basename(n): h.text.splitlines() for n, h in loaded.module.headers.items()}

    def __call__(self, pc: int) -> tuple[int, str]:
        """Line and text; line 0 where only a header knows of it, whose words the text then is."""
        line = self.line(pc)
        return line, self.source(line) if line else self.in_header(pc)

    def line(self, pc: int) -> int:
        """The line of the text that was compiled; 0 where there is none."""
        offset = pc - self.base
        return lines_of(self.path).find(offset - 1) if 0 < offset <= self.nbytes else 0

    def in_header(self, pc: int) -> str:
        """The innermost place in a header of the user's, as "name line 12: text"; nothing where there is none."""
        offset = pc - self.base
        for file, line in lines_of(self.path).chain(offset - 1) if 0 < offset <= self.nbytes else ():
            if file == KERNEL:
                break
            if line <= len(self.headers.get(file, ())):
                return f"{file} line {line}: {self.headers[file][line - 1].strip()}"
        return ""

    def source(self, line: int) -> str:
        return self.text[line - 1].strip() if 0 < line <= len(self.text) else ""


class Namer:
    """Names for regions and places of one launch."""

    def __init__(self, running: Running) -> None:
        self.places = Places(running.loaded)
        self.by_slot = {t.slot: t for t in running.tensors}

    def region(self, region: int) -> str:
        if region == native.REGION_SHARED:
            return "shared"
        if region in self.by_slot:
            return self.by_slot[region].name
        return "variables" if region == native.REGION_MODULE else "unknown"


def _merged(running: Running) -> np.ndarray:
    tables = [np.frombuffer(w.sites, SITE) for w in running.worker]
    sites = np.concatenate([t[t["used"] != 0] for t in tables])
    if len(tables) > 1 and len(sites):
        keys, inverse = np.unique(sites[["pc", "region", "size", "direction"]], return_inverse=True)
        merged = np.zeros(len(keys), SITE)
        for name in keys.dtype.names or ():
            merged[name] = keys[name]
        for name in SUMMED:
            np.add.at(merged[name], inverse, sites[name])
        sites = merged
    return np.sort(sites, order=["pc", "region", "direction", "size"])


def written_slots(running: Running) -> set[int]:
    """The slots of tensors that any thread wrote to."""
    sites = _merged(running)
    return {int(r) for r in np.unique(sites["region"][sites["direction"] != native.DIRECTIONS.index("read")]) if r >= 0}


def _traffic(site: np.void) -> Traffic:
    return Traffic(
        int(site["nbytes"]),
        int(site["lanes"]),
        int(site["requests"]),
        int(site["sectors"]),
        int(site["useful"]),
        int(site["wavefronts"]),
        int(site["ideal"]),
    )


def _unique(running: Running, tensor: Tensor, direction: int) -> int:
    bits = bytes_at(running.memory.slot(tensor).touched[direction], tensor.nbytes // 8 + 1)
    return int(np.bitwise_count(bits).sum(dtype=np.int64))


def collect_trace(running: Running, text: str) -> Trace:
    """Sum the sites of all workers by tensor, direction and line."""
    namer = Namer(running)
    sites = _merged(running)
    totals: dict[tuple[str, str], Traffic] = {}
    kept = []
    for site in sites:
        name, direction = namer.region(int(site["region"])), native.DIRECTIONS[site["direction"]]
        traffic = _traffic(site)
        totals[name, direction] = totals.get((name, direction), Traffic()) + traffic
        kept.append(Site(int(site["pc"]), name, direction, int(site["size"]), traffic))
    tensors = {}
    for tensor in running.tensors:
        by_direction = {}
        for i, direction in enumerate(native.DIRECTIONS):
            total = totals.get((tensor.name, direction), Traffic())
            unique = _unique(running, tensor, i) if total.requests else 0
            by_direction[direction] = Traffic(**{**vars(total), "unique_nbytes": unique})
        for name in tensor.names:
            tensors[name] = TensorTraffic(name, **by_direction)
    order = [n for i, n in enumerate(running.entry.names) if i in running.arguments.arrays]
    shared = TensorTraffic("shared", **{d: totals.get(("shared", d), Traffic()) for d in native.DIRECTIONS})
    return Trace(
        running.entry.name,
        running.grid,
        running.block,
        {n: tensors[n] for n in order},
        shared,
        tuple(kept),
        namer.places,
        tuple(_accesses(running, namer)),
        tuple(_barriers(running)),
        _heat(running),
        text,
    )


def _heat(running: Running) -> dict[str, np.ndarray]:
    out = {}
    for tensor in running.tensors if running.settings.heat else ():
        slot = running.memory.slot(tensor)
        granules = tensor.nbytes >> slot.granule_shift
        counts = bytes_at(slot.heat, 4 * granules).view(np.uint32).copy()
        array = tensor.array
        per_item = max(1, array.dtype.itemsize >> slot.granule_shift)
        if array.flags.c_contiguous and len(tensor.arrays) == 1:
            counts = counts.reshape(-1, per_item).max(axis=1).reshape(array.shape)
        out[tensor.name] = counts
    return out


def _accesses(running: Running, namer: Namer) -> list[WarpAccess]:
    arrays = [running.control.shared[i].base for i in range(running.control.nshared)]
    out = []
    for worker in running.worker:
        for i in range(worker.nsamples):
            s = worker.samples[i]
            lanes = tuple(lane for lane in range(32) if s.mask >> lane & 1)
            base = max((b for b in arrays if b <= s.address[lanes[0]]), default=0)
            if s.region in namer.by_slot:
                base = namer.by_slot[s.region].address
            offsets = tuple(s.address[lane] - base for lane in lanes)
            name, direction = namer.region(s.region), native.DIRECTIONS[s.direction]
            out.append(WarpAccess(namer.places.line(s.pc), name, direction, s.size, s.block, s.warp, lanes, offsets))
    return sorted(out, key=lambda a: (a.block, a.warp))


def _barriers(running: Running) -> list[BarrierEvent]:
    out = []
    for worker in running.worker:
        for i in range(worker.nevents):
            e = worker.events[i]
            out.append(BarrierEvent(e.block, e.warp, e.index, e.line, e.arrived, e.released))
    return sorted(out, key=lambda e: (e.block, e.barrier, e.warp))


def collect_reports(running: Running) -> list[Report]:
    """The findings in words, the lowest block first."""
    count = min(running.control.nreports, native.MAX_REPORTS)
    if not count:
        return []
    from gpu.emulator.explain import explain

    namer = Namer(running)
    reports = [explain(running, namer, running.control.reports[i]) for i in range(count)]
    return sorted(reports, key=lambda r: (r.block[::-1], r.line))
