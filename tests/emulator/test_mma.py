"""Tensor-core, ldmatrix and cp.async wrappers, against the documented layout of fragments and a plain product."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from gpu import nvrtc
from gpu.emulator import KernelError, RawKernel, RawModule

INCLUDE = (f"-I{Path(__file__).parents[2] / 'gpu' / 'kernels'}",)
G, T = np.arange(32) // 4, np.arange(32) % 4

CODE = r"""
#include "mma.cuh"
extern "C" __global__ void f16(const unsigned* a, const unsigned* b, const float* c, float* d) {
    int t = threadIdx.x;
    mma_f16(d + 4 * t, a + 4 * t, b + 2 * t, c + 4 * t);
}
extern "C" __global__ void bf16(const unsigned* a, const unsigned* b, const float* c, float* d) {
    int t = threadIdx.x;
    float in[4], out[4];
    unsigned x[4], y[2];
    for (int i = 0; i < 4; i++) { in[i] = c[4 * t + i]; x[i] = a[4 * t + i]; }
    for (int i = 0; i < 2; i++) y[i] = b[2 * t + i];
    mma_bf16(out, x, y, in);
    for (int i = 0; i < 4; i++) d[4 * t + i] = out[i];
}
extern "C" __global__ void load(const unsigned short* m, unsigned* straight, unsigned* transposed) {
    __shared__ __align__(16) unsigned short s[32 * 8];
    int t = threadIdx.x;
    for (int i = 0; i < 8; i++) s[t * 8 + i] = m[t * 8 + i];
    __syncthreads();
    unsigned r[4];
    ldmatrix_x4(r, s + 8 * t);
    for (int i = 0; i < 4; i++) straight[4 * t + i] = r[i];
    ldmatrix_x4_trans(r, s + 8 * t);
    for (int i = 0; i < 4; i++) transposed[4 * t + i] = r[i];
}
extern "C" __global__ void pipeline(const float4* x, float4* y, int stages) {
    __shared__ float4 s[2][32];
    int t = threadIdx.x;
    cp_async_16(&s[0][t], x + t);
    cp_async_commit();
    for (int i = 0; i < stages; i++) {
        if (i + 1 < stages) cp_async_16(&s[(i + 1) % 2][t], x + 32 * (i + 1) + t);
        cp_async_commit();
        cp_async_wait<IN_FLIGHT>();
        __syncthreads();
        y[32 * i + t] = s[i % 2][31 - t];
        __syncthreads();
    }
}
extern "C" __global__ void or_zero(const float4* x, float4* y, int n) {
    __shared__ float4 s[32];
    int t = threadIdx.x;
    cp_async_16_or_zero(&s[t], x + t, t < n);
    cp_async_wait_all();
    y[t] = s[t];
}
"""


@pytest.fixture(scope="module")
def module():
    return RawModule(code=CODE, options=(*INCLUDE, "-DIN_FLIGHT=1"))


def words(low, high):
    """Two arrays of 16-bit numbers as words, the first in the low half."""
    pair = np.stack([low.view(np.uint16), high.view(np.uint16)], axis=-1)
    return np.ascontiguousarray(pair).view(np.uint32)[..., 0]


def fragments(a, b, c):
    """Matrices to what each lane holds: written from the tables of the PTX document, not from the header."""
    fa = np.stack([words(a[G + r, 2 * T + k], a[G + r, 2 * T + k + 1]) for k in (0, 8) for r in (0, 8)], axis=1)
    fb = np.stack([words(b[2 * T + k, G], b[2 * T + k + 1, G]) for k in (0, 8)], axis=1)
    fc = np.stack([c[G + r, 2 * T + i] for r in (0, 8) for i in (0, 1)], axis=1)
    return np.ascontiguousarray(fa), np.ascontiguousarray(fb), np.ascontiguousarray(fc)


@pytest.mark.parametrize(("name", "dtype"), [("f16", np.float16), ("bf16", ml_dtypes.bfloat16)])
def test_product(module, name, dtype):
    rng = np.random.default_rng(5)
    a, b = rng.standard_normal((16, 16)).astype(dtype), rng.standard_normal((16, 8)).astype(dtype)
    c = rng.standard_normal((16, 8)).astype(np.float32)
    d = np.zeros((32, 4), np.float32)
    module.get_function(name)(1, 32, (*fragments(a, b, c), d))
    expected = c + a.astype(np.float64) @ b.astype(np.float64)
    for i, (r, k) in enumerate([(0, 0), (0, 1), (8, 0), (8, 1)]):
        np.testing.assert_allclose(d[:, i], expected[G + r, 2 * T + k], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("row", range(16))
def test_each_element_lies_where_the_document_says(module, row):
    """One element of A at a time, and one of B: the product has one element, in its one place."""
    for k in range(16):
        a, b, c = np.zeros((16, 16), np.float16), np.zeros((16, 8), np.float16), np.zeros((16, 8), np.float32)
        column = (row + k) % 8
        a[row, k], b[k, column] = 3, 5
        d = np.zeros((32, 4), np.float32)
        module.get_function("f16")(1, 32, (*fragments(a, b, c), d))
        lane, i = 4 * (row % 8) + column // 2, 2 * (row // 8) + column % 2
        assert d[lane, i] == 15
        assert np.count_nonzero(d) == 1


def test_ldmatrix(module):
    m = np.arange(256, dtype=np.uint16).reshape(4, 8, 8)
    straight, transposed = np.zeros((32, 4), np.uint32), np.zeros((32, 4), np.uint32)
    kernel = module.get_function("load")
    kernel(1, 32, (m, straight, transposed))
    for i in range(4):
        np.testing.assert_array_equal(straight[:, i], words(m[i, G, 2 * T], m[i, G, 2 * T + 1]))
        np.testing.assert_array_equal(transposed[:, i], words(m[i, 2 * T, G], m[i, 2 * T + 1, G]))
    # rows of 16 bytes one after the other: each 8 x 8 matrix is one pass over the banks
    rows = [r for r in kernel.trace.rows if r.tensor == "shared" and r.size == 16]
    assert sum(r.traffic.wavefronts for r in rows) == 8
    assert sum(r.traffic.nbytes for r in rows) == 2 * 512


def test_copies_land_at_their_wait(module):
    x = np.random.default_rng(6).random((4 * 32, 4), dtype=np.float32)
    y = np.zeros_like(x)
    kernel = module.get_function("pipeline")
    kernel(1, 32, (x, y, np.int32(4)))
    np.testing.assert_array_equal(y.reshape(4, 32, 4), x.reshape(4, 32, 4)[:, ::-1])
    assert kernel.trace.nbytes("x", "read") == x.nbytes
    assert kernel.trace.shared.write.nbytes == x.nbytes


def test_a_wait_that_leaves_one_group_too_many_is_caught():
    kernel = RawKernel(CODE, "pipeline", (*INCLUDE, "-DIN_FLIGHT=2"))
    x = np.zeros((128, 4), np.float32)
    with pytest.raises(KernelError, match="uninitialised"):
        kernel(1, 32, (x, np.zeros_like(x), np.int32(4)))
    # and without any checks the values show it: poison, not the old contents
    y = np.zeros_like(x)
    RawKernel(CODE, "pipeline", (*INCLUDE, "-DIN_FLIGHT=2"), traced=False)(1, 32, (x, y, np.int32(4)))
    assert np.isnan(y[:32]).all()


def test_copy_or_zero_does_not_read(module):
    x, y = np.ones((5, 4), np.float32), np.full((32, 4), 9, np.float32)
    module.get_function("or_zero")(1, 32, (x, y, np.int32(5)))
    assert (y[:5] == 1).all()
    assert (y[5:] == 0).all()


def test_matrix_instructions_need_whole_warps(module):
    a, b, c = np.zeros((16, 16), np.float16), np.zeros((16, 8), np.float16), np.zeros((16, 8), np.float32)
    with pytest.raises(KernelError, match="32 lanes"):
        module.get_function("f16")(1, 16, (*fragments(a, b, c), np.zeros((32, 4), np.float32)))


@pytest.mark.skipif(not nvrtc.available(), reason="the NVRTC wheel is not installed")
@pytest.mark.parametrize("architecture", nvrtc.ARCHITECTURES)
def test_compiles_for_gpus(architecture):
    compiled = nvrtc.compile_text(CODE, architecture, (*INCLUDE, "-DIN_FLIGHT=1"))
    assert {"f16", "bf16", "load", "pipeline", "or_zero"} <= compiled.usage.keys()
    if architecture != "sm_75":
        assert "mma.sync.aligned.m16n8k16" in compiled.ptx
        assert "cp.async" in compiled.ptx
    assert "ldmatrix" in compiled.ptx
