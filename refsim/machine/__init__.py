"""A machine that watches every byte: HBM, on-chip buffers with a hard limit, tiles, a ledger, steps."""

from refsim.machine.cores import side_by_side, threads
from refsim.machine.hbm import HBMArray, UncountedAccess
from refsim.machine.ledger import Key, Ledger, Work
from refsim.machine.machine import DEFAULT_SRAM_NBYTES, Kernel, Machine
from refsim.machine.programs import Programs, SramOverflow
from refsim.machine.steps import Algorithm, Step, Walk, Watch, algorithm
from refsim.machine.tile import Buffer, StaleTile, Tile

__all__ = [
    "DEFAULT_SRAM_NBYTES",
    "Algorithm",
    "Buffer",
    "HBMArray",
    "Kernel",
    "Key",
    "Ledger",
    "Machine",
    "Programs",
    "SramOverflow",
    "StaleTile",
    "Step",
    "Tile",
    "UncountedAccess",
    "Walk",
    "Watch",
    "Work",
    "algorithm",
    "side_by_side",
    "threads",
]
