"""Closed forms of the small kernels around attention: append, block copy, merging by LSE, RoPE.

Each gives exactly the ledger of the reference of the same name, on a fresh machine, from sizes alone.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from refsim.attention.merge import ROWS
from refsim.machine import Key, Ledger, Work
from refsim.numerics import carrier, dtype_of

INDEX_NBYTES, FLOAT64_NBYTES = 8, 8


class _Count:
    """Bytes of one kernel, under way."""

    def __init__(self, kernel: str) -> None:
        self.kernel = kernel
        self.nbytes: defaultdict[Key, int] = defaultdict(int)

    def hbm(self, tensor: str, *, read: int = 0, write: int = 0) -> None:
        self.nbytes[Key(self.kernel, tensor, "HBM", "read")] += read
        self.nbytes[Key(self.kernel, tensor, "HBM", "write")] += write

    def on_chip(self, buffer: str, *, read: int = 0, write: int = 0) -> None:
        self.nbytes[Key(self.kernel, buffer, "SRAM", "read")] += read
        self.nbytes[Key(self.kernel, buffer, "SRAM", "write")] += write

    def ledger(self, *, programs: int, sram_peak_nbytes: int, **work: int) -> Ledger:
        peak = sram_peak_nbytes if programs else 0  # a launch of no program holds nothing on chip
        return Ledger(self.nbytes, {self.kernel: Work(launches=1, programs=programs, sram_peak_nbytes=peak, **work)})


def append(slots: int, skipped: int, G: int, D: int, Dv: int, dtype: Any, *, new_dtype: Any = None) -> Ledger:
    """`kvcache.kernels.append` of `slots` slots, `skipped` of them -1, to a cache of `dtype`.

    new_dtype: the type of the new rows, where it isn't the cache's. Raises ValueError for more skipped than there are.

    >>> append(slots=10, skipped=2, G=2, D=64, Dv=64, dtype="float16").total(tensor="k_cache", direction="write")
    2048
    """
    if not 0 <= skipped <= slots:
        raise ValueError(f"skipped must be from 0 to the {slots} slots, got {skipped}")
    stored, new = dtype_of(dtype).itemsize, dtype_of(new_dtype or dtype).itemsize
    count, written = _Count("append"), slots - skipped
    count.hbm("slot_mapping", read=slots * INDEX_NBYTES)
    for name, size in (("k", G * D), ("v", G * Dv)):
        count.hbm(name, read=written * size * new)
        count.hbm(f"{name}_cache", write=written * size * stored)
        count.on_chip(name, read=written * size * stored, write=written * size * stored)
    # A program whose slot is -1 declares no buffer.
    return count.ledger(programs=slots, sram_peak_nbytes=G * (D + Dv) * stored if written else 0)


def copy_blocks(pairs: int, block_size: int, G: int, D: int, Dv: int, dtype: Any) -> Ledger:
    """`kvcache.kernels.copy_blocks` of `pairs` blocks: every program reads its pair of ids.

    >>> copy_blocks(pairs=1, block_size=16, G=8, D=128, Dv=128, dtype="float16").total(tensor="k_cache")
    65536
    """
    itemsize, programs = dtype_of(dtype).itemsize, pairs * block_size
    count = _Count("copy_blocks")
    count.hbm("block_mapping", read=programs * 2 * INDEX_NBYTES)
    for name, size in (("k_cache", G * D), ("v_cache", G * Dv)):
        nbytes = programs * size * itemsize
        count.hbm(name, read=nbytes, write=nbytes)
        count.on_chip(name, read=nbytes, write=nbytes)
    return count.ledger(programs=programs, sram_peak_nbytes=G * (D + Dv) * itemsize)


def merge(n: int, H: int, Dv: int, dtype: Any, *, lse_dtype: Any = "float32") -> Ledger:
    """`attention.merge.merge` of answers (n, H, Dv) of `dtype`.

    >>> merge(n=4, H=8, Dv=128, dtype="float16").total(direction="read") == 2 * 4 * 8 * (128 * 2 + 4)
    True
    """
    stored, lse, acc = dtype_of(dtype).itemsize, dtype_of(lse_dtype).itemsize, carrier(dtype).itemsize
    count, rows, elems = _Count("merge"), n * H, n * H * Dv
    for side in ("a", "b"):
        count.hbm(f"out_{side}", read=elems * stored)
        count.hbm(f"lse_{side}", read=rows * lse)
        count.on_chip(f"out_{side}", read=elems * stored, write=elems * stored)
        count.on_chip(f"lse_{side}", read=2 * rows * acc, write=rows * acc)
    count.hbm("out", write=elems * stored)
    count.hbm("lse", write=rows * lse)
    count.on_chip("out", read=3 * elems * acc, write=2 * elems * acc)
    count.on_chip("temporaries", read=(18 * rows + 2 * elems) * acc, write=(12 * rows + 2 * elems) * acc)
    # At the peak, beside the buffers: m, shift, both weights, their sum, a share, and two parts of the output.
    held = min(n, ROWS)
    peak = ROWS * (2 + Dv) * acc + 2 * ROWS * Dv * stored + held * max(6 + 2 * Dv, 7) * acc
    return count.ledger(
        programs=H * -(-n // ROWS),
        flops=9 * rows + 4 * elems,
        exponentials=3 * rows,
        sram_peak_nbytes=peak,
    )


def rope(tokens: int, heads: int, d: int, dtype: Any) -> Ledger:
    """`model.rope_kernel.rope` of x (tokens, heads, d) of `dtype`.

    >>> rope(tokens=10, heads=8, d=128, dtype="float16").total(tensor="inv_freq")  # 64 float64 a program
    5120
    """
    itemsize, pairs = dtype_of(dtype).itemsize, d // 2
    count, angles, turned = _Count("rope"), tokens * pairs, tokens * heads * pairs
    count.hbm("positions", read=tokens * INDEX_NBYTES)
    count.hbm("inv_freq", read=angles * FLOAT64_NBYTES)
    count.hbm("x", read=2 * turned * itemsize)
    count.hbm("out", write=2 * turned * itemsize)
    count.on_chip("inv_freq", read=angles * FLOAT64_NBYTES, write=angles * FLOAT64_NBYTES)
    for half in ("x 0", "x 1"):
        count.on_chip(half, read=2 * turned * itemsize, write=turned * itemsize)
    count.on_chip(
        "temporaries",
        read=(8 * angles + 6 * turned) * FLOAT64_NBYTES,
        write=(5 * angles + 6 * turned) * FLOAT64_NBYTES,
    )
    # At the peak: angle, cos and sin, the first half turned, and what the second is made of.
    peak = pairs * FLOAT64_NBYTES + 2 * heads * pairs * itemsize + (3 + 4 * heads) * pairs * FLOAT64_NBYTES
    return count.ledger(programs=tokens, flops=3 * angles + 6 * turned, exponentials=2 * angles, sram_peak_nbytes=peak)
