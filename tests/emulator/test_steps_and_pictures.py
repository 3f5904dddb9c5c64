"""Stepping from barrier to barrier, and pictures whose numbers come from real addresses."""

import numpy as np
import pytest

from gpu import emulator
from gpu.emulator import RawKernel, pictures
from gpu.emulator.source import SourceError

TREE = r"""
extern "C" __global__ void tree(const float* x, float* y) {
    extern __shared__ float s[];
    __shared__ int rounds;
    int t = threadIdx.x;
    s[t] = x[blockIdx.x * blockDim.x + t];
    if (t == 0) rounds = 0;
    __syncthreads();
    for (int o = blockDim.x / 2; o > 0; o /= 2) {
        if (t < o) s[t] += s[t + o];
        if (t == 0) rounds++;
        __syncthreads();
    }
    if (t == 0) y[blockIdx.x] = s[0];
}
"""


@pytest.fixture
def stepped():
    x, y = np.arange(16, dtype=np.float32), np.zeros(2, np.float32)
    return x, y, RawKernel(TREE, "tree")


def test_steps_show_shared_memory_at_each_barrier(stepped, find_line):
    x, y, kernel = stepped
    walk = emulator.steps(kernel, 2, 8, (x, y), shared_mem=32, stop=(1, 0, 0))
    seen = list(walk)
    expected = x[8:].copy()
    for i, step in enumerate(seen):
        assert step.index == i
        if i:
            half = 8 >> i
            expected[:half] += expected[half : 2 * half]
        np.testing.assert_array_equal(step.shared["dynamic"].view(np.float32), expected)
        assert step.shared["rounds"].view(np.int32)[()] == i
    first = find_line(TREE, "if (t == 0) rounds = 0;") + 1
    assert [s.line for s in seen] == [first] + [first + 4] * 3
    assert [s.tensors["y"][0] for s in seen] == [x[:8].sum()] * 4  # block 0 ran before
    assert list(y) == [x[:8].sum(), x[8:].sum()]
    assert walk.trace.nbytes("x") == 64


def test_unwritten_shared_memory_is_poison(stepped):
    code = r"""
extern "C" __global__ void k(float* y) {
    __shared__ float s[4][2];
    if (threadIdx.x == 1) s[1][0] = 7;
    __syncthreads();
    y[threadIdx.x] = threadIdx.x == 1 ? s[1][0] : 0;
}"""
    step = next(iter(emulator.steps(RawKernel(code, "k"), 1, 4, (np.zeros(4, np.float32),))))
    assert step.shared["s"].shape == (4, 2)
    assert step.shared["s"][1, 0] == 7
    assert np.isnan(step.shared["s"]).sum() == 7


def test_watched_variables(stepped, find_line):
    x, y, kernel = stepped
    line = find_line(TREE, "if (t == 0) rounds++;") + 1
    steps = list(emulator.steps(kernel, 2, 8, (x, y), shared_mem=32, watch={line: ("o", "t * 2")}))
    assert np.isnan(steps[0].watched["o"]).all()  # not watched at the first barrier
    assert [set(s.watched["o"]) for s in steps[1:]] == [{4}, {2}, {1}]
    np.testing.assert_array_equal(steps[1].watched["t * 2"], np.arange(8) * 2)
    with pytest.raises(SourceError, match="line 1 has no __syncthreads"):
        emulator.steps(kernel, 2, 8, (x, y), shared_mem=32, watch={1: ("o",)})


def test_a_walk_may_be_left(stepped):
    x, y, kernel = stepped
    for _ in emulator.steps(kernel, 2, 8, (x, y), shared_mem=32):
        break
    assert not y.any()
    for stop in ((2, 0, 0), (0, 1, 0), (-1, 0, 0), (0, 0, 0, 0), 5, (1.0, 0, 0)):
        with pytest.raises(ValueError, match=r"a block of a grid of \(2, 1, 1\), such as \(0, 0, 0\); got"):
            emulator.steps(kernel, 2, 8, (x, y), shared_mem=32, stop=stop)
    with pytest.raises(TypeError, match=r"kernel must be a RawKernel or module\.get_function\(name\), got str"):
        emulator.steps("text", 2, 8, (x, y))


