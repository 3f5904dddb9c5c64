"""The runtime's structs and functions as ctypes sees them: `runtime/abi.h` field by field."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_char, c_char_p, c_int32, c_uint8, c_uint32, c_uint64, c_void_p

CHECKS = (
    "out_of_bounds",
    "misaligned",
    "uninitialised",
    "race",
    "barrier",
    "mask",
    "deadlock",
    "const_write",
    "overflow",
    "assertion",
    "crash",
)
MODES = ("ignore", "report", "raise")
DIRECTIONS = ("read", "write", "atomic")
REGION_SHARED, REGION_MODULE, REGION_NOWHERE = -1, -2, -3
SLOT_CONST, SLOT_RACE, SLOT_UNINIT, SLOT_HEAT, SLOT_FREED = 1, 2, 4, 8, 16
NOBODY = 0xFFFFFFFF
MAX_REPORTS, MAX_SITES, MAX_SAMPLES, MAX_EVENTS = 128, 1 << 13, 2048, 1 << 14
GLOBAL_CELL_NBYTES = 40
MAX_ARGUMENTS, MAX_RANGES, MAX_WORKERS = 128, 64, 16


class Slot(Structure):
    _fields_ = [
        ("base", c_uint64),
        ("nbytes", c_uint64),
        ("flags", c_uint32),
        ("granule_shift", c_uint32),
        ("touched", c_void_p * 3),
        ("initialised", c_void_p),
        ("cells", c_void_p),
        ("heat", c_void_p),
    ]


class Range(Structure):
    _fields_ = [("base", c_uint64), ("nbytes", c_uint64)]


class Report(Structure):
    _fields_ = [
        *((name, c_int32) for name in ("check", "region")),
        *((name, c_uint32) for name in ("count", "size", "direction", "other_direction")),
        *((name, c_uint64) for name in ("pc", "other_pc", "address")),
        *((name, c_uint32) for name in ("block", "thread", "other_block", "other_thread", "line", "other_line")),
        ("lanes", c_uint64),
        ("detail", c_char * 240),
    ]


class Site(Structure):
    _fields_ = [
        ("pc", c_uint64),
        ("region", c_int32),
        *((name, c_uint32) for name in ("size", "direction", "used")),
        *((name, c_uint64) for name in ("lanes", "requests", "nbytes", "sectors", "useful", "wavefronts", "ideal")),
    ]


class Sample(Structure):
    _fields_ = [
        ("pc", c_uint64),
        ("region", c_int32),
        *((name, c_uint32) for name in ("size", "direction", "block", "warp", "mask")),
        ("address", c_uint64 * 32),
    ]


class Event(Structure):
    _fields_ = [
        *((name, c_uint32) for name in ("block", "warp", "index", "line")),
        ("arrived", c_uint64),
        ("released", c_uint64),
    ]


class Worker(Structure):
    _fields_ = [
        *((name, c_uint32) for name in ("ended", "nsamples", "nevents", "failed")),
        ("resumes", c_uint64),
        ("sites", Site * MAX_SITES),
        ("samples", Sample * MAX_SAMPLES),
        ("events", Event * MAX_EVENTS),
    ]


class Launch(Structure):
    _fields_ = [
        ("grid", c_uint32 * 3),
        ("block", c_uint32 * 3),
        ("shared_nbytes", c_uint32),
        ("workers", c_uint32),
        ("stack_nbytes", c_uint64),
        ("entry", c_void_p),
        ("arguments", c_void_p * MAX_ARGUMENTS),
        ("module_low", c_uint64),
        ("module_high", c_uint64),
        ("nshared", c_uint32),
        ("nvariables", c_uint32),
        ("shared", Range * MAX_RANGES),
        ("variables", Range * MAX_RANGES),
        *(
            (name, c_uint32)
            for name in ("const_variables", "visible_variables", "traced", "keep_samples", "keep_events", "unused")
        ),
        ("modes", c_uint8 * 16),
        ("next_block", c_uint64),
        ("stop", c_uint32),
        ("nreports", c_uint32),
        ("published", c_void_p),
        ("acquired", c_void_p),
        ("order", c_uint64),
        ("step_block", c_int32),
        ("step_write", c_int32),
        ("step_read", c_int32),
        ("step_line", c_uint32),
        ("step_shared", c_void_p),
        ("watched", c_void_p),
        ("printed_nbytes", c_uint64),
        ("print_capacity", c_uint64),
        ("printed", c_void_p),
        ("left", c_void_p),
        ("reports", Report * MAX_REPORTS),
        ("worker", c_void_p * MAX_WORKERS),
    ]


class Parameter(Structure):
    """One kernel parameter, as the compiler described it."""

    _fields_ = [
        *((name, c_uint32) for name in ("nbytes", "pointer", "constant", "pointee_nbytes")),
        ("kind", c_char),
    ]


class KernelInfo(Structure):
    _fields_ = [
        ("name", c_char_p),
        ("entry", c_void_p),
        ("parameters", POINTER(Parameter)),
        *((name, c_uint32) for name in ("count", "bounds", "min_blocks")),
    ]


FUNCTIONS = {
    "refsim_arena": (c_uint64, [c_uint32, c_uint32]),
    "refsim_slots": (POINTER(Slot), []),
    "refsim_tensor": (c_uint64, [c_uint32, c_uint64]),
    "refsim_drop_tensor": (None, [c_uint32, c_uint64]),
    "refsim_shared": (c_void_p, [c_uint64]),
    "refsim_unshare": (None, [c_void_p, c_uint64]),
    "refsim_stacks": (ctypes.c_int, [c_uint32, c_uint64]),
    "refsim_spawn": (ctypes.c_int, [POINTER(Launch), c_uint32]),
}


STRUCTS = (Slot, Range, Report, Site, Sample, Event, Worker, Launch)


def layout() -> str:
    """What these structs and numbers ask of the runtime, as assertions that it is compiled with.

    >>> print(layout().splitlines()[0])
    static_assert(sizeof(Slot) == 72, "native.layout");
    """
    facts = {"CHECKS": len(CHECKS), "MAX_REPORTS": MAX_REPORTS, "MAX_SITES": MAX_SITES, "MAX_SAMPLES": MAX_SAMPLES}
    facts |= {"MAX_EVENTS": MAX_EVENTS, "sizeof(GlobalCell)": GLOBAL_CELL_NBYTES}
    lines = {}
    for struct in STRUCTS:
        name = struct.__name__
        lines[f"sizeof({name})"] = ctypes.sizeof(struct)
        for field in struct._fields_:
            lines[f"offsetof({name}, {field[0]})"] = getattr(struct, field[0]).offset
    return "".join(f'static_assert({k} == {v}, "native.layout");\n' for k, v in {**lines, **facts}.items())


def load(path: str) -> ctypes.CDLL:
    """Load the compiled runtime and give its functions their types."""
    library = ctypes.CDLL(path)
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
