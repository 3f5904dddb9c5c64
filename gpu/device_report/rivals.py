"""What a user would pick instead, where it is installed: PyTorch's SDPA, flash-attn, FlashInfer. None is required.

Each function returns something to call and time, or raises Missing with the reason that the report prints.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gpu.device_report.workloads import Sizes


class Missing(RuntimeError):
    """It can't be compared with, and why."""


def _module(name: str, package: str) -> Any:
    try:
        return importlib.import_module(name)
    except Exception as error:  # a package built for another CUDA fails in ways of its own
        raise Missing(f"{package}: {type(error).__name__} at import ({str(error).splitlines()[0]})") from None


def _torch() -> Any:
    torch = _module("torch", "PyTorch is not usable")
    if not torch.cuda.is_available():
        raise Missing("PyTorch is here, but sees no GPU")
    return torch


def sdpa(s: Sizes, *, causal: bool) -> Callable[[], Any]:
    """PyTorch's scaled_dot_product_attention on a prompt, with grouped heads."""
    torch = _torch()
    q = torch.randn(1, s.H, s.prompt, s.D, device="cuda", dtype=torch.bfloat16)
    k, v = (torch.randn(1, s.G, s.prompt, s.D, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    attend = torch.nn.functional.scaled_dot_product_attention
    return lambda: attend(q, k, v, is_causal=causal, enable_gqa=True)


def flash_attn_prefill(s: Sizes, *, causal: bool) -> Callable[[], Any]:
    """flash-attn on a prompt."""
    torch, package = _torch(), _module("flash_attn", "flash-attn is not usable")
    q = torch.randn(1, s.prompt, s.H, s.D, device="cuda", dtype=torch.bfloat16)
    k, v = (torch.randn(1, s.prompt, s.G, s.D, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return lambda: package.flash_attn_func(q, k, v, causal=causal)


def sdpa_decode(s: Sizes) -> Callable[[], Any]:
    """PyTorch's scaled_dot_product_attention for one token a sequence, over keys that lie together."""
    torch = _torch()
    q = torch.randn(s.sequences, s.H, 1, s.D, device="cuda", dtype=torch.bfloat16)
    k, v = (torch.randn(s.sequences, s.G, s.keys, s.D, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    attend = torch.nn.functional.scaled_dot_product_attention
    return lambda: attend(q, k, v, enable_gqa=True)


def flash_attn_decode(s: Sizes) -> Callable[[], Any]:
    """flash-attn for one token a sequence, over keys that lie together."""
    torch, package = _torch(), _module("flash_attn", "flash-attn is not usable")
    q = torch.randn(s.sequences, 1, s.H, s.D, device="cuda", dtype=torch.bfloat16)
    k, v = (torch.randn(s.sequences, s.keys, s.G, s.D, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return lambda: package.flash_attn_with_kvcache(q, k, v)


def flashinfer_decode(s: Sizes) -> Callable[[], Any]:
    """FlashInfer's batched decode over a paged cache."""
    torch, package = _torch(), _module("flashinfer", "FlashInfer is not usable")
    per_sequence = -(-s.keys // s.block_size)
    blocks = s.sequences * per_sequence
    cache = torch.randn(blocks, 2, s.block_size, s.G, s.D, device="cuda", dtype=torch.bfloat16)
    q = torch.randn(s.sequences, s.H, s.D, device="cuda", dtype=torch.bfloat16)
    wrapper = package.BatchDecodeWithPagedKVCacheWrapper(torch.empty(1 << 28, dtype=torch.uint8, device="cuda"), "NHD")
    indptr = torch.arange(s.sequences + 1, dtype=torch.int32, device="cuda") * per_sequence
    last = torch.full((s.sequences,), (s.keys - 1) % s.block_size + 1, dtype=torch.int32, device="cuda")
    indices = torch.randperm(blocks, device="cuda").to(torch.int32)
    wrapper.plan(indptr, indices, last, s.H, s.G, s.D, s.block_size, q_data_type=q.dtype, kv_data_type=cache.dtype)
    return lambda: wrapper.run(q, cache)


def one_long(s: Sizes) -> Sizes:
    """The same heads, for one sequence of many keys."""
    return replace(s, sequences=1, keys=s.long_keys)


RIVALS: dict[str, dict[str, Callable[[Sizes], Callable[[], Any]]]] = {
    "prefill": {
        "torch SDPA": lambda s: sdpa(s, causal=False),
        "flash-attn": lambda s: flash_attn_prefill(s, causal=False),
    },
    "causal prefill": {
        "torch SDPA": lambda s: sdpa(s, causal=True),
        "flash-attn": lambda s: flash_attn_prefill(s, causal=True),
    },
    "decode": {
        "FlashInfer": flashinfer_decode,
        "torch SDPA, contiguous": sdpa_decode,
        "flash-attn, contiguous": flash_attn_decode,
    },
    "long decode": {
        "FlashInfer": lambda s: flashinfer_decode(one_long(s)),
        "torch SDPA, contiguous": lambda s: sdpa_decode(one_long(s)),
        "flash-attn, contiguous": lambda s: flash_attn_decode(one_long(s)),
    },
}


def torch_seconds(run: Callable[[], Any], repeats: int = 20) -> list[float]:
    """Times by PyTorch's own events, on PyTorch's stream."""
    torch = _torch()
    for _ in range(3):
        run()
    pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    for begin, end in pairs:
        begin.record()
        run()
        end.record()
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) / 1000 for begin, end in pairs]
