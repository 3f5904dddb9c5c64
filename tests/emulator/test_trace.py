"""Counts: by tensor, direction and line; the same whatever the workers; true to the addresses."""

import numpy as np
import pytest

from gpu import emulator
from gpu.emulator import RawKernel

LOADS = r"""
extern "C" __global__ void k(const float* x, float* y, const int* index) {
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    float a = x[index[t]];
    y[t] = a;
}
"""


def reads_of(index, shift=0):
    """Traffic of one warp that reads elements of x."""
    x = np.zeros(4096, np.float32)
    kernel = RawKernel(LOADS, "k")
    kernel(1, len(index), (x, np.zeros(len(index), np.float32), np.asarray(index, np.int32)))
    return kernel.trace.tensors["x"].read


@pytest.mark.parametrize(
    ("index", "sectors", "useful"),
    [
        (np.arange(32), 4, 128),
        (np.arange(32)[::-1], 4, 128),
        (np.zeros(32, int), 1, 4),
        (np.arange(32) // 2, 2, 64),
        (np.arange(32) + 4, 5, 128),  # half a sector late: five are touched
        (np.arange(32) * 8, 32, 128),
        (np.arange(32) * 100, 32, 128),
        (np.array([0, 7, 8, 1000]), 3, 16),
    ],
)
def test_sectors_of_a_warp_access(index, sectors, useful):
    """A sector is 32 bytes, 8 floats; the count follows from the addresses alone."""
    read = reads_of(index)
    assert (read.sectors, read.useful_nbytes) == (sectors, useful)
    assert read.sectors == len({int(i) * 4 // 32 for i in index})
    assert read.nbytes == 4 * len(index)
    assert read.unique_nbytes == 4 * len(set(index.tolist()))
    assert read.useful_share == useful / (32 * sectors)


def test_an_access_across_a_sector_touches_two():
    code = r"""
extern "C" __global__ void k(const char* x, float2* y, int stride) {
    y[threadIdx.x] = *(const float2*)(x + 28 + stride * threadIdx.x);
}"""
    kernel = RawKernel(code, "k", checks={"misaligned": "ignore"})
    kernel(1, 4, (np.zeros(256, np.int8), np.zeros(8, np.float32), np.int32(64)))
    assert kernel.trace.tensors["x"].read.sectors == 8
    assert kernel.trace.tensors["x"].read.useful_nbytes == 4 * 8
    kernel(
        1, 4, (np.zeros(256, np.int8), np.zeros(8, np.float32), np.int32(4))
    )  # bytes 28 to 47, each half wanted twice
    assert kernel.trace.tensors["x"].read.useful_nbytes == 20


@pytest.mark.parametrize("seed", range(5))
def test_random_gathers_against_a_set(seed):
    index = np.random.default_rng(seed).integers(0, 4096, 96)
    read = reads_of(index)
    assert read.sectors == sum(len({int(i) // 8 for i in index[w : w + 32]}) for w in (0, 32, 64))
    assert read.unique_nbytes == 4 * len(set(index.tolist()))
    assert read.requests == 3


SHARED = r"""
extern "C" __global__ void k(float* y, int stride) {
    __shared__ float s[33 * 32];
    for (int i = threadIdx.x; i < 33 * 32; i += 32) s[i] = i;
    __syncthreads();
    y[threadIdx.x] = s[threadIdx.x * stride];
}
"""


@pytest.mark.parametrize(
    ("stride", "wavefronts"), [(0, 1), (1, 1), (2, 2), (4, 4), (8, 8), (16, 16), (31, 1), (32, 32), (33, 1)]
)
def test_bank_conflicts(stride, wavefronts):
    """Stride s visits 32 / gcd(s, 32) banks; the same word for all lanes is one broadcast."""
    y = np.zeros(32, np.float32)
    kernel = RawKernel(SHARED, "k")
    kernel(1, 32, (y, np.int32(stride)))
    assert kernel.trace.shared.read.wavefronts == wavefronts
    assert kernel.trace.shared.read.ideal_wavefronts == 1
    assert kernel.trace.shared.write.wavefronts == 33


@pytest.mark.parametrize(("kind", "size", "phases"), [("float2", 8, 2), ("float4", 16, 4)])
def test_wide_shared_accesses_take_phases(kind, size, phases):
    code = f"""
extern "C" __global__ void k(const {kind}* x, {kind}* y) {{
    __shared__ {kind} s[32];
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = s[31 - threadIdx.x];
}}"""
    x = np.random.default_rng(0).random((32, size // 4), dtype=np.float32)
    y = np.zeros_like(x)
    kernel = RawKernel(code, "k")
    kernel(1, 32, (x, y))
    np.testing.assert_array_equal(y, x[::-1])
    assert kernel.trace.shared.read.wavefronts == kernel.trace.shared.read.ideal_wavefronts == phases
    # each thread's vector is one access, not its members one by one
    assert kernel.trace.tensors["x"].read.accesses == kernel.trace.tensors["y"].write.accesses == 32
    assert kernel.trace.tensors["x"].read.sectors == size


def test_a_vector_is_loaded_whole_whatever_is_used_of_it():
    code = r"""
extern "C" __global__ void k(const float4* x, float* y, const uint2* z) {
    float4 v = x[threadIdx.x];
    uint2 w = z[threadIdx.x];
    y[threadIdx.x] = v.x + v.y * v.z - v.w + w.y;
}"""
    kernel = RawKernel(code, "k")
    kernel(1, 32, (np.ones((32, 4), np.float32), np.zeros(32, np.float32), np.zeros((32, 2), np.uint32)))
    x, z = kernel.trace.tensors["x"].read, kernel.trace.tensors["z"].read
    assert (x.requests, x.accesses, x.nbytes, x.sectors) == (1, 32, 512, 16)
    assert (z.requests, z.accesses, z.nbytes, z.sectors) == (1, 32, 256, 8)


BUSY = r"""
extern "C" __global__ void k(const float* x, float* y, int n) {
    __shared__ float s[128];
    float total = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        if (i % 3 == 0) total += x[(i * 7 + blockIdx.x) % n];
        else if (i % 5 == 0) total -= x[i];
    }
    s[threadIdx.x] = total;
    __syncthreads();
    for (int o = 64; o > 0; o /= 2) {
        if (threadIdx.x < o) s[threadIdx.x] += s[threadIdx.x + o];
        __syncthreads();
    }
    if (threadIdx.x == 0) y[blockIdx.x] = s[0];
}
"""


def test_counts_do_not_depend_on_workers_or_chance():
    x = np.random.default_rng(1).random(5000, dtype=np.float32)
    kernel = RawKernel(BUSY, "k")
    seen = []
    for workers in (1, 2, 3, 1, 2):
        y = np.zeros(24, np.float32)
        trace = emulator.run(kernel, 24, 128, (x, y, np.int32(5000)), workers=workers).trace
        seen.append((trace.tensors, trace.shared, trace.rows, y.tobytes()))
    assert all(s == seen[0] for s in seen[1:])
    i = np.arange(5000)
    expected = sum(int(((i % 3 == 0) | ((i % 3 != 0) & (i % 5 == 0))).sum()) for _ in range(24))
    assert seen[0][0]["x"].read.nbytes == 4 * expected


def test_rows_are_the_lines_of_the_text(find_line):
    x, y = np.ones(256, np.float32), np.zeros(1, np.float32)
    kernel = RawKernel(BUSY, "k")
    kernel(1, 128, (x, y, np.int32(256)))
    rows = kernel.trace.rows
    assert {r.text for r in rows if r.tensor == "y"} == {"if (threadIdx.x == 0) y[blockIdx.x] = s[0];"}
    by_line = kernel.trace.by_line("shared")
    tree = find_line(BUSY, "s[threadIdx.x + o]")
    # 127 additions: two reads and a write each
    assert by_line[tree].nbytes == 127 * 3 * 4
    assert sum(r.traffic.nbytes for r in rows if r.tensor == "x") == kernel.trace.nbytes("x")
    assert str(kernel.trace).count("\n") == 5
    assert "<table>" in kernel.trace._repr_html_()
    with pytest.raises(KeyError, match="no tensor 'z'; this launch had x, y"):
        kernel.trace.nbytes("z")


def test_accesses_inside_a_device_function_count_at_its_own_line(find_line):
    code = r"""
__device__ float load(const float* p) {
    return *p;  // INNER
}
extern "C" __global__ void k(const float* x, float* y) {
    y[threadIdx.x] = load(x + threadIdx.x) + __ldg(x + 31 - threadIdx.x);  // OUTER
}"""
    kernel = RawKernel(code, "k")
    kernel(1, 32, (np.ones(32, np.float32), np.zeros(32, np.float32)))
    lines = {r.line: r.traffic.nbytes for r in kernel.trace.rows if r.tensor == "x"}
    assert lines == {find_line(code, "INNER"): 128, find_line(code, "OUTER"): 128}


def test_long_loops_without_a_barrier_pair_their_lanes():
    """Longer than the log: lanes are brought together again and again, and still make whole warp accesses."""
    code = r"""
extern "C" __global__ void k(const float* x, float* y, int n) {
    float sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += x[i];
    y[threadIdx.x] = sum;
}"""
    n = 64 * 1500 + 5
    kernel = RawKernel(code, "k")
    kernel(1, 64, (np.ones(n, np.float32), np.zeros(64, np.float32), np.int32(n)))
    read = kernel.trace.tensors["x"].read
    assert read.requests == 2 * 1500 + 1
    assert read.sectors == 64 * 1500 // 8 + 1
