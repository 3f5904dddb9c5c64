"""The counted build: the same kernels, compiled with -DCOUNTED, add up the bytes of their own loads and stores."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpu.ops.launch import Launch, Prepared
from gpu.runtime import Runtime
from refsim.machine import Key, Ledger, Work

# `enum Tensor` of traffic.cuh.
TENSORS = (
    *("q", "k", "v", "out", "lse", "cu_seqlens_q", "cu_seqlens_k", "seq_lens", "block_tables", "alibi_slopes", "sinks"),
    *("o_partial", "lse_partial", "m_partial", "l_partial", "s", "p", "slot_mapping", "block_mapping"),
    *("out_a", "lse_a", "out_b", "lse_b", "x", "positions", "inv_freq"),
)


def counted_ledger(prepared: Prepared[Any]) -> Ledger:
    """Run a call that was prepared with `counted=True`, and read what its kernels counted.

    >>> from gpu.ops import rope
    >>> x = np.ones((1, 1, 4), np.float32)
    >>> counted_ledger(rope.prepare(x, [1], [1.0, 0.01], runtime="emulator", counted=True)).total(tensor="x")
    16
    """
    nbytes: dict[Key, int] = {}
    work: dict[str, Work] = {}
    for launch in prepared.launches:
        if min(launch.grid) == 0:
            continue
        write_counters(prepared.runtime, launch, np.zeros(2 * len(TENSORS), np.uint64))
        launch.run()
        counts = read_counters(prepared.runtime, launch).reshape(len(TENSORS), 2)
        for tensor, both in zip(TENSORS, counts, strict=True):
            for direction, count in zip(("read", "write"), both, strict=True):
                key = Key(launch.kernel, tensor_name(launch, tensor, direction), "HBM", direction)  # type: ignore[arg-type]
                nbytes[key] = nbytes.get(key, 0) + int(count)
        work |= launch.ledger().work
    return Ledger(nbytes, work)


def tensor_name(launch: Launch, tensor: str, direction: str) -> str:
    """The ledger's name: k and v are caches where the kernel has no others, or on the cache's side of a copy."""
    if tensor not in ("k", "v") or f"{tensor}_cache" not in launch.tensors:
        return tensor
    cache_side = {"gather": "read", "append": "write"}.get(launch.kernel, direction)
    return f"{tensor}_cache" if direction == cache_side else tensor


def counters(runtime: Runtime, launch: Launch) -> Any:
    """The module's `traffic` variable, as the runtime shows it."""
    module: Any = launch.module
    variable = module.get_global("traffic")
    if runtime.name == "emulator":
        return variable.view(np.uint64)
    import cupy

    return cupy.ndarray(2 * len(TENSORS), np.uint64, variable)


def write_counters(runtime: Runtime, launch: Launch, values: np.ndarray) -> None:
    """Set the counters."""
    view = counters(runtime, launch)
    view[:] = values if runtime.name == "emulator" else runtime.asarray(values)


def read_counters(runtime: Runtime, launch: Launch) -> np.ndarray:
    """What the counters hold, on the host."""
    return np.array(runtime.to_numpy(counters(runtime, launch)))
