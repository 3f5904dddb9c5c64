"""Options, headers and compilers: what goes into a compiled text, and what is said when it can't be."""

import re

import numpy as np
import pytest

from gpu import emulator
from gpu.emulator import CompileError, RawKernel, SourceError


def test_options_and_headers(tmp_path):
    (tmp_path / "twice.cuh").write_text(
        "#pragma once\n"
        "__device__ inline float twice(float x) { extern __shared__ float s[]; s[0] = x; return 2 * s[0]; }\n"
    )
    code = '#include "twice.cuh"\nextern "C" __global__ void k(float* y) { *y = N * twice(*y); }'
    y = np.ones(1, np.float32)
    options = (f"-I{tmp_path}", "-DN=3", "--use_fast_math", "-std=c++14", "--gpu-architecture=sm_90")
    RawKernel(code, "k", options)(1, 1, (y,), shared_mem=4)
    assert y[0] == 6
    # a changed header is another kernel
    (tmp_path / "twice.cuh").write_text("#pragma once\n__device__ inline float twice(float x) { return 4 * x; }\n")
    RawKernel(code, "k", options)(1, 1, (y,))
    assert y[0] == 72
    with pytest.raises(ValueError, match="unknown compiler option '--fast'"):
        RawKernel(code, "k", ("--fast",))(1, 1, (y,))


def test_compile_errors_name_the_line_of_the_text():
    with pytest.raises(CompileError, match=r"kernel\.cu:3:\d+: error: .*undefined_thing"):
        RawKernel(
            'extern "C" __global__ void k(int* y) {\n    int x = 0;\n    *y = undefined_thing + x;\n}', "k"
        ).compile()


TEMPLATE = "template <typename T> __global__ void f(T* x) { *x = 1; }"
OPEN = 'extern "C" __global__ void k(int* y) {\n    if (*y) {\n        *y = 1;\n}\n'
NUMBER = 'extern "C" __global__ int k(int* y) { return *y; }'
REFERENCE = 'extern "C" __global__ void k(int& y) { y = 1; }'


@pytest.mark.parametrize("compiler", [None, "zig"])
@pytest.mark.parametrize(
    ("code", "names", "message"),
    [
        (TEMPLATE, ("f<float>", "f<__half>"), r"name expression f<__half>: error: .*__half.*"),
        (TEMPLATE, ("g<float>",), r"name expression g<float>: error: .*'g'.*"),
        (OPEN, (), r"kernel\.cu:1:38: error: the bracket that opens here is never closed"),
        (NUMBER, (), ".*error: a kernel must return void"),
        (REFERENCE, (), ".*error: a kernel takes no references: pass a pointer"),
    ],
)
def test_compile_errors_are_about_the_text(code, names, message, compiler):
    """And not about the table of kernels that the emulator puts behind it."""
    if compiler == "zig":
        pytest.importorskip("ziglang")
    with pytest.raises(CompileError) as caught:
        emulator.RawModule(code=code, name_expressions=names, compiler=compiler).compile()
    said = str(caught.value).replace("‘", "'").replace("’", "'").splitlines()
    errors = [line for line in said if "error:" in line]
    assert len(errors) == 1
    assert re.fullmatch(message, errors[0])
    assert not [line for line in said if "refsim" in line or "REFSIM" in line]


CONDITIONAL = """#if 0
extern "C" __global__ void gone(float* x) { nothing; }
#endif
#ifdef WIDE
extern "C" __global__ void k(double* x, int n) {
    x[n] = 1;
}
#elif N > 4 && \\
    N < 8
extern "C" __global__ void k(int* x) { x[1] = N; }
#else /* the
usual */
extern "C" __global__ void k(float* x) {
    x[2] = 1;
}
#endif
extern "C" __global__ void last(float* x) {
    x[3] = 2;
}
"""


@pytest.mark.parametrize("compiler", [None, "zig"])
def test_kernels_that_are_compiled_out(compiler):
    """The table of kernels has none that the preprocessor takes away, and lines stay what they are."""
    if compiler == "zig":
        pytest.importorskip("ziglang")

    def line(options, name, x, *rest):
        module = emulator.RawModule(code=CONDITIONAL, options=options, compiler=compiler)
        with pytest.raises(emulator.KernelError, match="out of bounds") as caught:
            module.get_function(name)(1, 1, (x, *rest))
        return caught.value.report.line, caught.value.report.source

    one = np.zeros(1, np.float32)
    assert line((), "k", one) == (14, "x[2] = 1;")
    assert line(("-DN=5",), "k", np.zeros(1, np.int32)) == (10, 'extern "C" __global__ void k(int* x) { x[1] = N; }')
    assert line(("-DWIDE",), "k", np.zeros(1), np.int32(9)) == (6, "x[n] = 1;")
    for options in ((), ("-DN=5",), ("-DWIDE",)):
        assert line(options, "last", one) == (18, "x[3] = 2;")
    with pytest.raises(ValueError, match="no kernel 'gone': the text's #if compiles `gone` out"):
        emulator.RawModule(code=CONDITIONAL, compiler=compiler).get_function("gone")
    with pytest.raises(SourceError, match="all kernels of the text are compiled out by its #if: gone"):
        RawKernel(CONDITIONAL[: CONDITIONAL.index("#ifdef")], "gone", compiler=compiler)(1, 1, (one,))


