"""What all attention calls share: arrays to the runtime, outputs, and the tensors that go with heads and lengths."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpu import runtime as runtimes
from gpu.ops import tiles
from gpu.ops.arrays import address, aligned, is_cupy, is_torch, like, to_runtime
from gpu.ops.launch import Launch, null
from gpu.ops.modules import check_types, macros, module
from gpu.runtime import Runtime
from refsim.attention import Plan, Result
from refsim.attention.inputs import Metadata
from refsim.checks import one_of
from refsim.machine import Ledger, Machine
from refsim.machine.machine import machine_of

FORMS = ("auto", "scalar", "mma")
TENSOR_CORES_NEED = (
    "form 'mma' needs float16 or bfloat16, head sizes in multiples of 16 up to 256, rows that begin at 16-byte "
    "boundaries and tiles of at most 128 rows (64 for values wider than 128)"
)


def choose(runtime: str | Runtime, *arrays: Any) -> Runtime:
    """The runtime by name; "auto" is CuPy where there is a GPU, unless an array lies on the host of PyTorch."""
    if not isinstance(runtime, str):
        if not hasattr(runtime, "module"):
            raise TypeError(f"runtime must be 'auto', 'cupy', 'emulator' or a Runtime, got {runtime!r}")
        return runtime
    if runtime == "emulator" and any(is_cupy(x) or (is_torch(x) and x.is_cuda) for x in arrays):
        raise ValueError("the emulator runs on the CPU and an array lies on a GPU; copy it to the host first")
    return runtimes.get(runtime)


@dataclass
class Tensors:
    """The tensors of a call where its kernels reach them: inputs by name, None where absent, and new outputs."""

    runtime: Runtime
    plan: Plan
    q: Any
    k: Any
    v: Any
    ints: dict[str, Any]
    alibi_slopes: Any
    sinks: Any
    out: Any
    lse: Any
    given: Any  # the caller's q, whose kind the answer has

    @classmethod
    def of(cls, runtime: Runtime, plan: Plan, given: Any, q: Any, k: Any, v: Any, ints: Metadata) -> Tensors:
        """q, k and v have the runtime's kind already; everything else is put where they are."""
        check_types(plan, q=q, k=k, v=v)
        if runtime.name == "emulator":  # bytes are told apart by address: one array in two roles needs a copy
            k = k.copy() if address(k) == address(q) else k
            v = v.copy() if address(v) in (address(q), address(k)) else v

        def put(array: Any) -> Any:
            return None if array is None else runtime.asarray(array)

        def per_head(values: Any) -> Any:
            return None if values is None else runtime.asarray(values.astype(np.float32))

        return cls(
            runtime,
            plan,
            q,
            k,
            v,
            {name: put(array) for name, array in vars(ints).items()},
            per_head(plan.variant.alibi_slopes),
            per_head(plan.variant.sinks),
            runtime.empty((plan.tokens, plan.H, plan.Dv), plan.precision.storage),
            runtime.empty((plan.H, plan.tokens), np.float32),
            given,
        )

    def options(self, *, rows: int, counted: bool = False) -> tuple[str, ...]:
        """Compiler options for this call's types, sizes and alignment."""
        plan = self.plan
        return macros(
            plan.precision.storage,
            aligned=aligned(self.q, self.k, self.v),
            counted=counted,
            HEAD_DIM=plan.D,
            V_HEAD_DIM=plan.Dv,
            ROWS=rows,
        )

    def launch(
        self,
        file: str,
        kernel: str,
        grid: tuple[int, int, int],
        call: Any,
        args: dict[str, Any],
        *,
        limit: int,
        counted: bool = False,
        shared: int | None = None,
        function: str = "",
        tensor_cores: bool = False,
    ) -> Launch:
        """A launch of a kernel; `args` are its arguments after the call, by name. By default it folds key tiles."""
        rows = tiles.tensor_rows(self.plan) if tensor_cores else tiles.compiled_rows(self.plan)
        if shared is None:
            shared = (tiles.tensor_shared_nbytes if tensor_cores else tiles.fold_shared_nbytes)(self.plan)
        tiles.check_shared(kernel, shared, self.plan, limit)
        compiled = module(self.runtime, file, self.options(rows=rows, counted=counted))
        return Launch(kernel, compiled, grid, (call, *map(null, args.values())), tuple(args), shared, function)

    def named(self, *names: str) -> dict[str, Any]:
        """Tensors by the names that they have as arguments."""
        paged = self.plan.block_size is not None
        found = {
            "q": self.q,
            "k_cache" if paged else "k": self.k,
            "v_cache" if paged else "v": self.v,
            "out": self.out,
            "lse": self.lse,
            "alibi_slopes": self.alibi_slopes,
            "sinks": self.sinks,
            **self.ints,
        }
        return {name: found[name] for name in names}

    def answer(self, ledger: Ledger) -> Result:
        """out and lse in the kind of the caller's arrays."""
        return Result(like(self.given, self.out, self.runtime), like(self.given, self.lse, self.runtime), ledger)


def choose_tile(
    form: str,
    tile: Any,
    plan_for: Callable[[Any], tuple[Plan, Metadata]],
    q: Any,
    k: Any,
    v: Any,
    *,
    limit: int,
    rows: int = 128,
) -> tuple[Plan, Metadata, bool]:
    """A call's plan, checked, and whether tensor cores run it.

    form: "scalar", "mma", or "auto" for tensor cores where they can and a program has rows enough for them.
    tile: None for the default, made smaller where a block has too little shared memory (`limit`, bytes).
    rows: the most that a program on tensor cores has by default.

    Raises ValueError for another form, and for "mma" where the tensor-core kernels can't do the call.
    """
    one_of("form", form, FORMS)
    D, Dv = (x.shape[-1] if x.ndim else 1 for x in (k, v))
    if form != "scalar" and q.dtype.itemsize == 2:
        Br, Bc = tiles.tensor_default_tile(D, Dv)
        plan, ints = plan_for(tile or (min(Br, rows), Bc))
        if tiles.fits_tensor_cores(plan, aligned=aligned(q, k, v)):
            plan = plan if tile else tiles.fitted(plan, tiles.tensor_shared_nbytes, limit)
            if form == "mma" or plan.Br >= tiles.FEWEST_TENSOR_ROWS:
                return plan, ints, True
        elif form == "mma":
            raise ValueError(TENSOR_CORES_NEED + f"; got {q.dtype}, head sizes {D} and {Dv}, a tile of {plan.Br} rows")
    elif form == "mma":
        raise ValueError(f"{TENSOR_CORES_NEED}; got {q.dtype}")
    plan, ints = plan_for(tile or tiles.default_tile(D, Dv, q.dtype.itemsize))
    return plan if tile else tiles.fitted(plan, tiles.fold_shared_nbytes, limit), ints, False


def shared_limit(runtime: Runtime, machine: Machine | None) -> int:
    """Bytes of shared memory that a block may have: the device's, or less where the caller's machine has less."""
    machine_of(machine)  # or it is refused
    most = int(getattr(runtime, "shared_nbytes", tiles.DEVICE_SHARED_NBYTES)) - tiles.STATIC_NBYTES
    return most if machine is None or machine.sram_nbytes is None else min(most, machine.sram_nbytes)


def inputs(runtime: Runtime, **arrays: Any) -> tuple[Any, ...]:
    """Arrays by name, where the runtime's kernels can reach them."""
    return tuple(to_runtime(name, array, runtime) for name, array in arrays.items())