def test_a_walk_ends_in_the_error_that_stops_the_kernel():
    code = 'extern "C" __global__ void k(float* y) { __syncthreads(); y[threadIdx.x] = 1; }'
    walk = iter(emulator.steps(RawKernel(code, "k"), 1, 5, (np.zeros(4, np.float32),)))
    assert next(walk).index == 0
    with pytest.raises(emulator.KernelError, match="out of bounds"):
        next(walk)


@pytest.fixture
def transposed(text):
    x, y = np.zeros((32, 32), np.float32), np.zeros((32, 32), np.float32)
    kernel = RawKernel(text("transpose"), "conflicts")
    return emulator.run(kernel, 1, (32, 8), (x, y, np.int32(32)), accesses=1, barriers=True, heat=True).trace


def test_bank_map(transposed, find_line, text):
    read = pictures.pick(transposed, "shared", line=find_line(text("transpose"), "tile[x][y];"))
    counts = pictures.bank_table(read)
    assert counts[0] == 32  # a column of a 32-wide tile: all in one bank
    assert counts.sum() == 32
    write = pictures.pick(transposed, "shared", direction="write")
    assert (pictures.bank_table(write) == 1).all()
    axes = pictures.banks(read)
    assert [bar.get_height() for bar in axes.patches] == list(counts)


def test_sector_picture(text):
    x, y = np.arange(64, dtype=np.float32), np.zeros(32, np.float32)
    run = emulator.run(text("saxpy"), 1, 32, (x, y, np.int32(2)), name="strided", accesses=1)
    access = pictures.pick(run.trace, "x")
    table = pictures.sector_table(access)
    # every second float of 8 sectors: 4 lanes a sector
    assert table.shape == (8, 32)
    assert (table[0] == np.repeat([0, -1, 1, -1, 2, -1, 3, -1], 4)).all()
    assert (table >= 0).mean() == run.trace.tensors["x"].read.useful_share == 0.5
    assert "8 sectors, 50%" in pictures.sectors(access).get_title()
    with pytest.raises(LookupError, match="no write of 'x'"):
        pictures.pick(run.trace, "x", direction="write")


def test_heat_map():
    code = 'extern "C" __global__ void k(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x / 4]; }'
    run = emulator.run(code, 1, 32, (np.zeros((2, 8), np.float32), np.zeros(32, np.float32)), name="k", heat=True)
    np.testing.assert_array_equal(run.trace.heat["x"], [[4] * 8, [0] * 8])
    assert "read 0 to 4 times" in pictures.heat(run.trace, "x").get_title()
    with pytest.raises(LookupError, match="heat=True"):
        pictures.heat(
            emulator.run(code, 1, 4, (np.zeros(8, np.float32), np.zeros(32, np.float32)), name="k").trace, "x"
        )


def test_timeline(transposed):
    events = transposed.barriers
    assert [(e.warp, e.barrier) for e in events] == [(w, 0) for w in range(8)]
    assert {e.arrived for e in events} == {8}  # four rows a warp, each read once and written once
    axes = pictures.timeline(transposed)
    assert len(axes.patches) == 2 * len(events)
    with pytest.raises(LookupError, match="barriers=True"):
        pictures.timeline(transposed, block=5)


def test_a_warp_with_more_work_makes_the_others_wait():
    code = r"""
extern "C" __global__ void k(const float* x, float* y) {
    float sum = 0;
    for (int i = 0; i <= 10 * (threadIdx.x / 32); i++) sum += x[i];
    __syncthreads();
    y[threadIdx.x] = sum;
}"""
    trace = emulator.run(
        code, 1, 64, (np.zeros(64, np.float32), np.zeros(64, np.float32)), name="k", barriers=True
    ).trace
    assert [(e.arrived, e.released) for e in trace.barriers] == [(1, 11), (11, 11)]


def test_steps_show_strided_arrays_as_they_are_now():
    code = r"""
extern "C" __global__ void k(float* x, int step) {
    x[(int)threadIdx.x * step] = 1 + threadIdx.x;
    __syncthreads();
    x[(int)threadIdx.x * step] *= 2;
}"""
    kernel = RawKernel(code, "k")
    for first, stride in ((0, 2), (7, -2)):
        x = np.zeros(8, np.float32)
        (step,) = emulator.steps(kernel, 1, 4, (x[first::stride], np.int32(stride)))
        assert list(step.tensors["x"]) == [1, 2, 3, 4]
        assert list(x[first::stride]) == [2, 4, 6, 8]
