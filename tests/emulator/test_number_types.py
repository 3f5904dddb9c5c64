"""The narrow types against ml_dtypes: every code one way, edges and random numbers the other."""

import ml_dtypes
import numpy as np
import pytest

from gpu.emulator import RawKernel, RawModule

CODE = r"""
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <cuda_fp8.h>
extern "C" __global__ void narrow(
    const float* x, __half* h, __nv_bfloat16* b, __nv_fp8_e4m3* e4, __nv_fp8_e5m2* e5, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    h[i] = __float2half(x[i]);
    b[i] = __float2bfloat16(x[i]);
    e4[i] = __nv_fp8_e4m3(x[i]);
    e5[i] = __nv_fp8_e5m2(x[i]);
}
extern "C" __global__ void widen(
    float* y, const __half* h, const __nv_bfloat16* b, const __nv_fp8_e4m3* e4, const __nv_fp8_e5m2* e5) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, n = gridDim.x * blockDim.x;
    y[i] = __half2float(h[i]);
    y[n + i] = __bfloat162float(b[i]);
    y[2 * n + i] = float(e4[i % 256]);
    y[3 * n + i] = float(e5[i % 256]);
}
template <class T, class T2> __global__ void arithmetic(const T* a, const T* b, const T* c, T* y, T2* y2, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = a[i] + b[i];
    y[n + i] = __hmul(a[i], b[i]);
    y[2 * n + i] = __hfma(a[i], b[i], c[i]);
    y[3 * n + i] = a[i] / b[i];
    y[4 * n + i] = __hmax(a[i], b[i]);
    y[5 * n + i] = a[i] < b[i] ? -a[i] : __habs(b[i]);
    y2[i] = __hfma2(T2(a[i], b[i]), T2(c[i], c[i]), T2(b[i], a[i]));
}
"""
TYPES = (
    (np.float16, 65504),
    (ml_dtypes.bfloat16, None),
    (ml_dtypes.float8_e4m3fn, 448),
    (ml_dtypes.float8_e5m2, 57344),
)


@pytest.fixture(scope="module")
def module():
    return RawModule(
        code=CODE, name_expressions=["arithmetic<__half, __half2>", "arithmetic<__nv_bfloat16, __nv_bfloat162>"]
    )


def numbers(n):
    rng = np.random.default_rng(3)
    edges = [
        0,
        -0.0,
        np.inf,
        -np.inf,
        np.nan,
        65504,
        65519.9,
        65520,
        448,
        464,
        465,
        57344,
        61440,
        2**-24,
        2**-25,
        2**-25 * 1.001,
    ]
    edges += [
        2**-9,
        2**-10,
        1.5 * 2**-10,
        2**-16,
        2**-17,
        2**-133,
        1e-45,
        3.4e38,
        1 + 2**-11,
        1 + 3 * 2**-11,
        1.0625,
        1.1875,
    ]
    wide = np.exp(rng.uniform(-30, 30, n)) * rng.choice([-1, 1], n)
    bits = rng.integers(0, 2**32, n, dtype=np.uint32).view(np.float32)
    with np.errstate(invalid="ignore"):
        return np.concatenate([np.array(edges, np.float32), wide.astype(np.float32), bits])


