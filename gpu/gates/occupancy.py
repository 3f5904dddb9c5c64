"""How many blocks share a multiprocessor, and whether what they have in flight keeps the memory busy."""

from __future__ import annotations

from dataclasses import dataclass

from gpu.ops.tiles import THREADS

REGISTERS, RESERVED_SHARED_NBYTES = 65_536, 1024
# Shared memory and threads of a multiprocessor, and shared memory of a block, from the tables of compute capabilities
# in NVIDIA's "CUDA C++ Programming Guide".
LIMITS = {
    "sm_75": (64 * 1024, 1024, 64 * 1024),
    "sm_80": (164 * 1024, 2048, 163 * 1024),
    "sm_90": (228 * 1024, 2048, 227 * 1024),
    "sm_100": (228 * 1024, 2048, 227 * 1024),
    "sm_120": (100 * 1024, 1536, 99 * 1024),
}


@dataclass(frozen=True)
class Occupancy:
    """Blocks and threads that a multiprocessor holds at once, and what sets the limit."""

    blocks: int
    limited_by: str
    most_threads: int

    @property
    def share(self) -> float:
        """Of the threads that a multiprocessor can hold, how many it does."""
        return self.blocks * THREADS / self.most_threads


def occupancy(architecture: str, registers: int, shared_nbytes: int) -> Occupancy:
    """Blocks of 128 threads that fit, by registers (in steps of 8 a thread), shared memory and threads.

    >>> occupancy("sm_90", 168, 36_000)
    Occupancy(blocks=3, limited_by='registers', most_threads=2048)
    """
    shared, threads, _ = LIMITS[architecture]
    # Blocks of sm_75 share what they have; later ones pay a KiB each to the driver.
    reserved = 0 if architecture == "sm_75" else RESERVED_SHARED_NBYTES
    fits = {
        "registers": REGISTERS // (-(-max(registers, 1) // 8) * 8 * THREADS),
        "shared memory": shared // max(shared_nbytes + reserved, 1),
        "threads": threads // THREADS,
    }
    limit = min(fits, key=lambda name: fits[name])
    return Occupancy(fits[limit], limit, threads)


def needed_nbytes(bandwidth: float, latency: float, multiprocessors: int) -> float:
    """Bytes that a multiprocessor must have in flight to keep memory busy: Little's law, bandwidth times latency.

    bandwidth: bytes a second.  latency: seconds of a load from HBM.

    >>> round(needed_nbytes(4.8e12, 700e-9, 132))
    25455
    """
    return bandwidth * latency / multiprocessors


def in_flight_nbytes(blocks: int, key_tile: int, head_dim: int, itemsize: int) -> int:
    """Bytes of K or V on their way to a multiprocessor: each block always has one tile of either under way.

    >>> in_flight_nbytes(3, 64, 128, 2)
    49152
    """
    return blocks * key_tile * head_dim * itemsize
