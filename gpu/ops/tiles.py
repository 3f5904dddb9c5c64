"""Tiles of the kernels: which are chosen, what they are compiled for, and what shared memory they take."""

from __future__ import annotations

from collections.abc import Callable

from refsim.attention import Plan
from refsim.machine import SramOverflow

THREADS = 128  # keys.cuh
MOST_ROWS, MOST_KEYS = 128, 128
DEVICE_SHARED_NBYTES = 232_448  # what a block of a current GPU can have: 227 KiB
MOST_TENSOR_HEAD_DIM, FEWEST_TENSOR_ROWS = 256, 16
STATIC_NBYTES = 64  # what kernels declare beside it
TILE_NBYTES = 32 * 1024  # a tile of K and V together: several such blocks share a multiprocessor


def default_tile(D: int, Dv: int, itemsize: int) -> tuple[int, int]:
    """(Br, Bc): rows for which a thread's part of the output fits its registers, and about 32 KiB of keys and values.

    >>> default_tile(128, 128, 2), default_tile(128, 128, 4)
    ((64, 64), (64, 32))
    """
    keys = max(16, min(MOST_KEYS, TILE_NBYTES // ((D + max(Dv, 1)) * itemsize)))
    return 64 if Dv <= 128 else 32, 1 << (keys.bit_length() - 1)


def compiled_rows(plan: Plan) -> int:
    """The rows a kernel is compiled for: the next power of two, from 4.

    Raises ValueError for a tile that no kernel here has registers for.
    """
    if plan.Br > MOST_ROWS or plan.Bc > MOST_KEYS:
        raise ValueError(
            f"the kernels hold tiles of at most {MOST_ROWS} rows and {MOST_KEYS} keys, this call's is "
            f"({plan.Br}, {plan.Bc}); give a smaller tile" + (", or pack_gqa=False" if plan.packed else "")
        )
    return max(4, 1 << (plan.Br - 1).bit_length())


def fold_shared_nbytes(plan: Plan) -> int:
    """Dynamic shared memory of the tiled kernels, as `Chip` in fold.cuh carves it."""
    itemsize = plan.precision.storage.itemsize
    rows, D, Dv = compiled_rows(plan), padded(plan.D, itemsize), padded(plan.Dv, itemsize)
    tiles = max(plan.Bc * (D + Dv) * itemsize, rows * Dv * 4)
    scores = rows * (-(-plan.Bc // 4) * 4 + 4) * 4
    return rows * D * itemsize + tiles + scores + 5 * rows * 4 + 2 * THREADS * 4


def tensor_default_tile(D: int, Dv: int) -> tuple[int, int]:
    """(Br, Bc) on tensor cores: as many rows as a warp's registers hold the output of, 64 keys in two buffers.

    >>> tensor_default_tile(128, 128), tensor_default_tile(256, 256)
    ((128, 64), (64, 32))
    """
    return (128, 64) if max(D, Dv) <= 128 else (64, 32)


def tensor_rows(plan: Plan) -> int:
    """The rows a tensor-core kernel is compiled for: 16 or 32 for each of its four warps."""
    return 64 if plan.Br <= 64 else compiled_rows(plan)


def tensor_shared_nbytes(plan: Plan) -> int:
    """Dynamic shared memory of the tensor-core kernels, as `TensorChip` in tensor_fold.cuh carves it."""
    step = 64 if plan.Dv <= 64 else 32
    keys = -(-plan.Bc // step) * step
    D, Dv = ((size // 8 | 1) * 8 for size in (plan.D, plan.Dv))
    rows = tensor_rows(plan)
    return (rows * max(D, Dv) + 2 * keys * (D + Dv)) * 2 + 2 * rows * 4 + 2 * THREADS * 4


def fits_tensor_cores(plan: Plan, *, aligned: bool) -> bool:
    """Can the tensor-core kernels do it: 16-bit types, head sizes in multiples of 16 up to 256, 16-byte alignment?"""
    sizes = all(size % 16 == 0 and 16 <= size <= MOST_TENSOR_HEAD_DIM for size in (plan.D, plan.Dv))
    rows = plan.Br <= (MOST_ROWS if plan.Dv <= 128 else 64)
    return plan.precision.storage.itemsize == 2 and sizes and rows and aligned


def fitted(plan: Plan, need: Callable[[Plan], int], limit: int) -> Plan:
    """The plan with a tile small enough for a block's shared memory: halved, keys or rows, until `need` is within.

    Where nothing fits, the smallest tile; whoever launches it says what is missing.

    >>> plan = Plan.of([(128, 4096)], H=1, G=1, D=128, dtype="float16", tile=(128, 64))
    >>> [(p.Br, p.Bc) for p in (fitted(plan, tensor_shared_nbytes, kib * 1024) for kib in (227, 99, 64))]
    [(128, 64), (64, 64), (64, 32)]
    """
    while need(plan) > limit:
        fewer_keys, fewer_rows = plan.with_tile(plan.Br, plan.Bc // 2 or 1), plan.with_tile(plan.Br // 2, plan.Bc)
        smaller = [p for p in (fewer_keys, fewer_rows) if (p.Br, p.Bc) != (plan.Br, plan.Bc)]
        if not smaller:
            break
        plan = smaller[0] if 2 * plan.Bc > plan.Br else smaller[-1]
    return plan


def padded(size: int, itemsize: int) -> int:
    """A row's elements, up to whole chunks of 16 bytes."""
    chunk = 16 // itemsize
    return -(-size // chunk) * chunk


def check_shared(kernel: str, need: int, plan: Plan, limit: int) -> int:
    """`need`, where a block can have it. Raises SramOverflow with need and limit otherwise."""
    if need > limit:
        raise SramOverflow(
            f"kernel {kernel!r} needs {need:,} B of shared memory for its tile ({plan.Br}, {plan.Bc}) with head sizes "
            f"{plan.D} and {plan.Dv}, and a block has {limit:,} B. Use a smaller tile or a device with more"
        )
    return need
