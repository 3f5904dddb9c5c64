"""CuPy's way of calling, and what is refused with a reason."""

import subprocess
import sys

import numpy as np
import pytest

from gpu import emulator
from gpu.emulator import LaunchError, RawKernel, RawModule, SourceError

ADD = r"""
extern "C" __global__ void add(const float* x, float* y, float a, int n, bool on) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && on) y[i] += a * x[i];
}
"""


@pytest.fixture(scope="module")
def add():
    return RawKernel(ADD, "add")


def arrays():
    return np.ones(8, np.float32), np.zeros(8, np.float32)


def test_cupys_calling_form(add):
    x, y = arrays()
    assert add((1,), (8,), (x, y, np.float32(2), 8, True)) is None
    assert (y == 2).all()
    add(1, (8, 1, 1), [x, y, np.float32(2), np.int64(4), np.bool_(True)], shared_mem=0)
    assert list(y) == [4, 4, 4, 4, 2, 2, 2, 2]
    add(1, 8, (x, y, np.float32(2), 8, False))
    assert y.sum() == 24
    assert add.name == "add"
    assert add.attributes["max_threads_per_block"] == 1024


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({2: 2.0}, r"argument 2 \(`a`\).*float of 4 bytes.*float32"),
        ({2: np.float64(2)}, "float32"),
        ({2: 2}, "float32"),
        ({3: 2**31}, "does not fit"),
        ({3: 8.0}, "Pass an integer"),
        ({3: np.zeros(3, np.int32)}, r"`n`.*given an array of shape \(3,\)"),
        ({0: np.ones(8)}, r"`x`.*float64 \(8 bytes an element\).*4 bytes"),
        ({0: 5}, "pass a NumPy array, or None"),
        ({0: list(range(1000))}, r"given \[0, 1, 2, 3, 4, 5, \.\.\.\] \(list\): pass a NumPy array"),
        ({0: np.ones(8, ">f4")}, r"`x`.*array of >f4, whose bytes a kernel would read in the wrong order"),
        ({0: np.ones(8, np.int32)}, r"array of int32\. A GPU would read its raw bytes: .*float32"),
        ({0: np.ones(8, bool)}, "array of bool"),
        ({0: np.array(list("abcdefgh"))}, "array of <U1"),
        ({3: "8"}, r"`n`.*is an int of 4 bytes, but was given '8'"),
    ],
)
def test_arguments_that_do_not_fit(add, change, message):
    args = [*arrays(), np.float32(1), 8, True]
    for i, value in change.items():
        args[i] = value
    with pytest.raises(TypeError, match=message):
        add(1, 8, args)


@pytest.mark.parametrize(
    ("parameter", "fits", "does_not"),
    [
        ("double* p", ["f8"], ["c8", "i8", "M8[s]", "O"]),
        ("int* p", ["i4", "u4"], ["f4", "?"]),
        ("unsigned short* p", ["u2", "i2", "f2", "bfloat16"], ["?"]),  # 16-bit floats, by their bits
        ("bool* p", ["?", "i1"], ["i8"]),
        ("unsigned* p", ["u1", "f4", "float8_e4m3fn"], ["f8"]),  # bytes are a buffer for anything
        ("void* p", ["f4", "i8", "?"], ["O", ">f4"]),
        ("float2* p", ["f4", "f8", "c8"], ["O"]),
    ],
)
def test_what_arrays_pointers_take(parameter, fits, does_not):
    kernel = RawKernel(f'extern "C" __global__ void k({parameter}) {{ }}', "k")
    for dtype in fits:
        kernel(1, 1, (np.zeros(8, dtype),))
    for dtype in does_not:
        with pytest.raises(TypeError, match=r"argument 0 \(`p`\) of kernel `k` is a pointer to"):
            kernel(1, 1, (np.zeros(8, dtype),))


