"""Each intrinsic against what the programming guide says of it, on all lanes."""

import numpy as np
import pytest

from gpu.emulator import KernelError, RawKernel, RawModule

LANES = np.arange(32)

SHUFFLES = r"""
extern "C" __global__ void shuffles(const int* x, int* y, int width, int n) {
    int t = threadIdx.x, v = x[t];
    y[t] = __shfl_sync(0xffffffff, v, n, width);
    y[32 + t] = __shfl_up_sync(0xffffffff, v, n, width);
    y[64 + t] = __shfl_down_sync(0xffffffff, v, n, width);
    y[96 + t] = __shfl_xor_sync(0xffffffff, v, n, width);
}
"""


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16, 32])
@pytest.mark.parametrize("n", [0, 1, 3, 16, 31])
def test_shuffles(width, n):
    x, y = LANES.astype(np.int32) * 10, np.zeros(128, np.int32)
    RawKernel(SHUFFLES, "shuffles")(1, 32, (x, y, np.int32(width), np.int32(n)))
    first = LANES - LANES % width
    index = x[first + n % width]
    up = np.where(LANES % width >= n, x[LANES - np.minimum(n, LANES)], x)
    down = np.where(LANES % width + n < width, x[np.minimum(LANES + n, 31)], x)
    xor = np.where((LANES ^ n) < first + width, x[LANES ^ n], x)
    np.testing.assert_array_equal(y.reshape(4, 32), [index, up, down, xor])


def test_shuffles_of_every_type():
    code = r"""
#include <cuda_fp16.h>
#include <cuda_bf16.h>
extern "C" __global__ void k(double* d, long long* l, float* f, __half2* h2, __half* h, __nv_bfloat16* b) {
    int t = threadIdx.x;
    d[t] = __shfl_xor_sync(~0u, d[t], 1);
    l[t] = __shfl_xor_sync(~0u, l[t], 2);
    f[t] = __shfl_xor_sync(~0u, f[t], 4);
    h2[t] = __shfl_xor_sync(~0u, h2[t], 8);
    h[t] = __shfl_xor_sync(~0u, h[t], 16);
    b[t] = __shfl_xor_sync(~0u, b[t], 1);
}"""
    rng = np.random.default_rng(1)
    arrays = [rng.integers(0, 2**62, 32).astype(np.int64).view(np.float64), rng.integers(-(2**62), 2**62, 32)]
    arrays += [rng.random(32, dtype=np.float32), rng.integers(0, 2**32, 32, dtype=np.uint32)]
    arrays += [rng.integers(0, 2**16, 32, dtype=np.uint16) for _ in range(2)]
    before = [a.copy() for a in arrays]
    RawKernel(code, "k")(1, 32, arrays)
    for a, b, lanes in zip(arrays, before, (1, 2, 4, 8, 16, 1), strict=True):
        np.testing.assert_array_equal(a, b[LANES ^ lanes])


