"""Kernels of common CUDA practice: right values, and counts that follow from their texts on paper."""

import numpy as np
import pytest

from gpu import emulator
from gpu.emulator import RawKernel, RawModule


@pytest.fixture
def rng():
    return np.random.default_rng(6)


def test_topk_of_a_warp(text, rng):
    rows, n, k = 3, 100, 5
    scores = rng.permutation(rows * n).reshape(rows, n).astype(np.float32)
    values, places = emulator.empty((rows, k)), emulator.empty((rows, k), np.int32)
    kernel = RawKernel(text("topk"), "topk")
    kernel(rows, 32, (scores, np.int32(n), np.int32(k), values, places))
    order = np.argsort(-scores, axis=1)[:, :k]
    np.testing.assert_array_equal(places, order)
    np.testing.assert_array_equal(values, np.take_along_axis(scores, order, 1))
    # Round r reads what the rounds before it have left.
    assert kernel.trace.nbytes("scores") == 4 * rows * sum(n - r for r in range(k))
    assert kernel.trace.tensors["values"].write.requests == rows * k


def test_bitonic_sort(text, rng):
    x = rng.integers(-1000, 1000, (2, 256), dtype=np.int32)
    expected = np.sort(x, axis=1)
    kernel = RawKernel(text("bitonic"), "bitonic")
    kernel(2, 256, (x,))
    np.testing.assert_array_equal(x, expected)
    # 1 + ... + 8 = 36 rounds, in each of which every element is read once. In 30 of them partners are in one warp: all
    # 8 warps read with half of their lanes, twice; in 6 they are in two, and 4 warps read with all. Banks never clash.
    read = kernel.trace.shared.read
    assert read.nbytes == 2 * 256 * 4 * (36 + 1)
    assert read.wavefronts == read.ideal_wavefronts == 2 * (30 * 8 * 2 + 6 * 4 * 2 + 8)
    # Each element is written at the start, and by every exchange.
    assert kernel.trace.shared.write.nbytes % 8 == 0
    assert kernel.trace.nbytes("data", "read") == kernel.trace.nbytes("data", "write") == x.nbytes