def test_python_objects_never_reach_a_kernel():
    """A kernel would write over references: of an array, of a struct, or of whatever else has 8 bytes."""
    write = RawKernel('extern "C" __global__ void k(double* x) { x[threadIdx.x] = 1; }', "k")
    with pytest.raises(TypeError, match="array of Python objects"):
        write(1, 2, (np.array([{}, "a"], object),))
    with pytest.raises(TypeError, match="array of Python objects"):
        write(1, 1, (np.zeros(1, [("a", object)]),))
    with pytest.raises(TypeError, match="not Python objects"):
        emulator.empty(3, object)
    take = RawKernel('struct S { double x; }; extern "C" __global__ void k(S s) { }', "k")
    for value in (None, {}, object(), np.zeros((), [("a", object)])[()]):
        with pytest.raises(TypeError, match=r"is a struct of 8 bytes.*Pass a NumPy scalar of 8 bytes"):
            take(1, 1, (value,))


@pytest.mark.parametrize("args", [np.ones(3), None, 5, "xyz"])
def test_arguments_are_a_tuple(add, args):
    with pytest.raises(TypeError, match=r"arguments of kernel `add` \(x, y, a, n, on\) must be a tuple, got"):
        add(1, 8, args)


def test_a_wrong_number_of_arguments(add):
    with pytest.raises(TypeError, match=r"takes 5 arguments \(x, y, a, n, on\), but was given 2"):
        add(1, 8, arrays())


@pytest.mark.parametrize(
    ("grid", "block", "shared", "message"),
    [
        (0, 8, 0, "positive"),
        (1.0, 8, 0, "grid must be one to three positive whole numbers, not 1.0"),
        (1, None, 0, "block must be"),
        (1, 8, -1, "shared_mem must be a whole number of bytes, not -1"),
        (1, 8, "16", "shared_mem must be a whole number"),
        (1, 8, 16.5, "shared_mem must be a whole number"),
        (1, (2, 3, 4, 5), 0, "one to three"),
        (1, 1025, 0, "at most 1024"),
        (1, (1, 1, 65), 0, "64 along z"),
        ((1, 65536), 8, 0, "too large"),
        (1, 8, 48 * 1024 + 1, "max_dynamic_shared_size_bytes"),
    ],
)
def test_launches_that_no_device_takes(add, grid, block, shared, message):
    with pytest.raises(LaunchError, match=message):
        add(grid, block, (*arrays(), np.float32(1), 8, True), shared_mem=shared)


def test_more_shared_memory_on_request():
    code = r"""
extern "C" __global__ void k(float* y) {
    extern __shared__ float s[];
    s[threadIdx.x] = 1;
    y[threadIdx.x] = s[threadIdx.x];
}"""
    kernel = RawKernel(code, "k")
    y = np.zeros(4, np.float32)
    kernel.max_dynamic_shared_size_bytes = 100_000
    kernel(1, 4, (y,), shared_mem=100_000)
    assert (y == 1).all()
    kernel.max_dynamic_shared_size_bytes = 300_000
    with pytest.raises(LaunchError, match="no device has more than 232448"):
        RawKernel(code, "k").launch(1, 4, (y,), shared_mem=300_000, shared_limit=232_448)


def test_static_shared_memory_and_launch_bounds_are_limits_too():
    big = r"""
extern "C" __global__ void k(float* y) {
    __shared__ float s[13000];
    s[threadIdx.x] = 1;
    y[threadIdx.x] = s[threadIdx.x];
}"""
    with pytest.raises(LaunchError, match="52000 bytes of static shared memory"):
        RawKernel(big, "k")(1, 4, (np.zeros(4, np.float32),))
    bound = 'extern "C" __global__ void __launch_bounds__(64, 2) k(float* y) { y[threadIdx.x] = 1; }'
    kernel = RawKernel(bound, "k")
    kernel(1, 64, (np.zeros(64, np.float32),))
    with pytest.raises(LaunchError, match="at most 64 threads"):
        kernel(1, 65, (np.zeros(65, np.float32),))
    table = """__constant__ float c[16385];
extern "C" __global__ void k(float* y) { y[threadIdx.x] = c[threadIdx.x]; }"""
    with pytest.raises(LaunchError, match="__constant__ variables take 65540 bytes; there are 65536"):
        RawKernel(table, "k")(1, 4, (np.zeros(4, np.float32),))
    RawKernel(table.replace("16385", "16384"), "k")(1, 4, (np.zeros(4, np.float32),))
    greedy = 'extern "C" __global__ void __launch_bounds__(1024, 3) k(float* y) { y[threadIdx.x] = 1; }'
    with pytest.raises(LaunchError, match="3072 resident threads"):
        RawKernel(greedy, "k")(1, 64, (np.zeros(64, np.float32),))


