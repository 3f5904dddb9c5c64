"""Nothing that a kernel does takes Python down, and nothing of it is left behind."""

import os
import signal
import threading
import time

import numpy as np
import pytest

from gpu import emulator
from gpu.emulator import KernelError, RawKernel

X = np.arange(64, dtype=np.float32)


# In a traced kernel these are seen before they fault; untraced, the fault is what there is to see.
WILD = [
    ("x[threadIdx.x + 5000000] = 1;", "memory fault at element 5000"),
    ("x[-3000000] = 1;", "memory fault"),
    ("*(volatile float*)0x123456789000 = 1;", "foreign memory"),
]
CRASHES = [
    ("*(volatile float*)nullptr = 1;", "memory fault at address 0x0: a null pointer"),
    ("volatile int zero = 0; x[0] = 100 / zero;", "division by zero"),
    ("volatile float big[100000]; big[threadIdx.x] = 1; x[0] = big[3];", "stack overflow"),
    ("__trap();", "__trap"),
    ("__builtin_trap();", "illegal instruction"),
    ("if (threadIdx.x == 5) abort();", r"thread \(5, 0, 0\)\n  line 2: if .*\n  abort\(\) was called"),
    ("if (threadIdx.x == 5) exit(0);", r"thread \(5, 0, 0\)\n  line 2: if .*\n  exit\(\) was called"),
]


@pytest.mark.parametrize(
    ("body", "message", "traced"),
    [(*c, t) for c in CRASHES for t in (True, False)] + [(*c, False) for c in WILD],
)
def test_a_crash_is_a_report(body, message, traced):
    code = f'extern "C" __global__ void k(float* x) {{\n    {body}\n}}'
    x = X.copy()
    checks = {"out_of_bounds": "ignore", "race": "ignore"}
    with pytest.raises(KernelError, match=message) as caught:
        RawKernel(code, "k", traced=traced, checks=checks)(1, 32, (x,))
    assert caught.value.report.check == "crash"
    # room for locals is taken on entry, to which Clang gives no line
    assert caught.value.report.line in ((0, 1) if message == "stack overflow" else (2,))
    np.testing.assert_array_equal(x, X)


@pytest.mark.parametrize("traced", [True, False])
def test_a_stack_that_overflows_below_the_kernel(traced):
    """The fault may be in the emulator, on behalf of the kernel: the line is that of the call."""
    code = r"""
__device__ __noinline__ int deeper(int n, volatile int* p) {
    volatile int a[64];
    a[n % 64] = *p;
    return n ? deeper(n - 1, p) + a[1] : a[0];
}
extern "C" __global__ void k(volatile int* y, int n, int pad) {
    volatile char* room = (volatile char*)__builtin_alloca(16 * pad + 16);
    room[0] = 1;
    if (threadIdx.x == 1) y[0] = deeper(n, y);  // below its stack is that of thread 0, with a page between
}"""
    y, kernel = np.zeros(1, np.int32), RawKernel(code, "k", traced=traced)
    for pad in range(0, 24, 3):  # so that now this and now that is the first to find no room
        with pytest.raises(KernelError, match="stack overflow") as caught:
            # 250 frames of at least 256 bytes; and no whole number of pages
            emulator.run(kernel, 1, 2, (y, np.int32(250), np.int32(pad)), stack_nbytes=50_000)
        assert 2 <= caught.value.report.line <= 5
        assert y[0] == 0


def test_bigger_stacks_on_request():
    code = r"""extern "C" __global__ void k(float* x) {
    volatile float big[100000];
    big[threadIdx.x] = threadIdx.x;
    x[threadIdx.x] = big[threadIdx.x];
}"""
    x = np.zeros(4, np.float32)
    emulator.run(code, 1, 4, (x,), name="k", stack_nbytes=1 << 20)
    assert list(x) == [0, 1, 2, 3]