def test_kernels_that_a_macro_makes():
    code = """
#define KERNEL(name, value) \\
    extern "C" __global__ void name(int* x) { *x = value; }
KERNEL(one, 1)
KERNEL(two, 2)
"""
    x = np.zeros(1, np.int32)
    RawKernel(code, "two")(1, 1, (x,))
    assert x[0] == 2
    module = emulator.RawModule(code=code, name_expressions=["one", "two"])
    module.get_function("one")(1, 1, (x,))
    assert x[0] == 1


def test_a_template_is_named_with_its_arguments():
    with pytest.raises(CompileError, match="error: a name of several functions is no kernel's"):
        emulator.RawModule(
            code="__global__ void k(float* x) { }\n__global__ void k(int* x) { }", name_expressions=["k"]
        ).compile()
    with pytest.raises(SourceError, match="name expression 'f' is a template: give its arguments, as in f<float>"):
        emulator.RawModule(code=TEMPLATE, name_expressions=["f"]).compile()


def test_a_missing_compiler_is_explained(monkeypatch):
    from gpu.emulator.toolchain import CompilerNotFound, find_compiler

    with pytest.raises(CompilerNotFound, match="'no-such-compiler'"):
        find_compiler("no-such-compiler")
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    find_compiler.cache_clear()
    with pytest.raises(CompilerNotFound, match="pip install ziglang"):
        find_compiler()
    find_compiler.cache_clear()


HEADER = """#pragma once
__device__ inline float near(const float* x, int i) {
    return x[i];  // READ
}
__device__ __noinline__ float far(const float* x, int i) {
    __syncthreads();
    return x[i];
}
"""


@pytest.mark.parametrize(
    ("name", "line", "place"),
    [("near", 3, "near.cuh line 3: return x[i];"), ("far", 0, "near.cuh line 7: return x[i];")],
)
def test_a_finding_in_a_header_names_the_header(tmp_path, name, line, place):
    (tmp_path / "inc").mkdir()
    (tmp_path / "inc" / "near.cuh").write_text(HEADER)
    code = f"""#include "inc/near.cuh"
extern "C" __global__ void k(const float* x, float* y) {{
    *y = {name}(x, 9);
}}"""
    kernel = RawKernel(code, "k", (f"-I{tmp_path}",))
    with pytest.raises(emulator.KernelError, match="out of bounds") as caught:
        kernel(1, 1, (np.zeros(4, np.float32), np.zeros(1, np.float32)))
    report = caught.value.report
    assert report.line == line
    assert report.header.startswith(place)
    assert place in str(report)
    assert "unknown line" not in str(report)


def test_options_that_stand_for_lines_of_the_text(tmp_path):
    (tmp_path / "first.cuh").write_text("#pragma once\n__device__ inline int two() { return 2; }\n")
    code = 'extern "C" __global__ void k(int* y) { *y = SUM(two(), 3) + (M_PI_4 > 0); }'
    options = (f"-I{tmp_path}", "--pre-include=first.cuh", "-DSUM(a,b)=((a)+(b))", "-D", "M_PI_4=1")
    y = np.zeros(1, np.int32)
    RawKernel(code, "k", options)(1, 1, (y,))
    assert y[0] == 6
    with pytest.raises(ValueError, match="'-D' is the last and lacks its value"):
        RawKernel(code, "k", ("-D",)).compile()


def test_dynamic_memory_declared_in_nested_headers(tmp_path):
    """Such headers are compiled from rewritten copies: their lines and their neighbours must stay what they were."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "pool.cuh").write_text(
        '#pragma once\n#include "size.cuh"\n'
        "__device__ inline float* pool() {\n    extern __shared__ float s[];\n    return s + SIZE;\n}\n"
        "__device__ __noinline__ void put(float x) {\n    *pool() = x;\n}\n"
    )
    (tmp_path / "in" / "size.cuh").write_text("#define SIZE 3\n")
    code = '#include "in/pool.cuh"\nextern "C" __global__ void k(float* y) { put(5); *y = *pool(); }'
    kernel, y = RawKernel(code, "k", (f"-I{tmp_path}",)), np.zeros(1, np.float32)
    kernel(1, 1, (y,), shared_mem=16)
    assert y[0] == 5
    with pytest.raises(emulator.KernelError, match=r"pool\.cuh line 8: \*pool\(\) = x;"):
        kernel(1, 1, (y,), shared_mem=12)