NAMES = r"""
template <int N> __global__ void t(int* y) { *y = N; }
extern "C" __global__ void c(int* y) { *y = 1; }
__global__ void cpp(int* y) { *y = 2; }
"""


def test_names_of_kernels():
    module = RawModule(code=NAMES, name_expressions=["t<7>", "cpp"])
    y = np.zeros(1, np.int32)
    for name, value in (("t<7>", 7), ("c", 1), ("cpp", 2)):
        module.get_function(name)(1, 1, (y,))
        assert y[0] == value
    with pytest.raises(ValueError, match="is a template"):
        module.get_function("t")
    with pytest.raises(ValueError, match="the module has c, t<7>, cpp"):
        module.get_function("nothing")
    with pytest.raises(SourceError, match='no extern "C"'):
        RawModule(code="__global__ void cpp(int* y) { *y = 2; }").get_function("cpp")


def test_module_variables():
    code = r"""
__constant__ float weights[4];
__device__ int calls = 10;
extern "C" __global__ void k(float* y) {
    y[threadIdx.x] = weights[threadIdx.x];
    if (threadIdx.x == 0) calls += 1;
}"""
    module = RawModule(code=code)
    module.get_global("weights").view(np.float32)[:] = [1, 2, 3, 4]
    y = np.zeros(4, np.float32)
    for _ in range(3):
        module.get_function("k")(1, 4, (y,))
    assert list(y) == [1, 2, 3, 4]
    assert module.get_global("calls").view(np.int32)[0] == 13
    with pytest.raises(KeyError, match="has weights, calls"):
        module.get_global("nothing")


def test_structs_by_value_and_null_pointers():
    code = r"""
struct Shape { int n; float scale; };
extern "C" __global__ void k(Shape s, const float* bias, float* y) {
    if (threadIdx.x < s.n) y[threadIdx.x] = s.scale + (bias ? bias[threadIdx.x] : 0.0f);
}"""
    shape = np.array((2, 1.5), np.dtype([("n", np.int32), ("scale", np.float32)]))[()]
    y = np.zeros(4, np.float32)
    RawKernel(code, "k")(1, 4, (shape, None, y))
    assert list(y) == [1.5, 1.5, 0, 0]
    with pytest.raises(TypeError, match=r"4 bytes\. Pass a NumPy scalar of 8 bytes"):
        RawKernel(code, "k")(1, 4, (np.int32(1), None, y))


def test_device_printf_comes_in_the_order_of_blocks(capsys):
    code = r"""
#include <cstdio>
extern "C" __global__ void k(int n) {
    if (threadIdx.x == 0) printf("block %d of %d: %s %.2f\n", blockIdx.x, n, "yes", 0.5f);
}"""
    kernel = RawKernel(code, "k")
    kernel(8, 512, (np.int32(8),))
    expected = "".join(f"block {i} of 8: yes 0.50\n" for i in range(8))
    assert capsys.readouterr().out == expected
    assert kernel.trace.printed == expected


def test_printf_beyond_what_is_kept_is_told(capsys):
    code = r"""
extern "C" __global__ void k(int n) {
    for (int i = 0; i < n; i++) printf("%05d 456789012345678901234567890123456789012\n", i);
}"""
    kernel = RawKernel(code, "k")
    kernel(1, 1, (np.int32(30_000),))
    said = capsys.readouterr().out
    each = len("00000 456789012345678901234567890123456789012\n") + 8  # with the head of a message
    assert said.endswith(f"keeps 1,048,576 bytes of device printf; {30_000 * each - 2**20:,} more are lost]\n")
    assert said.count("456789012345678901234567890123456789012") == 2**20 // each
    assert said == kernel.trace.printed


