"""How fast the emulator is. Not collected by default: `pytest tests/benchmarks/test_emulator.py -n 0 -s`.

Figures are of processor time, the best of several, so that a busy machine does not change them much.
"""

import importlib.util
import os
import resource
import time

import numpy as np
import pytest

from gpu import emulator
from gpu.emulator import RawKernel, RawModule

SWITCHES = r"""
extern "C" __global__ void barriers(int n, float* y) {
    for (int i = 0; i < n; i++) __syncthreads();
    y[threadIdx.x] = n;
}
extern "C" __global__ void shuffles(int n, float* y) {
    float x = threadIdx.x;
    for (int i = 0; i < n; i++) x += __shfl_xor_sync(0xffffffff, x, 1);
    y[threadIdx.x] = x;
}
"""

# One block a head, four warps that take every fourth token, two elements of the head a lane; merged at the end.
PAGED = r"""
extern "C" __global__ void paged(const float* q, const float* k, const float* v, const int* table, int tokens,
                                 int block_size, int kv_heads, float scale, float* out) {
    const int D = 64;
    __shared__ float ms[4], ls[4], os[4][D];
    int head = blockIdx.x, kv = head / (gridDim.x / kv_heads), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float q0 = q[head * D + lane], q1 = q[head * D + lane + 32];
    float m = -3.0e38f, l = 0, o0 = 0, o1 = 0;
    for (int t = warp; t < tokens; t += 4) {
        long long at = (((long long)table[t / block_size] * block_size + t % block_size) * kv_heads + kv) * D + lane;
        float s = q0 * k[at] + q1 * k[at + 32];
        for (int off = 16; off > 0; off /= 2) s += __shfl_xor_sync(0xffffffff, s, off);
        s *= scale;
        float top = fmaxf(m, s), old = __expf(m - top), p = __expf(s - top);
        o0 = o0 * old + p * v[at];
        o1 = o1 * old + p * v[at + 32];
        l = l * old + p;
        m = top;
    }
    if (lane == 0) ms[warp] = m, ls[warp] = l;
    os[warp][lane] = o0;
    os[warp][lane + 32] = o1;
    __syncthreads();
    if (threadIdx.x < D) {
        float top = fmaxf(fmaxf(ms[0], ms[1]), fmaxf(ms[2], ms[3])), sum = 0, o = 0;
        for (int w = 0; w < 4; w++) {
            float weight = __expf(ms[w] - top);
            sum += weight * ls[w];
            o += weight * os[w][threadIdx.x];
        }
        out[head * D + threadIdx.x] = o / sum;
    }
}
"""


def processor_time():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def best(work, clock=processor_time, times=7):
    """Least time of several runs, in seconds."""
    took = []
    for _ in range(times):
        begin = clock()
        work()
        took.append(clock() - begin)
    return min(took)


