"""Arrays as kernels get them: bounds, alignment, overlap, what was written to them, and what is left of freed ones."""

import numpy as np
import pytest

from gpu import emulator
from gpu.emulator import RawKernel


def test_the_same_array_twice_is_one_tensor():
    code = 'extern "C" __global__ void k(const float* x, float* y) { y[threadIdx.x] = 2 * x[threadIdx.x]; }'
    kernel = RawKernel(code, "k")
    x = np.ones(32, np.float32)
    kernel(1, 32, (x, x))
    assert (x == 2).all()
    assert kernel.trace.tensors["x"].read.nbytes == kernel.trace.tensors["y"].write.nbytes == 128
    # overlapping views: what one writes the other sees
    z = np.zeros(40, np.float32)
    z[:32] = 3
    emulator.run(kernel, 1, 32, (z[:32], z[8:]), checks={"race": "ignore"})
    assert z[8] == 6


def test_overlapping_arguments_that_are_only_read_are_counted_apart():
    code = """
extern "C" __global__ void k(const float* a, const float* b, const float* c, float* y) {
    y[threadIdx.x] = a[threadIdx.x] + b[4 * (threadIdx.x / 4)] + (threadIdx.x == 0 ? c[0] : 0);
}"""
    kernel = RawKernel(code, "k")
    joint, y = np.arange(96, dtype=np.float32).reshape(8, 12), np.zeros(32, np.float32)
    a, b = joint[:, :6], joint[:, 6:]  # interleaved in memory
    kernel(1, 32, (a, b, a, y))
    flat = joint.ravel()
    expected = flat[:32] + flat[6 + np.arange(32) // 4 * 4]
    expected[0] += flat[0]
    np.testing.assert_array_equal(y, expected)
    read = {name: kernel.trace.tensors[name].read for name in "abc"}
    assert {name: traffic.nbytes for name, traffic in read.items()} == {"a": 128, "b": 128, "c": 4}
    assert {name: traffic.unique_nbytes for name, traffic in read.items()} == {"a": 128, "b": 32, "c": 4}
    with pytest.raises(emulator.KernelError, match="reads 4 bytes at element 8 of `b`"):
        kernel(1, 96, (joint, b[:1], a, np.zeros(96, np.float32)))  # each has its own bounds, too


def test_views_are_bounded_by_their_own_extent():
    code = 'extern "C" __global__ void k(const float* x, float* y, int n) { y[threadIdx.x] = x[threadIdx.x * n]; }'
    kernel = RawKernel(code, "k")
    pool, y = np.arange(64, dtype=np.float32).reshape(8, 8), np.zeros(8, np.float32)
    kernel(1, 8, (pool[:, 3], y, np.int32(8)))  # a column, by its stride
    np.testing.assert_array_equal(y, pool[:, 3])
    with pytest.raises(emulator.KernelError, match="out of bounds"):
        kernel(1, 8, (pool[:4], y, np.int32(8)))


@pytest.mark.parametrize("first", [0, 1, 2, 4, 8, 130])
def test_views_keep_their_alignment(first):
    """An array starts at a multiple of 512 bytes; a view of it where its offset puts it."""
    code = r"""
extern "C" __global__ void k(const float* x, unsigned long long* at, float* y) {
    *at = (unsigned long long)x % 512;
    *reinterpret_cast<float4*>(y) = *reinterpret_cast<const float4*>(x);
}"""
    x, at, y = np.arange(200, dtype=np.float32), np.zeros(1, np.uint64), np.zeros(4, np.float32)
    kernel = RawKernel(code, "k")
    if first % 4:
        with pytest.raises(emulator.KernelError, match="misaligned"):
            kernel(1, 1, (x[first:], at, y))
    else:
        kernel(1, 1, (x[first:], at, y))
        assert (at[0], y[1]) == (4 * first % 512, first + 1)


def test_arrays_that_must_not_be_written_are_not():
    code = 'extern "C" __global__ void k(float* x) { x[threadIdx.x] = 1; }'
    x = np.zeros(4, np.float32)
    x.flags.writeable = False
    with pytest.raises(emulator.KernelError, match="read-only"):
        RawKernel(code, "k")(1, 4, (x,))
    assert not x.any()


def test_uninitialised_arrays_remember_what_was_written():
    fill = RawKernel('extern "C" __global__ void k(float* x) { x[threadIdx.x] = 1; }', "k")
    read = RawKernel('extern "C" __global__ void k(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x]; }', "k")
    x, y = emulator.empty(8), np.zeros(8, np.float32)
    assert np.isnan(x).all()
    fill(1, 4, (x,))
    read(1, 4, (x, y))
    assert list(y) == [1, 1, 1, 1, 0, 0, 0, 0]
    with pytest.raises(emulator.KernelError, match=r"reads `x`\[4\], which nobody has written"):
        read(1, 8, (x, y))
    assert emulator.empty(3, np.int32)[0] > 2_000_000_000


def test_addresses_of_an_earlier_launch_are_freed():
    keep = RawKernel(
        'extern "C" __global__ void k(float* x, unsigned long long* at) { *at = (unsigned long long)x; }', "k"
    )
    use = RawKernel(
        'extern "C" __global__ void k(float* y, const unsigned long long* at) { *y = *(const float*)*at; }', "k"
    )
    at = np.zeros(1, np.uint64)
    keep(1, 1, (np.zeros(4, np.float32), at))
    with pytest.raises(emulator.KernelError, match="freed memory: `x` of an earlier launch"):
        use(1, 1, (np.zeros(1, np.float32), at))


def test_empty_arrays_are_fine_until_they_are_touched():
    code = 'extern "C" __global__ void k(const float* x, float* y, int n) { for (int i = 0; i < n; i++) *y += x[i]; }'
    kernel = RawKernel(code, "k")
    y = np.zeros(1, np.float32)
    kernel(1, 1, (np.zeros(0, np.float32), y, np.int32(0)))
    with pytest.raises(emulator.KernelError, match="out of bounds"):
        kernel(1, 1, (np.zeros(0, np.float32), y, np.int32(1)))