def test_an_endless_loop_is_given_up():
    code = 'extern "C" __global__ void k(volatile float* x) { while (x[0] == 0) { } }'
    x = np.zeros(1, np.float32)
    for traced in (True, False):
        begin = time.monotonic()
        place = r"longer than 0\.3 s.*\n  block \(0, 0, 0\), thread \(0, 0, 0\) was still running at line 1: extern"
        with pytest.raises(TimeoutError, match=place):
            emulator.run(code, 1, 1, (x,), name="k", traced=traced, timeout=0.3)
        assert time.monotonic() - begin < 30  # and not for ever


def test_a_kernel_that_goes_round_and_round_says_where():
    code = r"""
extern "C" __global__ void k(int* x) {
    for (int i = 0; true; i++) {
        __syncthreads();
    }
}"""
    with pytest.raises(TimeoutError, match=r"\n  block .* was still running(?: at line [345]: .*)?$"):
        emulator.run(code, 2, 64, (np.zeros(1, np.int32),), name="k", timeout=0.2)


def test_a_worker_that_leaves_early_is_no_success():
    code = r"""
extern "C" void _exit(int);
extern "C" __global__ void k(float* x) {
    if (blockIdx.x == 1) _exit(0);
    if (threadIdx.x == 0) x[blockIdx.x] = 1;
}"""
    x = np.zeros(4, np.float32)
    with pytest.raises(RuntimeError, match="a worker of kernel `k` ended before its blocks were done"):
        RawKernel(code, "k")(4, 32, (x,))
    assert not x.any()


def test_a_killed_worker_is_an_error():
    code = 'extern "C" __global__ void k(volatile float* x) { while (x[0] == 0) { } }'
    from gpu.emulator.launch import Running
    from gpu.emulator.limits import modes
    from gpu.emulator.settings import Settings

    kernel = RawKernel(code, "k")
    running = Running(
        kernel._loaded, kernel.entry, (1, 1, 1), (1, 1, 1), (np.zeros(1, np.float32),), 0, Settings(modes(None))
    )
    with running.prepared():
        running.start()
        os.kill(running.workers.pids[0], signal.SIGKILL)
        with pytest.raises(RuntimeError, match="was it killed"):
            running.wait()


def test_no_worker_and_no_descriptor_stays():
    kernel = RawKernel('extern "C" __global__ void k(float* x) { x[threadIdx.x] += 1; }', "k")
    x = np.zeros(64, np.float32)
    kernel(1, 64, (x,))
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    for _ in range(20):
        kernel(1, 64, (x,))
    with pytest.raises(KernelError):
        kernel(1, 65, (x,))
    assert (x == 21).all()
    if before:
        assert len(os.listdir("/proc/self/fd")) == before
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_launches_from_several_threads():
    kernel = RawKernel('extern "C" __global__ void k(float* x, float a) { x[threadIdx.x] += a; }', "k")
    arrays = [np.zeros(64, np.float32) for _ in range(4)]

    def work(i):
        for _ in range(5):
            kernel(1, 64, (arrays[i], np.float32(i)))

    workers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert [a[0] for a in arrays] == [0, 5, 10, 15]


def test_a_local_array_and_pointers_to_it_are_no_traffic():
    code = r"""
__device__ void fill(float* p, int n) { for (int i = 0; i < n; i++) p[i] = i; }
extern "C" __global__ void k(float* y, int n) {
    float local[32];
    fill(local, n);
    y[threadIdx.x] = local[threadIdx.x % n];
}"""
    y = np.zeros(64, np.float32)
    kernel = RawKernel(code, "k")
    kernel(1, 64, (y, np.int32(32)))
    np.testing.assert_array_equal(y, np.arange(64) % 32)
    assert kernel.trace.nbytes() == y.nbytes


def test_tables_of_constants_are_no_traffic():
    code = r"""
static const float table[4] = {1, 2, 4, 8};
extern "C" __global__ void k(float* y) { y[threadIdx.x] = table[threadIdx.x % 4]; }"""
    y = np.zeros(8, np.float32)
    kernel = RawKernel(code, "k")
    kernel(1, 8, (y,))
    assert list(y) == [1, 2, 4, 8] * 2
    assert kernel.trace.nbytes() == y.nbytes