def test_an_outcome_is_read_at_a_glance(add):
    x, y = arrays()
    outcome = emulator.run(add, 1, 16, (x, y, np.float32(1), 16, True), checks="report")
    said = str(outcome).splitlines()
    assert said[: len(str(outcome.trace).splitlines())] == str(outcome.trace).splitlines()
    assert [line for line in said if line.startswith("out of bounds in kernel `add`")]
    assert said[-1].endswith(" ms on the emulator")
    untraced = emulator.run(ADD, 1, 8, (x, y, np.float32(1), 8, True), name="add", traced=False)
    assert str(untraced).startswith("compiled untraced: nothing was counted\n")
    with pytest.raises(ValueError, match="direction must be one of read, write, atomic or None, got 'load'"):
        outcome.trace.nbytes("x", "load")


def test_untraced_kernels_give_values_and_no_trace():
    x, y = arrays()
    kernel = RawKernel(ADD, "add", traced=False)
    kernel(1, 8, (x, y, np.float32(3), 8, True))
    assert (y == 3).all()
    assert kernel.trace is None


def test_modes_of_checks(add):
    x, y = arrays()
    outcome = emulator.run(add, 1, 16, (x, y, np.float32(1), 16, True), checks={"out_of_bounds": "report"})
    assert {r.check for r in outcome.reports} == {"out_of_bounds"}
    assert sum(r.count for r in outcome.reports) == 3 * 8  # 8 threads too many: x is read, y read and written
    assert {r.tensor for r in outcome.reports} == {"x", "y"}
    assert (y == 1).all()
    outcome = emulator.run(add, 1, 16, (x, y, np.float32(1), 16, True), checks="ignore")
    assert outcome.reports == []
    with pytest.raises(ValueError, match="no check 'bounds'"):
        emulator.run(add, 1, 8, (), checks={"bounds": "raise"})
    with pytest.raises(ValueError, match="no mode 'warn'"):
        emulator.run(add, 1, 8, (), checks="warn")


@pytest.mark.parametrize(
    ("setting", "value"),
    [("workers", 0), ("workers", "2"), ("timeout", 0), ("stack_nbytes", 0), ("stack_nbytes", -1), ("accesses", -1)],
)
def test_settings_out_of_range(add, setting, value):
    with pytest.raises(ValueError, match=f"{setting} must be .* got {value!r}"):
        emulator.run(add, 1, 8, (*arrays(), np.float32(1), 8, True), **{setting: value})


def test_the_smallest_stack_is_enough_for_a_simple_kernel(add):
    x, y = arrays()
    emulator.run(add, 1, 8, (x, y, np.float32(1), 8, True), stack_nbytes=16 * 1024)
    assert (y == 1).all()


def test_what_is_no_kernel_and_no_options():
    with pytest.raises(TypeError, match=r"module\.get_function\(name\), got RawModule"):
        emulator.run(RawModule(code=ADD), 1, 8, ())
    with pytest.raises(TypeError, match="options must be a tuple of strings, got '-DN=1', one string"):
        RawKernel(ADD, "add", "-DN=1")
    with pytest.raises(TypeError, match="name_expressions must be a tuple of strings"):
        RawModule(code=ADD, name_expressions="add")


def test_nothing_here_needs_cupy_or_a_gpu():
    """With cupy impossible to import, everything imports and a kernel runs."""
    program = (
        "import sys; sys.modules['cupy'] = None\n"
        "import numpy as np, gpu, gpu.runtime\nfrom gpu import emulator\n"
        "x = np.zeros(2, np.float32)\n"
        "emulator.RawKernel('extern \"C\" __global__ void f(float* x) { x[threadIdx.x] = 1; }', 'f')(1, 2, (x,))\n"
        "assert x.sum() == 2 and gpu.runtime.get('auto').name == 'emulator'\n"
        "assert 'matplotlib' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
