"""One broken kernel for each check, reported at the right line; and its mended twin, which must be clean."""

from pathlib import Path

import numpy as np
import pytest

from gpu import emulator
from gpu.emulator import KernelError, RawKernel

HEADERS = Path(__file__).parents[2] / "gpu" / "kernels"


def floats(*shape):
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


X, Y = floats(64), np.zeros(64, np.float32)
IDS = np.arange(64, dtype=np.int32)
TABLE = np.array([0, 1, 2, -1], np.int32)

# name: check, grid, block, arguments, the tensor named (if any), shared memory
CASES = {
    "past_the_end": ("out_of_bounds", 2, 32, lambda: (floats(40), floats(40), np.int32(40)), "x", 0),
    "negative_index": ("out_of_bounds", 1, 64, lambda: (floats(64), floats(64), np.int32(64)), "x", 0),
    "far_index": ("out_of_bounds", 1, 4, lambda: (TABLE, floats(64), floats(4), np.int32(4)), "x", 0),
    "null_pointer": ("out_of_bounds", 1, 32, lambda: (None, floats(32)), None, 0),
    "foreign_pointer": ("out_of_bounds", 1, 32, lambda: (floats(32), np.uint64(X.ctypes.data)), None, 0),
    "misaligned": ("misaligned", 1, 8, lambda: (floats(64), floats(8)), "x", 0),
    "static_index": ("out_of_bounds", 1, 64, lambda: (floats(64), floats(64)), None, 0),
    "dynamic_too_small": ("out_of_bounds", 1, 64, lambda: (floats(64), floats(64)), "dynamic", 128),
    "uninitialised_shared": ("uninitialised", 1, 64, lambda: (floats(64), floats(64)), "s", 0),
    "uninitialised_output": ("uninitialised", 1, 64, lambda: (floats(64), emulator.empty(64)), "y", 0),
    "shared_race": ("race", 1, 64, lambda: (floats(64), floats(64)), "s", 0),
    "warp_race": ("race", 1, 32, lambda: (floats(32), floats(1)), "s", 0),
    "global_race": ("race", 1, 64, lambda: (floats(64), floats(64)), "x", 0),
    "block_race": ("race", 4, 32, lambda: (floats(128), floats(1)), "total", 0),
    "block_reads_block": ("race", 2, 32, lambda: (floats(64), floats(64)), "x", 0),
    "missed_barrier": ("barrier", 1, 64, lambda: (floats(40), floats(40), np.int32(40)), None, 0),
    "two_barriers": ("barrier", 1, 64, lambda: (floats(64), floats(64)), None, 0),
    "source_outside_mask": ("mask", 1, 32, lambda: (floats(32), floats(32)), None, 0),
    "caller_outside_mask": ("mask", 1, 32, lambda: (floats(32), floats(32)), None, 0),
    "ended_lanes": ("mask", 1, 32, lambda: (floats(20), floats(1), np.int32(20)), None, 0),
    "mixed_intrinsics": ("mask", 1, 32, lambda: (floats(32), floats(32)), None, 0),
    "deadlock": ("deadlock", 1, 32, lambda: (floats(32), floats(32)), None, 0),
    "const_write": ("const_write", 1, 32, lambda: (floats(32), floats(32)), "x", 0),
    "overflow": (
        "overflow",
        1,
        2,
        lambda: (np.array([0, 262144], np.int32), floats(4), floats(2), np.int32(16384)),
        None,
        0,
    ),
    "assertion": ("assertion", 1, 4, lambda: (np.array([0, 1, 2, 9], np.int32), np.int32(9)), None, 0),
    "missing_wait": ("uninitialised", 1, 32, lambda: (floats(128), floats(128)), "s", 0),
    "too_early_refill": ("race", 1, 32, lambda: (floats(256), floats(256)), "s", 0),
    "reads_second_tile": ("uninitialised", 1, 32, lambda: (floats(64, 4), floats(32)), "s", 0),
    "unlocked": ("race", 2, 64, lambda: (np.zeros(1, np.int32), np.zeros(1, np.int32)), "count", 0),
    "unmatched_reuse": ("race", 1, 64, lambda: (floats(256), floats(64), np.int32(4)), "s", 0),
    "overlapping_carve": (
        "race",
        1,
        64,
        lambda: (floats(64), np.arange(64, dtype=np.int32), floats(64)),
        "dynamic",
        512,
    ),
    "const_cast": ("const_write", 1, 32, lambda: (floats(32), floats(32)), "x", 0),
    "free_block": (
        "out_of_bounds",
        8,
        16,
        lambda: (np.array([2, -1], np.int32), floats(4, 4, 16), floats(8, 16), np.int32(4), np.int32(16)),
        "cache",
        0,
    ),
    "early_return": ("barrier", 2, 64, lambda: (floats(100), floats(100), np.int32(100)), None, 0),
    "divide_by_zero": ("crash", 1, 2, lambda: (np.array([5, 0], np.int32), np.zeros(2, np.int32)), None, 0),
    "stack_overflow": ("crash", 1, 2, lambda: (np.ones(2, np.int32), np.int32(100_000)), None, 0),
}