def test_layernorm_in_vectors(text, rng):
    rows, n = 3, 1024
    x = rng.standard_normal((rows, n)).astype(np.float32)
    gain, y = rng.random(n, dtype=np.float32), emulator.empty((rows, n))
    kernel = RawKernel(text("layernorm"), "layernorm")
    kernel(rows, 128, (x, gain, y, np.int32(n // 4), np.float32(1e-5)))
    wide = x.astype(np.float64)
    expected = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5) * gain
    np.testing.assert_allclose(y, expected, rtol=2e-5, atol=2e-5)
    read = kernel.trace.tensors["x"].read
    assert read.nbytes == 2 * x.nbytes  # two passes
    assert read.requests == 2 * x.size // 128  # 32 lanes of 4 floats
    assert (read.sectors, read.useful_share) == (2 * x.nbytes // 32, 1.0)
    assert kernel.trace.nbytes("gain") == rows * gain.nbytes
    # Four warps put three floats each; every warp reads all twelve, a broadcast each.
    assert kernel.trace.shared.write.nbytes == rows * 4 * 3 * 4
    assert kernel.trace.shared.read.wavefronts == rows * 4 * 12


def test_dot_of_dequantised_bytes(text, rng):
    rows, n = 8, 256
    w, scale = rng.integers(-127, 128, (rows, n), dtype=np.int8), rng.random(rows, dtype=np.float32)
    x, out = rng.random(n, dtype=np.float32), emulator.empty(rows)
    kernel = RawKernel(text("dequantise"), "dequantise_dot")
    kernel(2, (32, 4), (w, scale, x, out, np.int32(n // 4)))
    np.testing.assert_allclose(out, (w.astype(np.float64) @ x) * scale, rtol=1e-5, atol=1e-4)
    read = kernel.trace.tensors["w"].read
    assert (read.nbytes, read.sectors, read.requests) == (w.nbytes, w.nbytes // 32, w.nbytes // 128)
    assert kernel.trace.nbytes("x") == rows * x.nbytes


@pytest.mark.parametrize("workers", [1, 2])
def test_scan_with_look_back(text, rng, workers):
    """Blocks that wait for one another through flags: no false race, no hang, on any number of cores."""
    n = 500
    x, y = rng.integers(0, 9, n, dtype=np.int32), emulator.empty(n, np.int32)
    args = (x, y, emulator.empty(8, np.int32), np.zeros(8, np.int32), np.int32(n))
    emulator.run(RawKernel(text("look_back"), "scan"), 8, 64, args, workers=workers, timeout=60)
    np.testing.assert_array_equal(y, np.cumsum(x))


def test_arrays_carved_out_of_dynamic_memory(text, rng):
    rows, columns = 32, 48
    x = rng.integers(0, 50, (rows, columns)).astype(np.float32)
    y, sums = emulator.empty((columns, rows)), np.zeros(columns, np.float32)
    kernel = RawKernel(text("carved"), "transpose_and_sum")
    args = (x, y, sums, np.int32(rows), np.int32(columns))
    kernel((3, 2), (16, 16), args, shared_mem=(16 * 17 + 16) * 4)
    np.testing.assert_array_equal(y, x.T)
    np.testing.assert_array_equal(sums, x.sum(0))
    # A warp covers two rows of 17 words: word 0 and word 32 (of the second row) share bank 0, so a padded tile of 16
    # still takes 2 wavefronts a warp, read or written; the sums are 16 reads, a write and a read of half a warp.
    shared, blocks = kernel.trace.shared, 6
    assert shared.write.wavefronts == blocks * (8 * 2 + 1)
    assert shared.write.ideal_wavefronts == blocks * (8 + 1)
    assert shared.read.wavefronts == blocks * (8 * 2 + 16 + 1)
    assert shared.read.ideal_wavefronts == blocks * (8 + 16 + 1)
    assert kernel.trace.tensors["in"].read.sectors == kernel.trace.tensors["out"].write.sectors == x.size // 8
    with pytest.raises(emulator.KernelError, match=r"dynamic shared memory \(1088 bytes asked for\)"):
        kernel((3, 2), (16, 16), args, shared_mem=16 * 17 * 4)


def test_a_table_of_constants_and_a_counter(rng):
    code = r"""
__constant__ float table[16];
__device__ unsigned long long done;
extern "C" __global__ void decode(const unsigned char* packed, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned char b = packed[i];
    reinterpret_cast<float2*>(out)[i] = make_float2(table[b & 15], table[b >> 4]);
    atomicAdd(&done, 1ull);
}"""
    module = RawModule(code=code)
    table = np.linspace(-1, 1, 16, dtype=np.float32)
    module.get_global("table").view(np.float32)[:] = table
    packed, out = rng.integers(0, 256, 70, dtype=np.uint8), emulator.empty(140)
    module.get_function("decode")(2, 64, (packed, out, np.int32(70)))
    np.testing.assert_array_equal(out, table[np.stack([packed & 15, packed >> 4], 1).ravel()])
    assert module.get_global("done").view(np.uint64)[0] == 70


def test_the_largest_float_by_compare_and_swap(rng, find_line):
    """The usual loop, whose first look is a plain read beside others' atomics: that is a race, and told as one."""
    code = r"""
extern "C" __global__ void largest(const float* x, int n, float* out) {
    int* at = reinterpret_cast<int*>(out);
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        int old = LOOK, seen;
        do {
            seen = old;
            if (__int_as_float(seen) >= x[i]) break;
            old = atomicCAS(at, seen, __float_as_int(x[i]));
        } while (seen != old);
    }
}"""
    x = rng.random(1000, dtype=np.float32)
    for look, racy in (("atomicAdd(at, 0)", False), ("*at", True)):
        out, kernel = np.zeros(1, np.float32), RawKernel(code.replace("LOOK", look), "largest")
        kernel.checks["race"] = "report"
        kernel(4, 64, (x, np.int32(1000), out))
        assert out[0] == x.max()
        assert bool(kernel.reports) == racy
    assert kernel.reports[0].line == find_line(code, "LOOK")


@pytest.mark.parametrize(
    ("fence", "blocks", "racy"),
    [
        ("__threadfence()", 2, False),
        ("__threadfence_block()", 1, False),
        ("__threadfence_block()", 2, True),
        ("", 1, True),
    ],
)
def test_a_spin_lock_orders_what_its_fence_reaches(fence, blocks, racy):
    code = f"""
extern "C" __global__ void k(int* lock, int* count) {{
    while (atomicCAS(lock, 0, 1) != 0) {{ }}
    *count += 1;
    {fence};
    atomicExch(lock, 0);
}}"""
    count = np.zeros(1, np.int32)
    checks = {"race": "report"}
    outcome = emulator.run(code, blocks, 64, (np.zeros(1, np.int32), count), name="k", checks=checks, timeout=60)
    assert bool(outcome.reports) == racy
    assert count[0] == 64 * blocks