def test_votes_matches_and_reductions():
    code = r"""
extern "C" __global__ void k(const int* x, unsigned* u, int* s) {
    int t = threadIdx.x, v = x[t], all;
    unsigned mask = t % 2 ? 0xaaaaaaaau : 0x55555555u;
    u[t] = __ballot_sync(mask, v > 3);
    u[32 + t] = __any_sync(mask, v == 7);
    u[64 + t] = __all_sync(mask, v < 9);
    u[96 + t] = __match_any_sync(mask, v);
    u[128 + t] = __match_all_sync(mask, t % 2 ? 5 : v, &all);
    u[160 + t] = all;
    u[192 + t] = __reduce_xor_sync(mask, (unsigned)v);
    u[224 + t] = __reduce_or_sync(mask, (unsigned)v);
    u[256 + t] = __reduce_and_sync(mask, (unsigned)v | 16u);
    s[t] = __reduce_add_sync(mask, v - 5);
    s[32 + t] = __reduce_min_sync(mask, v - 5);
    s[64 + t] = __reduce_max_sync(mask, v - 5);
}"""
    x = np.random.default_rng(2).integers(0, 10, 32).astype(np.int32)
    u, s = np.zeros((9, 32), np.uint32), np.zeros((3, 32), np.int32)
    RawKernel(code, "k")(1, 32, (x, u, s))
    for parity in (0, 1):
        lanes = LANES[LANES % 2 == parity]
        v = x[lanes]
        bits = lambda chosen: int(sum(1 << int(i) for i in chosen))  # noqa: E731
        assert set(u[0, lanes]) == {bits(lanes[v > 3])}
        assert set(u[1, lanes]) == {int((v == 7).any())}
        assert set(u[2, lanes]) == {int((v < 9).all())}
        assert list(u[3, lanes]) == [bits(lanes[v == w]) for w in v]
        same = parity == 1 or len(set(v)) == 1
        assert set(u[4, lanes]) == {bits(lanes) if same else 0}
        assert set(u[5, lanes]) == {int(same)}
        assert set(u[6, lanes]) == {np.bitwise_xor.reduce(v)}
        assert set(u[7, lanes]) == {np.bitwise_or.reduce(v)}
        assert set(u[8, lanes]) == {np.bitwise_and.reduce(v | 16)}
        assert [set(row[lanes]) for row in s] == [{(v - 5).sum()}, {(v - 5).min()}, {(v - 5).max()}]


def test_barriers_that_count():
    code = r"""
extern "C" __global__ void k(const int* x, int* y) {
    int t = threadIdx.x;
    y[t] = __syncthreads_count(x[t] > 0);
    y[96 + t] = __syncthreads_and(x[t] > 0);
    y[192 + t] = __syncthreads_or(x[t] > 0);
    y[288 + t] = __syncthreads_and(1);
    y[384 + t] = __syncthreads_or(0);
}"""
    x = (np.arange(96) % 7).astype(np.int32)
    y = np.zeros((5, 96), np.int32)
    RawKernel(code, "k")(1, 96, (x, y))
    assert [set(row) for row in y] == [{(x > 0).sum()}, {0}, {1}, {1}, {0}]


def test_active_mask_is_the_lanes_that_took_the_branch():
    code = r"""
extern "C" __global__ void k(unsigned* y) {
    int t = threadIdx.x;
    if (t % 3 == 0) y[t] = __activemask();
    else y[t] = __activemask();
    y[32 + t] = __activemask();
}"""
    y = np.zeros(64, np.uint32)
    RawKernel(code, "k")(1, 32, (y,))
    thirds = sum(1 << i for i in range(0, 32, 3))
    assert set(y[0:32:3]) == {thirds}
    assert set(y[1:32:3]) == {0xFFFFFFFF ^ thirds}
    assert set(y[32:]) == {0xFFFFFFFF}


def test_a_short_last_warp_may_use_the_full_mask():
    code = r"""
extern "C" __global__ void k(int* y) { y[threadIdx.x] = __ballot_sync(0xffffffff, 1); __syncwarp(); }"""
    y = np.zeros(40, np.uint32)
    RawKernel(code, "k")(1, 40, (y,))
    assert set(y[:32]) == {0xFFFFFFFF}
    assert set(y[32:]) == {0xFF}


ATOMICS = r"""
extern "C" __global__ void ints(int* x, unsigned* u, unsigned long long* l, int* old) {
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    old[t] = atomicAdd(&x[0], 1);
    atomicSub(&x[1], 2);
    atomicMin(&x[2], 50 - t);
    atomicMax(&x[3], t - 7);
    atomicExch(&x[4], 77);
    atomicCAS(&x[5], 5, 6);
    atomicAnd(&u[0], ~(1u << t % 32));
    atomicOr(&u[1], 1u << t % 32);
    atomicXor(&u[2], 1u << t % 32);
    atomicInc(&u[3], 9u);
    atomicDec(&u[4], 9u);
    atomicAdd(l, 1ull << 32);
}
extern "C" __global__ void floats(float* f, double* d) {
    atomicAdd(f, 0.5f);
    atomicAdd(d, 0.25);
}
"""