@pytest.mark.parametrize("name", CASES)
def test_broken_kernel_is_reported_at_its_line(text, find_line, name):
    check, grid, block, arguments, tensor, shared = CASES[name]
    code, args = text(f"broken/{name}"), arguments()
    before = [a.copy() if isinstance(a, np.ndarray) else a for a in args]
    with pytest.raises(KernelError) as caught:
        RawKernel(code, "k", (f"-I{HEADERS}",))(grid, block, args, shared_mem=shared)
    report = caught.value.report
    assert report.check == check
    assert report.kernel == "k"
    assert report.tensor == tensor
    marks = [find_line(code, m) for m in ("// HERE", "// OTHER") if m in code]
    if len(marks) == 2:  # of two accesses that collide, either may come first
        assert [report.line, report.other_line] in (marks, marks[::-1])
        assert report.other_thread is not None
    elif marks:
        assert report.line == marks[0]
        assert report.source in code
    assert report.meaning in str(caught.value)
    for a, b in zip(args, before, strict=True):  # what a stopped launch wrote is not kept
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", CASES)
def test_mended_kernel_is_clean(text, name):
    _, grid, block, arguments, _, shared = CASES[name]
    kernel = RawKernel(text(f"broken/{name}"), "k", (f"-I{HEADERS}", "-DMENDED"))
    kernel(grid, block, arguments(), shared_mem=shared)
    assert kernel.reports == []


@pytest.mark.parametrize(
    ("name", "element", "words"),
    [
        ("uninitialised_shared", (63,), "reads `s[63]` in shared memory (`s`: 256 bytes), which nobody has written"),
        ("dynamic_too_small", 32, "writes 4 bytes at `s[32]` in dynamic shared memory (128 bytes asked for)"),
        ("past_the_end", 40, "element 40 of `x`, 0 bytes past its end (shape (40,), float32, 160 bytes)"),
        ("negative_index", -1, "element -1 of `x`, 4 bytes before its start"),
        ("uninitialised_output", (0,), "reads `y`[0], which nobody has written"),
        ("global_race", (1,), "writes `x`[1], which thread (0, 0, 0) of block (0, 0, 0) at line 7 read"),
        ("overflow", None, "262144 * 16384 does not fit in 'int'"),
        ("missed_barrier", None, "40 of 64 threads wait at the barrier; the others ended without reaching it"),
        ("ended_lanes", None, "a shuffle names lanes 0xfff00000, which have ended"),
        ("source_outside_mask", None, "lane 8 reads lane 16, which is not in the mask 0x0000ffff"),
        (
            "free_block",
            -64,
            "element -64 of `cache`, 256 bytes before its start (shape (4, 4, 16), float32",
        ),
        ("missing_wait", (3,), "to which an asynchronous copy is still on its way: its thread must wait for it first"),
        ("early_return", None, "36 of 64 threads wait at the barrier; the others ended without reaching it"),
    ],
)
def test_words_of_reports(text, name, element, words):
    _, grid, block, arguments, _, shared = CASES[name]
    with pytest.raises(KernelError) as caught:
        RawKernel(text(f"broken/{name}"), "k", (f"-I{HEADERS}",))(grid, block, arguments(), shared_mem=shared)
    assert caught.value.report.element == element
    assert words in caught.value.report.what
