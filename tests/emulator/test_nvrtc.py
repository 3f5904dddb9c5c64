"""The emulator accepts what a GPU's compiler accepts, and refuses what it refuses."""

from pathlib import Path

import pytest

from gpu import nvrtc
from gpu.emulator import CompileError, RawModule, SourceError

HERE = Path(__file__).parent
INCLUDE = (f"-I{HERE.parents[1] / 'gpu' / 'kernels'}",)
TEXTS = sorted((HERE / "texts").rglob("*.cu"))
INSTANCES = {"template": ["scale<float, 7>", "scale<double, 0>", "scale<int, 3>"]}

pytestmark = pytest.mark.skipif(not nvrtc.available(), reason="the NVRTC wheel is not installed")


def compile_on_gpu(path, architecture, options=()):
    code = path.read_text()
    if "#include <" in code and "<assert.h>" not in code and not nvrtc.headers_available():
        pytest.skip("the wheels with the toolkit's headers are not installed")
    return nvrtc.compile_text(code, architecture, (*INCLUDE, *options), INSTANCES.get(path.stem, ()))


TWINS = [(p, ()) for p in TEXTS] + [(p, ("-DMENDED",)) for p in TEXTS if p.parent.name == "broken"]


@pytest.mark.parametrize(("path", "mended"), TWINS, ids=[f"{p.stem}{'-mended' if m else ''}" for p, m in TWINS])
def test_every_text_compiles_for_a_gpu(path, mended):
    compiled = compile_on_gpu(path, "sm_90", mended)
    assert compiled.cubin.startswith(b"\x7fELF")
    assert all(0 < u.registers <= 255 for u in compiled.usage.values())


@pytest.mark.parametrize("architecture", nvrtc.ARCHITECTURES)
def test_every_architecture(architecture):
    assert architecture in nvrtc.supported_architectures()
    for name in ("saxpy", "reduction", "transpose", "template"):
        compiled = compile_on_gpu(HERE / "texts" / f"{name}.cu", architecture)
        assert compiled.architecture == architecture
        assert compiled.usage


def test_figures_of_a_kernel():
    usage = compile_on_gpu(HERE / "texts" / "transpose.cu", "sm_80").usage
    # the tiles of the text: 32 x 32 floats, and 32 x 33
    assert usage["conflicts"].shared_nbytes == 32 * 32 * 4
    assert usage["padded"].shared_nbytes == 32 * 33 * 4
    assert usage["padded"].spill_store_nbytes == 0


INVALID = {
    "undeclared name": 'extern "C" __global__ void k(int* y) { *y = nothing; }',
    "missing semicolon": 'extern "C" __global__ void k(int* y) { *y = 1 }',
    "kernel with a result": 'extern "C" __global__ int k(int* y) { return *y; }',
    "host header": '#include <vector>\nextern "C" __global__ void k(int* y) { *y = 1; }',
    "shared initialiser": 'extern "C" __global__ void k(int* y) { __shared__ int s = 3; *y = s; }',
    "shared array initialiser": 'extern "C" __global__ void k(int* y) { __shared__ int s[2] = {1, 2}; *y = s[0]; }',
    "variable-length array": 'extern "C" __global__ void k(int* y, int n) { int a[n]; a[0] = 1; *y = a[0]; }',
    "write through const": 'extern "C" __global__ void k(const int* y) { *y = 1; }',
    "shuffle without mask": 'extern "C" __global__ void k(int* y) { *y = __shfl(*y, 0); }',
    "old ballot": 'extern "C" __global__ void k(int* y) { *y = __ballot(1); }',
    "assignment to an index": 'extern "C" __global__ void k(int* y) { threadIdx.x = 1; *y = 1; }',
    "wrong atomic type": 'extern "C" __global__ void k(short* y) { atomicAdd(y, (short)1); }',
    "half without its header": 'extern "C" __global__ void k(__half* y) { *y = *y; }',
    "exception": 'extern "C" __global__ void k(int* y) { if (*y) throw 1; }',
    "standard output": 'extern "C" __global__ void k(int* y) { std::cout << *y; }',
    "wrong number of arguments": 'extern "C" __global__ void k(int* y) { *y = atomicAdd(y); }',
    "unclosed bracket": 'extern "C" __global__ void k(int* y) { if (*y) { *y = 1; }',
    "unknown option of a name": 'extern "C" __global__ void k(int* y) { *y = threadIdx.w; }',
}


@pytest.mark.parametrize("name", INVALID)
def test_invalid_texts_are_refused_by_both(name):
    with pytest.raises(nvrtc.NvrtcError):
        nvrtc.compile_text(INVALID[name], "sm_80")
    with pytest.raises((CompileError, SourceError)):
        RawModule(code=INVALID[name]).compile()


VALID = {
    "assert without a header": 'extern "C" __global__ void k(int* y) { assert(*y >= 0); *y = 1; }',
    "printf without a header": 'extern "C" __global__ void k(int* y) { printf("%d", *y); }',
    "fixed-width types": '#include <cstdint>\nextern "C" __global__ void k(uint32_t* y) { *y = 1; }',
    "static shared": 'extern "C" __global__ void k(int* y) { static __shared__ int s[2]; s[0] = 1; *y = s[0]; }',
    "volatile shared": 'extern "C" __global__ void k(int* y) { volatile __shared__ int s[2]; s[0] = 1; *y = s[0]; }',
    "two names of dynamic memory": (
        "extern __shared__ int a[];\n"
        'extern "C" __global__ void k(int* y) { extern __shared__ float b[]; b[0] = 1; *y = a[1]; }'
    ),
    "extern C block": 'extern "C" { __global__ void k(int* y) { *y = 1; }\n__global__ void l(int* y) { *y = 2; } }',
    "bounds after the name of the type": (
        'extern "C" __global__ __launch_bounds__(32 * 4) void k(int* y) { dim3 d = gridDim; *y = d.x + blockDim.x; }'
    ),
    "union of a vector and an array": (
        'extern "C" __global__ void k(const float4* x, float* y) '
        "{ union { float4 v; float f[4]; } u; u.v = x[0]; y[0] = u.f[2]; }"
    ),
    "vector literals": (
        'extern "C" __global__ void k(float4* y) { float4 a = {1, 2, 3, 4}; float2 b{1.f, 2.f}; '
        "a.x += b.y; y[0] = a; y[1] = float4{0, 1, 2, 3}; y[2] = make_float4(1, 2, 3, 4); }"
    ),
    "lambda and auto": 'extern "C" __global__ void k(int* y) { auto f = [](int a) { return 2 * a; }; *y = f(*y); }',
    "constexpr and if constexpr": (
        "template <bool B> __device__ int f() { if constexpr (B) return 1; else return 2; }\n"
        'extern "C" __global__ void k(int* y) { constexpr int n = 3; *y = f<n == 3>(); }'
    ),
    "pragma unroll": 'extern "C" __global__ void k(int* y) {\n#pragma unroll\nfor (int i = 0; i < 4; i++) y[i] = i; }',
    "min and max": 'extern "C" __global__ void k(float* y, int n) { y[0] = max(min(n, 3), 1) + fmaxf(y[0], 1.f); }',
}


@pytest.mark.parametrize("name", VALID)
def test_valid_texts_are_accepted_by_both(name):
    if "#include <cstdint>" in VALID[name] and not nvrtc.headers_available():
        pytest.skip("the wheels with the toolkit's headers are not installed")
    code = VALID[name].replace("<cstdint>", "<cuda/std/cstdint>\nusing cuda::std::uint32_t;")
    nvrtc.compile_text(code, "sm_80")
    RawModule(code=VALID[name]).compile()
