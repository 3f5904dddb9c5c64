"""Every kernel through NVRTC: that it compiles for each architecture, and what it takes of a multiprocessor."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from gpu import nvrtc
from gpu.gates.occupancy import LIMITS, Occupancy, occupancy
from gpu.ops.modules import KERNELS, macros
from gpu.ops.tiles import (
    STATIC_NBYTES,
    compiled_rows,
    default_tile,
    fitted,
    fold_shared_nbytes,
    tensor_default_tile,
    tensor_rows,
    tensor_shared_nbytes,
)
from refsim.attention import Plan
from refsim.numerics import dtype_of

ARCHITECTURES = ("sm_75", "sm_80", "sm_90", "sm_100", "sm_120")
DTYPES = ("float32", "float16", "bfloat16")
HEAD_DIM = 128
# Kernels by file, and the query rows of a call that shows each at its default tile: a prefill chunk, or one token of 4
# packed heads.
FOLDS = {"flash": 64, "paged": 4, "split_kv": 4, "split_kv_paged": 4, "standard": 64}
TENSOR_CORES = {"flash_mma": 128, "paged_mma": 64}
SMALL = ("gather", "reduce", "append", "copy_blocks", "merge", "rope")


@dataclass(frozen=True)
class Job:
    """One file to compile for one type and architecture, at its default tile."""

    file: str
    dtype: str
    architecture: str


@dataclass(frozen=True)
class GateRow:
    """What one kernel takes, compiled for one architecture; or why it doesn't compile."""

    kernel: str
    dtype: str
    architecture: str
    rows: int
    registers: int = 0
    spill_nbytes: int = 0
    static_shared_nbytes: int = 0
    dynamic_shared_nbytes: int = 0
    occupancy: Occupancy | None = None
    error: str | None = None

    @property
    def ok(self) -> bool:
        """Compiled, and nothing spilled."""
        return self.error is None and self.spill_nbytes == 0


def jobs(architectures: Iterable[str] = ARCHITECTURES, dtypes: Iterable[str] = DTYPES) -> list[Job]:
    """Every file for every type and architecture where it applies: tensor cores of sm_75 know no bfloat16.

    >>> len(jobs(["sm_90"], ["float32"])), len(jobs(["sm_90"], ["bfloat16"]))
    (11, 13)
    """
    found = []
    for architecture in architectures:
        for dtype in dtypes:
            files = [*FOLDS, *SMALL]
            if dtype == "float16" or (dtype == "bfloat16" and architecture != "sm_75"):
                files += TENSOR_CORES
            found += [Job(file, dtype, architecture) for file in files]
    return found


def example(file: str, dtype: str, architecture: str = "sm_90") -> tuple[int, int]:
    """(rows compiled for, dynamic shared memory) of a file at the tile that gpu.ops takes on that architecture."""
    itemsize, limit = dtype_of(dtype).itemsize, LIMITS[architecture][2] - STATIC_NBYTES
    if file in TENSOR_CORES:
        tile = (TENSOR_CORES[file], tensor_default_tile(HEAD_DIM, HEAD_DIM)[1])
        plan = fitted(_plan(dtype, tile), tensor_shared_nbytes, limit)
        return tensor_rows(plan), tensor_shared_nbytes(plan)
    if file in FOLDS:
        plan = fitted(
            _plan(dtype, (FOLDS[file], default_tile(HEAD_DIM, HEAD_DIM, itemsize)[1])), fold_shared_nbytes, limit
        )
        return compiled_rows(plan), fold_shared_nbytes(plan)
    return 16, 0


def _plan(dtype: str, tile: tuple[int, int]) -> Plan:
    return Plan.of([(tile[0], 8192)], H=1, G=1, D=HEAD_DIM, dtype=dtype, tile=tile)


def compile_job(job: Job) -> list[GateRow]:
    """Compile one file and read the compiler's figures, a row a kernel."""
    rows, shared = example(job.file, job.dtype, job.architecture)
    flags = macros(job.dtype, aligned=True, HEAD_DIM=HEAD_DIM, V_HEAD_DIM=HEAD_DIM, ROWS=rows)
    options = ("--std=c++17", f"-I{KERNELS}", *flags)
    text = (KERNELS / f"{job.file}.cu").read_text()
    try:
        compiled = nvrtc.compile_text(text, job.architecture, options)
    except nvrtc.NvrtcError as error:
        return [GateRow(job.file, job.dtype, job.architecture, rows, error=str(error))]
    found = []
    for kernel, usage in compiled.usage.items():
        dynamic = 0 if kernel == "softmax" else shared  # its own depends on the length of a row
        found.append(
            GateRow(
                kernel,
                job.dtype,
                job.architecture,
                rows,
                registers=usage.registers,
                spill_nbytes=usage.spill_store_nbytes + usage.spill_load_nbytes,
                static_shared_nbytes=usage.shared_nbytes,
                dynamic_shared_nbytes=dynamic,
                occupancy=occupancy(job.architecture, usage.registers, usage.shared_nbytes + dynamic),
            )
        )
    return found


def gate(wanted: Iterable[Job], *, workers: int = 2) -> list[GateRow]:
    """Compile all, several at a time."""
    with ThreadPoolExecutor(workers) as pool:
        return [row for found in pool.map(compile_job, wanted) for row in found]