def test_atomics():
    module = RawModule(code=ATOMICS)
    x = np.array([0, 0, 100, -100, 0, 5], np.int32)
    u, ll, old = np.array([~0 & 0xFFFFFFFF, 0, 0, 0, 3], np.uint32), np.zeros(1, np.uint64), np.zeros(96, np.int32)
    module.get_function("ints")(3, 32, (x, u, ll, old))
    assert list(x) == [96, -192, 50 - 95, 95 - 7, 77, 6]
    assert sorted(old) == list(range(96))
    # 96 increments that wrap after 9: 96 mod 10. Decrements from 3: 3 2 1 0, then 9 to 0 again and again.
    assert list(u) == [0, 0xFFFFFFFF, 0xFFFFFFFF, 96 % 10, (3 - 96) % 10]
    assert ll[0] == 96 << 32
    f, d = np.zeros(1, np.float32), np.zeros(1)
    module.get_function("floats")(3, 32, (f, d))
    assert (f[0], d[0]) == (48.0, 24.0)


def test_a_thread_may_wait_for_another_by_an_atomic():
    code = r"""
extern "C" __global__ void k(int* flag, int* y) {
    if (threadIdx.x == 0) { while (atomicAdd(flag, 0) == 0) { } y[0] = 5; }
    else if (threadIdx.x == 1) atomicExch(flag, 1);
}"""
    y = np.zeros(1, np.int32)
    for traced in (True, False):
        y[:] = 0
        RawKernel(code, "k", traced=traced)(1, 2, (np.zeros(1, np.int32), y))
        assert y[0] == 5


def test_the_last_block_may_read_what_fences_published(text):
    """The well-known pattern: partial results, a fence, a counter; whoever comes last adds them up."""
    code = r"""
__device__ unsigned int arrived;
extern "C" __global__ void k(const float* x, float* partial, float* out) {
    __shared__ bool last;
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = x[blockIdx.x];
        FENCE
        last = atomicInc(&arrived, gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (last && threadIdx.x == 0) {
        float sum = 0;
        for (int i = 0; i < gridDim.x; i++) sum += partial[i];
        *out = sum;
    }
}"""
    x, out = np.arange(8, dtype=np.float32), np.zeros(1, np.float32)
    RawKernel(code, "k", ("-DFENCE=__threadfence();",))(8, 32, (x, np.zeros(8, np.float32), out))
    assert out[0] == 28
    with pytest.raises(KernelError, match="race"):
        RawKernel(code, "k", ("-DFENCE=",))(8, 32, (x, np.zeros(8, np.float32), out))


def test_integer_and_float_intrinsics():
    code = r"""
extern "C" __global__ void k(unsigned* u, float* f) {
    u[0] = __popc(0xf0f0u); u[1] = __clz(1); u[2] = __ffs(8); u[3] = __brev(1u);
    u[4] = __byte_perm(0x33221100u, 0x77665544u, 0x6240u);
    u[5] = __funnelshift_l(0x80000000u, 1u, 1); u[6] = __funnelshift_r(1u, 1u, 1); u[7] = __umulhi(1u << 31, 6u);
    u[8] = __float_as_uint(1.0f); u[9] = min(3, 5) + max(2u, 7u); u[10] = __popcll(~0ull); u[11] = __float2int_rn(2.5f);
    f[0] = __fdividef(1.0f, 4.0f); f[1] = rsqrtf(16.0f); f[2] = __saturatef(7.0f); f[3] = fmaf(2.0f, 3.0f, 1.0f);
    f[4] = __uint_as_float(0x40000000u); f[5] = fminf(NAN, 2.0f); f[6] = __expf(0.0f); f[7] = __frcp_rn(8.0f);
}"""
    u, f = np.zeros(12, np.uint32), np.zeros(8, np.float32)
    RawKernel(code, "k")(1, 1, (u, f))
    expected = [8, 31, 4, 0x80000000, 0x66224400, 3, 0x80000000, 3, 0x3F800000, 10, 64, 2]
    np.testing.assert_array_equal(u, np.array(expected, np.uint32))
    np.testing.assert_array_equal(f, np.array([0.25, 0.25, 1, 7, 2, 2, 1, 0.125], np.float32))


