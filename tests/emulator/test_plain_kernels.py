"""Kernels as users write them: right values, and traffic equal to what is worked out on paper."""

import numpy as np
import pytest

from gpu import emulator
from gpu.emulator import RawKernel, RawModule


@pytest.fixture
def rng():
    return np.random.default_rng(20)


def test_saxpy(text, rng):
    n = 1000
    x, y = rng.random(n, dtype=np.float32), rng.random(n, dtype=np.float32)
    expected = np.float32(2.5) * x + y
    kernel = RawKernel(text("saxpy"), "saxpy")
    kernel((8,), (128,), (np.int32(n), np.float32(2.5), x, y))
    np.testing.assert_allclose(y, expected, rtol=1e-6)
    trace = kernel.trace
    # 4 bytes an element; 1000 floats are 125 sectors of 8 floats; 31 full warps and one of 8 lanes.
    assert trace.nbytes("x") == trace.nbytes("y", "read") == trace.nbytes("y", "write") == 4000
    assert trace.tensors["x"].read.sectors == 125
    assert trace.tensors["x"].read.requests == 32
    assert trace.tensors["x"].read.useful_share == 1.0
    assert trace.tensors["x"].write.nbytes == 0
    assert trace.shared.read.nbytes == 0


@pytest.mark.parametrize(("stride", "share"), [(1, 1.0), (2, 0.5), (4, 0.25), (8, 0.125), (16, 0.125)])
def test_a_stride_wastes_sectors(text, stride, share):
    """Stride s uses one float in s of each 32-byte sector, down to one of eight."""
    x, y = np.arange(64 * stride, dtype=np.float32), np.zeros(64, np.float32)
    kernel = RawKernel(text("saxpy"), "strided")
    kernel((2,), (32,), (x, y, np.int32(stride)))
    np.testing.assert_array_equal(y, x[::stride])
    read = kernel.trace.tensors["x"].read
    assert read.useful_share == share
    assert read.sectors == min(8 * stride, 64)
    assert read.nbytes == read.unique_nbytes == 256


def test_reduction(text, rng):
    n, blocks, threads = 10_000, 4, 256
    x, out = rng.random(n, dtype=np.float32), np.zeros(1, np.float32)
    kernel = RawKernel(text("reduction"), "sum")
    kernel((blocks,), (threads,), (x, out, np.int32(n)))
    np.testing.assert_allclose(out[0], x.sum(dtype=np.float64), rtol=1e-6)
    trace = kernel.trace
    assert trace.nbytes("x", "read") == 4 * n
    assert trace.tensors["out"].atomic.nbytes == 4 * blocks
    assert trace.tensors["out"].atomic.unique_nbytes == 4
    # One float a warp is written, and read back by the first warp.
    assert trace.shared.write.nbytes == trace.shared.read.nbytes == blocks * threads // 32 * 4
    assert trace.shared.write.wavefronts == blocks * threads // 32
    assert trace.shared.read.wavefronts == blocks


