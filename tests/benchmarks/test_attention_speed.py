"""The counted reference beside plain NumPy (and PyTorch where it is installed), and its extra memory.

Run with: pytest tests/benchmarks/test_attention_speed.py -n 0 -s
"""

from __future__ import annotations

import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

from refsim import attention
from refsim.machine import Machine
from tests.benchmarks.ratio import best_of_each, report


def plain(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Attention in plain NumPy on (n, H, D), in place where it can be."""
    q, k, v = (x.transpose(1, 0, 2) for x in (q, k, v))
    s = q @ k.swapaxes(1, 2)
    s *= np.float32(q.shape[-1] ** -0.5)
    s -= s.max(-1, keepdims=True)
    np.exp(s, out=s)
    l = s.sum(-1, keepdims=True)
    return (s @ v / l).transpose(1, 0, 2)


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize(("H", "n", "D"), [(16, 2048, 64), (8, 4096, 128)])
def test_counted_flash_beside_plain_numpy(H: int, n: int, D: int) -> None:
    q, k, v = normal(n, H, D), normal(n, H, D), normal(n, H, D)
    tiles = [(128, 128), (256, 256), (512, 512), (1024, 512)]
    runs = [lambda t=tile: attention.flash(q, k, v, tile=t, machine=Machine(sram_nbytes=None)) for tile in tiles]
    base, *seconds = best_of_each(5, lambda: plain(q, k, v), *runs)
    for tile, took in zip(tiles, seconds, strict=True):
        report(f"flash {tile}, {H} x {n} x {D}", took, "plain NumPy", base, "1.0 at the best tile, 1.2 at 128x128")


@pytest.mark.parametrize(("H", "n", "D"), [(16, 2048, 64), (8, 4096, 128)])
def test_counted_flash_beside_torch(H: int, n: int, D: int) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    q, k, v = normal(n, H, D), normal(n, H, D), normal(n, H, D)
    heads_first = [torch.from_numpy(x.transpose(1, 0, 2).copy())[None] for x in (q, k, v)]
    sdpa = torch.nn.functional.scaled_dot_product_attention
    base, took = best_of_each(
        5,
        lambda: sdpa(*heads_first),
        lambda: attention.flash(q, k, v, tile=(512, 512), machine=Machine(sram_nbytes=None)),
    )
    report(f"flash (512, 512), {H} x {n} x {D}", took, "torch SDPA on the CPU", base, "2.5")


def test_stage_b_decode_beside_a_contiguous_copy() -> None:
    T, G, H, D, B = 131072, 8, 32, 128, 16
    rng = np.random.default_rng(0)
    k, v, q = normal(T, G, D), normal(T, G, D), normal(1, H, D)
    table = rng.permutation(T // B).astype(np.int32)
    k_cache, v_cache = np.empty((T // B, B, G, D), np.float32), np.empty((T // B, B, G, D), np.float32)
    k_cache[table], v_cache[table] = k.reshape(k_cache.shape), v.reshape(v_cache.shape)

    def contiguous() -> np.ndarray:
        s = np.matmul(q.reshape(G, H // G, D), k.transpose(1, 2, 0)) * np.float32(D**-0.5)
        s -= s.max(-1, keepdims=True)
        np.exp(s, out=s)
        return np.matmul(s, v.transpose(1, 0, 2)) / s.sum(-1, keepdims=True)

    def paged(keys: int) -> np.ndarray:
        machine = Machine(sram_nbytes=None)
        return attention.paged(q, k_cache, v_cache, table[None], [T], tile=(128, keys), machine=machine).out

    np.testing.assert_allclose(paged(256).ravel(), contiguous().ravel(), atol=1e-5)
    tiles = (128, 256, 512, 1024, 2048)
    base, *seconds = best_of_each(5, contiguous, *(lambda c=keys: paged(c) for keys in tiles))
    for keys, took in zip(tiles, seconds, strict=True):
        report(f"paged decode, {T} tokens, tiles of {keys}", took, "NumPy on a contiguous copy", base, "1.3")


def test_extra_memory_of_flash() -> None:
    x = normal(32768, 1, 64)
    tracemalloc.start()
    attention.flash(x, x, x, tile=(512, 512), machine=Machine(sram_nbytes=None))  # a large tile needs the most
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    print(f"\nflash, 32768 tokens, one head: {peak / 2**20:.1f} MiB beyond its inputs (aim: under 64)")


def test_import_time() -> None:
    def seconds(statement: str) -> float:
        script = f"import numpy, time; start = time.perf_counter(); {statement}; print(time.perf_counter() - start)"
        runs = [subprocess.run([sys.executable, "-c", script], capture_output=True, text=True) for _ in range(5)]
        return min(float(run.stdout) for run in runs)

    print(f"\nimport refsim after numpy: {seconds('import refsim'):.3f} s (aim: under 0.15)")