def test_integer_intrinsics_with_a_carry():
    code = r"""
extern "C" __global__ void k(unsigned* u, int* i, int least, int most, unsigned all) {
    u[0] = __funnelshift_lc(1u, 2u, 32); u[1] = __funnelshift_rc(1u, 2u, 40); u[2] = __funnelshift_lc(1u << 31, 2u, 1);
    u[3] = __sad(least, most, 5u); u[4] = __usad(3u, 10u, 1u); u[5] = __uhadd(all, all); u[6] = __urhadd(all, 0u);
    i[0] = __hadd(most, most); i[1] = __rhadd(most, most - 1); i[2] = __hadd(-3, 0); i[3] = __rhadd(-3, 0);
}"""
    u, i, info = np.zeros(7, np.uint32), np.zeros(4, np.int32), np.iinfo(np.int32)
    RawKernel(code, "k")(1, 1, (u, i, np.int32(info.min), np.int32(info.max), np.uint32(2**32 - 1)))
    assert list(u) == [1, 2, 5, 4, 8, 2**32 - 1, 2**31]  # 2**32 - 1 + 5, modulo 2**32
    assert list(i) == [info.max, info.max, -2, -1]


def test_conversions_to_integers_saturate():
    """A device clamps and makes NaN 0; a host's own casts do neither."""
    code = r"""
#include <cuda_fp16.h>
extern "C" __global__ void k(const float* x, int* i, unsigned* u, long long* l, int* d, int* h) {
    int t = threadIdx.x;
    i[t] = __float2int_rn(x[t]); u[t] = __float2uint_rz(x[t]); l[t] = __float2ll_rn(x[t]); d[t] = __double2int_rn(x[t]);
    h[t] = __half2int_rz(__float2half(x[t]));
}"""
    x = np.array([np.nan, np.inf, -np.inf, 2.0**31, -(2.0**31), 2.0**32, 2.0**63, -1.5, 2.5, 16777217], np.float32)
    i, u, d, h = (np.zeros(10, dtype) for dtype in (np.int32, np.uint32, np.int32, np.int32))
    wide = np.zeros(10, np.int64)
    RawKernel(code, "k")(1, 10, (x, i, u, wide, d, h))
    least, most = -(2**31), 2**31 - 1
    assert list(i) == [0, most, least, most, least, most, most, -2, 2, 16777216]
    assert list(d) == [least, *i[1:]]
    assert list(h) == [0, most, least, most, least, most, most, -1, 2, most]  # beyond 65504, a half is infinite
    assert list(u) == [0, 2**32 - 1, 0, 2**31, 0, 2**32 - 1, 2**32 - 1, 0, 2, 16777216]
    top = 2**63
    assert list(wide) == [-top, top - 1, -top, 2**31, -(2**31), 2**32, top - 1, -2, 2, 16777216]


def test_fast_exponential_is_good_to_float32():
    code = 'extern "C" __global__ void k(const float* x, float* y) { y[threadIdx.x] = __expf(x[threadIdx.x]); }'
    x = np.linspace(-20, 0, 256, dtype=np.float32)
    y = np.zeros_like(x)
    RawKernel(code, "k")(1, 256, (x, y))
    # the argument of 2**x is rounded once: relative error at most |x| log2(e) 2**-24 ln(2) and half a unit
    np.testing.assert_allclose(y, np.exp(x.astype(np.float64)), rtol=(20 + 2) * 2**-24)