def test_matmul(text, rng):
    n, tile = 48, 16
    a, b = rng.random((n, n), dtype=np.float32), rng.random((n, n), dtype=np.float32)
    c = emulator.empty((n, n))
    kernel = RawKernel(text("matmul"), "matmul")
    kernel((3, 3), (tile, tile), (a, b, c, np.int32(n)))
    np.testing.assert_allclose(c, a @ b, rtol=1e-5)
    trace = kernel.trace
    # Each of the 9 blocks reads a row of tiles of A and a column of tiles of B: n / tile times the matrix in all.
    assert trace.nbytes("a") == trace.nbytes("b") == 4 * n * n * (n // tile)
    assert trace.tensors["a"].read.unique_nbytes == 4 * n * n
    assert trace.nbytes("c", "write") == 4 * n * n
    # Two floats of shared memory for each multiplication.
    assert trace.shared.read.nbytes == 2 * 4 * n**3
    assert trace.kernel == "matmul"
    assert trace.block == (16, 16, 1)


@pytest.mark.parametrize(("name", "wavefronts"), [("conflicts", 32), ("padded", 1)])
def test_transpose(text, rng, name, wavefronts):
    """A column of a 32-wide tile lies in one bank: 32 wavefronts a warp; one float of padding spreads it over all."""
    n = 64
    x, y = rng.random((n, n), dtype=np.float32), emulator.empty((n, n))
    kernel = RawKernel(text("transpose"), name)
    kernel((2, 2), (32, 8), (x, y, np.int32(n)))
    np.testing.assert_array_equal(y, x.T)
    shared = kernel.trace.shared
    warp_accesses = n * n // 32
    assert shared.write.wavefronts == shared.write.ideal_wavefronts == warp_accesses
    assert shared.read.ideal_wavefronts == shared.read.requests == warp_accesses
    assert shared.read.wavefronts == wavefronts * warp_accesses
    for tensor, direction in (("in", "read"), ("out", "write")):
        assert getattr(kernel.trace.tensors[tensor], direction).sectors == n * n // 8


def test_histogram(text, rng):
    n, blocks = 5000, 3
    values, bins = rng.integers(0, 256, n, dtype=np.uint8), np.zeros(256, np.uint32)
    kernel = RawKernel(text("histogram"), "histogram")
    kernel((blocks,), (128,), (values, np.int32(n), bins))
    np.testing.assert_array_equal(bins, np.bincount(values, minlength=256))
    trace = kernel.trace
    assert trace.nbytes("values") == n
    assert trace.shared.atomic.nbytes == 4 * n
    assert trace.tensors["bins"].atomic.nbytes == blocks * 256 * 4


@pytest.mark.parametrize("n", [1, 31, 64, 100, 128])
def test_scan(text, rng, n):
    x, y = rng.integers(-100, 100, n, dtype=np.int32), np.zeros(n, np.int32)
    kernel = RawKernel(text("scan"), "scan")
    kernel((1,), (128,), (x, y, np.int32(n)), shared_mem=2 * 128 * 4)
    np.testing.assert_array_equal(y, np.cumsum(x))
    # Step r reads 128 values and, for the threads from r on, a second one; 7 steps; and n at the end.
    second = sum(128 - (1 << k) for k in range(7))
    assert kernel.trace.shared.read.nbytes == 4 * (7 * 128 + second + n)
    assert kernel.trace.shared.write.nbytes == 4 * 128 * 8


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (5, 31), (8, 32), (9, 100)])
def test_softmax(text, rng, rows, columns):
    x = rng.standard_normal((rows, columns)).astype(np.float32) * 10
    y = emulator.empty(x.shape)
    kernel = RawKernel(text("softmax"), "softmax")
    kernel(((rows + 3) // 4,), (32, 4), (x, y, np.int32(rows), np.int32(columns)))
    e = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
    np.testing.assert_allclose(y, e / e.sum(axis=1, keepdims=True), rtol=3e-6, atol=1e-12)
    assert kernel.trace.nbytes("x") == 3 * x.nbytes
    assert kernel.trace.tensors["x"].read.unique_nbytes == x.nbytes
    assert kernel.trace.nbytes("y", "write") == y.nbytes


@pytest.mark.parametrize("n", [1, 63, 64, 65, 200])
def test_stencil(text, rng, n):
    x, y = rng.integers(-50, 50, n, dtype=np.int32), np.zeros(n, np.int32)
    kernel = RawKernel(text("stencil"), "stencil")
    kernel(((n + 63) // 64,), (64,), (x, y, np.int32(n)), shared_mem=(64 + 6) * 4)
    np.testing.assert_array_equal(y, np.convolve(x, np.ones(7, np.int64))[3 : 3 + n])
    assert kernel.trace.shared.read.nbytes == 7 * 4 * 64 * ((n + 63) // 64)


@pytest.mark.parametrize(("kind", "dtype"), [("float", np.float32), ("double", np.float64), ("int", np.int32)])
@pytest.mark.parametrize("offset", [0, 7])
def test_template(text, rng, kind, dtype, offset):
    names = [f"scale<{k}, {o}>" for k in ("float", "double", "int") for o in (0, 7)]
    module = RawModule(code=text("template"), name_expressions=names)
    x = rng.integers(-9, 9, 200).astype(dtype)
    y = np.zeros_like(x)
    kernel = module.get_function(f"scale<{kind}, {offset}>")
    kernel((2,), (128,), (x, y, dtype(3), np.int32(200)))
    np.testing.assert_array_equal(y, 3 * x + offset)
    assert kernel.trace.nbytes("x") == x.nbytes
    assert kernel.max_threads_per_block == 128


def test_half2(text, rng):
    x = rng.standard_normal((300, 2)).astype(np.float16)
    y = rng.standard_normal((300, 2)).astype(np.float16)
    expected = (np.float64(np.float16(0.7)) * x.astype(np.float64) + y).astype(np.float16)
    kernel = RawKernel(text("half2"), "haxpy")
    kernel((3,), (128,), (np.int32(300), np.float16(0.7), x.view(np.uint32), y.view(np.uint32)))
    np.testing.assert_array_equal(y, expected)
    # A pair moves as one: 300 accesses of 4 bytes.
    assert kernel.trace.tensors["x"].read.accesses == 300
    assert kernel.trace.nbytes("x") == 1200


def test_cooperative_groups(text, rng):
    x, sums = rng.integers(-1000, 1000, 4 * 96, dtype=np.int32), np.zeros(4 * 6, np.int32)
    kernel = RawKernel(text("cooperative"), "tile_sums")
    kernel((4,), (96,), (x, sums))
    np.testing.assert_array_equal(sums, x.reshape(-1, 16).sum(axis=1))