def decode(heads, tokens):
    rng = np.random.default_rng(0)
    blocks = -(-tokens // 16)
    cache = [rng.standard_normal((blocks, 16, 2, 64)).astype(np.float32) for _ in range(2)]
    q, out = rng.standard_normal((heads, 64)).astype(np.float32), np.zeros((heads, 64), np.float32)
    table = rng.permutation(blocks).astype(np.int32)
    args = (q, *cache, table, np.int32(tokens), np.int32(16), np.int32(2), np.float32(0.125), out)
    k, v = (c[table].reshape(-1, 2, 64)[:tokens].astype(np.float64) for c in cache)
    s = np.einsum("hd,thd->ht", q, k.repeat(heads // 2, axis=1)) * 0.125
    p = np.exp(s - s.max(axis=1, keepdims=True))
    return args, np.einsum("ht,thd->hd", p / p.sum(axis=1, keepdims=True), v.repeat(heads // 2, axis=1))


def test_switches_of_fibers():
    y = np.zeros(128, np.float32)
    for name in ("barriers", "shuffles"):
        took = {}
        for traced in (False, True):
            kernel = RawModule(code=SWITCHES, traced=traced).get_function(name)

            def work(kernel=kernel):
                emulator.run(kernel, 1, 128, (np.int32(10_000), y), workers=1)

            took[traced] = best(work) / kernel.outcome.resumes if work() is None else 0
        print(f"\n{name}: {took[False] * 1e9:.0f} ns a resume, {took[True] / took[False]:.2f} times that traced")


def test_paged_decode():
    args, expected = decode(8, 4000)
    took = {}
    for traced in (False, True):
        kernel = RawKernel(PAGED, "paged", traced=traced)
        took[traced] = best(lambda kernel=kernel: emulator.run(kernel, 8, 128, args, workers=1), times=5)
        np.testing.assert_allclose(args[-1], expected, rtol=1e-4, atol=1e-5)
    ratio = took[True] / took[False]
    print(f"\n8 heads, 4000 tokens: {took[False]:.2f} s plain, {took[True]:.2f} s traced ({ratio:.2f} times), one core")


def test_two_cores(monkeypatch):
    """Wall time needs an idle machine; on a busy one look at the last figure, which other work does not change."""
    args, _ = decode(64, 2000)
    kernel = RawKernel(PAGED, "paged")
    workers = []

    def waitpid(pid, flags):
        ended, status, used = os.wait4(pid, flags)
        if ended:
            workers.append(used.ru_utime + used.ru_stime)
        return ended, status

    monkeypatch.setattr("gpu.emulator.launch.os.waitpid", waitpid)

    def work(count):
        return lambda: emulator.run(kernel, 64, 128, args, workers=count)

    def longest():
        """Processor time of this process, in which nothing runs in parallel, and of the worker with most to do."""
        workers.clear()
        begin = time.process_time()
        work(count)()
        return time.process_time() - begin + max(workers)

    wall = {n: best(work(n), time.perf_counter, 5) for n in (1, 2)}
    path = {}
    for count in (1, 2):
        path[count] = min(longest() for _ in range(5))
    print(f"\n64 blocks: {wall[1]:.2f} s on one core, {wall[1] / wall[2]:.2f} times faster on two", end="")
    print(f" ({path[1] / path[2]:.2f} times by the processor time of the longest way through)")


def test_compile_and_start(tmp_path, monkeypatch):
    x = np.zeros(64, np.float32)
    RawKernel(PAGED, "paged").compile()  # the runtime is there
    took = []
    for i in range(5):
        kernel = RawKernel(PAGED + f"// {time.time_ns()} {i}", "paged")
        begin = time.perf_counter()
        kernel.compile()
        took.append(time.perf_counter() - begin)
    code = 'extern "C" __global__ void k(float* x) { x[threadIdx.x] = 1; }'
    RawKernel(code, "k")(1, 64, (x,))
    start = best(lambda: RawKernel(code, "k")(1, 64, (x,)), time.perf_counter, 20)
    print(f"\ncompile {min(took):.2f} s; a compiled kernel found, started and ended in {start * 1e3:.1f} ms")


@pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="numba is not installed")
def test_beside_numbas_simulator(monkeypatch):
    monkeypatch.setenv("NUMBA_ENABLE_CUDASIM", "1")
    from tests.benchmarks.numba_tree_sum import tree_sum

    code = r"""
extern "C" __global__ void tree_sum(const float* x, float* y) {
    __shared__ float s[128];
    int t = threadIdx.x;
    s[t] = x[blockIdx.x * 128 + t];
    __syncthreads();
    for (int half = 64; half > 0; half /= 2) {
        if (t < half) s[t] += s[t + half];
        __syncthreads();
    }
    if (t == 0) y[blockIdx.x] = s[0];
}"""
    x, y, z = np.arange(1024, dtype=np.float32), np.zeros(8, np.float32), np.zeros(8, np.float32)
    theirs = best(lambda: tree_sum[8, 128](x, y), time.perf_counter, 3)
    kernel = RawKernel(code, "tree_sum")
    ours = best(lambda: kernel(8, 128, (x, z)), time.perf_counter, 5)
    np.testing.assert_array_equal(y, z)
    print(
        f"\ntree sums of 8 blocks of 128: {theirs:.2f} s in numba's simulator, {theirs / ours:.0f} times ours (traced)"
    )