def agree(got, expected):
    got, expected = got.astype(np.float32), expected.astype(np.float32)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    np.testing.assert_array_equal(got[~np.isnan(got)], expected[~np.isnan(expected)])
    np.testing.assert_array_equal(np.signbit(got[got == 0]), np.signbit(expected[expected == 0]))


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
def test_rounding_from_float32(module):
    x = numbers(3000)
    out = [np.zeros(x.size, t) for t, _ in TYPES]
    module.get_function("narrow")((x.size + 127) // 128, 128, (x, *out, np.int32(x.size)))
    for got, (dtype, largest) in zip(out, TYPES, strict=True):
        saturates = np.dtype(dtype).itemsize == 1  # the 8-bit types stop at their largest number
        agree(got, (np.clip(x, -largest, largest) if saturates else x).astype(dtype))


def test_every_code_widens_exactly(module):
    n = 65536
    codes, bytes_ = np.arange(n, dtype=np.uint16), np.arange(256, dtype=np.uint8)
    y = np.zeros((4, n), np.float32)
    module.get_function("widen")(n // 256, 256, (y, codes, codes, bytes_, bytes_))
    with np.errstate(invalid="ignore"):
        agree(y[0], codes.view(np.float16))
        agree(y[1], codes.view(ml_dtypes.bfloat16))
        agree(y[2, :256], bytes_.view(ml_dtypes.float8_e4m3fn))
        agree(y[3, :256], bytes_.view(ml_dtypes.float8_e5m2))


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("arithmetic<__half, __half2>", np.float16), ("arithmetic<__nv_bfloat16, __nv_bfloat162>", ml_dtypes.bfloat16)],
)
def test_arithmetic_rounds_once(module, name, dtype):
    """Sums, products and quotients are exact in float64 (or far enough from a tie) and rounded once."""
    n, rng = 1024, np.random.default_rng(4)
    a, b, c = (rng.standard_normal(n).astype(dtype) for _ in range(3))
    y, y2 = np.zeros((6, n), dtype), np.zeros((n, 2), dtype)
    module.get_function(name)(n // 128, 128, (a, b, c, y, y2.view(np.uint32), np.int32(n)))
    p, q, r = (v.astype(np.float64) for v in (a, b, c))
    for got, exact in zip(y, (p + q, p * q, p * q + r, p / q), strict=False):
        agree(got, exact.astype(np.float32).astype(dtype) if dtype is ml_dtypes.bfloat16 else exact.astype(dtype))
    agree(y[4], np.maximum(a, b))
    agree(y[5], np.where(p < q, -p, abs(q)).astype(dtype))
    pairs = np.stack([p * r + q, q * r + p], axis=1)
    agree(y2, pairs.astype(np.float32).astype(dtype) if dtype is ml_dtypes.bfloat16 else pairs.astype(dtype))


def test_half_atomics():
    code = r"""
#include <cuda_fp16.h>
extern "C" __global__ void k(__half* h, __half2* h2) {
    atomicAdd(&h[1], __float2half(0.5f));
    atomicAdd(h2, __floats2half2_rn(1.0f, 2.0f));
}"""
    h, h2 = np.zeros(3, np.float16), np.zeros(2, np.float16)
    kernel = RawModule(code=code).get_function("k")
    kernel(2, 32, (h, h2.view(np.uint32)))
    assert list(h) == [0, 32, 0]
    assert list(h2) == [64, 128]
    assert kernel.trace.tensors["h"].atomic.nbytes == 64 * 2
    assert kernel.trace.tensors["h2"].atomic.nbytes == 64 * 4


def test_comparisons_and_selections_of_pairs():
    code = r"""
#include <cuda_fp16.h>
extern "C" __global__ void k(float* y) {
    half2 a = __floats2half2_rn(1.5f, -2.f), b = __floats2half2_rn(1.5f, 3.f);
    half2 list[] = {__heq2(a, b), __hlt2(a, b), __hge2(a, b), -a, __lows2half2(a, b), __highs2half2(a, b)};
    for (int i = 0; i < 6; i++) y[2 * i] = __low2float(list[i]), y[2 * i + 1] = __high2float(list[i]);
    y[12] = __hbeq2(a, b), y[13] = __hble2(a, b), y[14] = a == b;
    y[15] = __hfma_relu(a.x, a.y, b.x), y[16] = __hadd_sat(a.x, a.x), y[17] = hceil(__float2half(0.25f));
    y[18] = __half2short_rn(__short2half_rn(-7)), y[19] = __high2float(h2sqrt(__floats2half2_rn(1.f, 9.f)));
}"""
    y = np.zeros(20, np.float32)
    RawKernel(code, "k")(1, 1, (y,))
    assert list(y[:12]) == [1, 0, 0, 1, 1, 0, -1.5, 2, 1.5, 1.5, -2, 3]
    assert list(y[12:]) == [0, 1, 0, 0, 1, 1, -7, 3]


@pytest.mark.parametrize(("kind", "dtype"), [("e4m3", "float8_e4m3fn"), ("e5m2", "float8_e5m2")])
def test_four_bytes_of_fp8(kind, dtype):
    code = f"""
#include <cuda_fp8.h>
extern "C" __global__ void k(const float4* x, unsigned* codes, float4* back) {{
    __nv_fp8x4_{kind} q(x[threadIdx.x]);
    codes[threadIdx.x] = q.__x;
    back[threadIdx.x] = (float4)q;
}}"""
    x = np.random.default_rng(3).standard_normal((32, 4)).astype(np.float32) * 20
    codes, back = np.zeros(32, np.uint32), np.zeros((32, 4), np.float32)
    RawKernel(code, "k")(1, 32, (x, codes, back))
    expected = x.astype(getattr(ml_dtypes, dtype))
    np.testing.assert_array_equal(codes.view(np.uint8), expected.view(np.uint8).ravel())
    np.testing.assert_array_equal(back, expected.astype(np.float32))


def test_products_of_bytes_and_of_long_words():
    code = r"""
extern "C" __global__ void k(const int* a, const int* b, int* dots, unsigned long long* words, unsigned long long x) {
    dots[0] = __dp4a(*a, *b, 10);
    dots[1] = (int)__dp4a((unsigned)*a, (unsigned)*b, 10u);
    words[0] = __umul64hi(x, x), words[1] = __brevll(x), words[2] = (unsigned long long)__mul64hi(-1ll, 5ll);
}"""
    a, b = np.array([-128, 127, -1, 5], np.int8), np.array([-128, -128, 3, 100], np.int8)
    dots, words, x = np.zeros(2, np.int32), np.zeros(3, np.uint64), 0xFEDCBA9876543211
    RawKernel(code, "k")(1, 1, (a, b, dots, words, np.uint64(x)))
    assert dots[0] == 10 + int(a.astype(int) @ b.astype(int))
    assert dots[1] == 10 + int(a.view(np.uint8).astype(int) @ b.view(np.uint8).astype(int))
    assert [int(w) for w in words] == [x * x >> 64, int(f"{x:064b}"[::-1], 2), 2**64 - 1]
