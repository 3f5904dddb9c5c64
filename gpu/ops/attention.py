"""What all attention calls share: arrays to the runtime, outputs, and the tensors that go with heads and lengths."""

from __future__ import annotations

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
from refsim.machine import Ledger, Machine


def choose(runtime: str | Runtime, *arrays: Any) -> Runtime:
    """The runtime by name; "auto" is CuPy where there is a GPU, unless an array lies on the host of PyTorch."""
    if not isinstance(runtime, str):
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
        limit: int | None = None,
        counted: bool = False,
        shared: int | None = None,
        function: str = "",
    ) -> Launch:
        """A launch of a kernel; `args` are its arguments after the call, by name. By default it folds key tiles."""
        rows = tiles.compiled_rows(self.plan)
        if shared is None:
            shared = tiles.fold_shared_nbytes(self.plan)
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


def sram_limit(machine: Machine | None) -> int | None:
    """On-chip bytes that the caller allows a program; None leaves it to the device."""
    return None if machine is None else machine.sram_nbytes


def inputs(runtime: Runtime, **arrays: Any) -> tuple[Any, ...]:
    """Arrays by name, where the runtime's kernels can reach them."""
    return tuple(to_runtime(name, array, runtime) for name, array in arrays.items())
