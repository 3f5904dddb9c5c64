"""The readers of symbols and lines, against the binutils where they are installed; and the readers of kernel texts."""

import shutil
import subprocess

import pytest

from gpu.emulator.build import build
from gpu.emulator.elf import Elf
from gpu.emulator.lines import KERNEL, Lines
from gpu.emulator.options import host_options
from gpu.emulator.source import SourceError, find_constants, find_kernels, rewrite, without_comments


@pytest.mark.skipif(shutil.which("addr2line") is None, reason="addr2line is not installed")
@pytest.mark.parametrize("name", ["reduction", "transpose", "cooperative", "half2", "broken/overflow"])
def test_lines_agree_with_addr2line(text, name):
    module = build(text(name))
    elf = Elf(module.path)
    lines = Lines(elf)
    start, nbytes = elf.sections[".text"][3], elf.sections[".text"][5]
    addresses = range(start, start + nbytes, 3)
    command = ["addr2line", "-a", "-i", "-e", str(module.path), *map(hex, addresses)]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    chains = [part.split("\n")[1:] for part in out.split("0x")[1:]]
    assert len(chains) == len(addresses)
    found = 0
    for address, chain in zip(addresses, chains, strict=True):
        places = [p.split(" ")[0].rsplit(":", 1) for p in chain if ":" in p]
        ours = [int(line) for file, line in places if file.endswith(KERNEL) and line.isdigit() and line != "0"]
        assert lines.find(address) == (ours[0] if ours else 0), hex(address)
        found += bool(ours)
    assert found > 20


@pytest.mark.skipif(shutil.which("nm") is None, reason="nm is not installed")
def test_symbols_agree_with_nm(text):
    module = build(text("histogram"))
    out = subprocess.run(["nm", "-S", str(module.path)], capture_output=True, text=True, check=True).stdout
    theirs = {w[3]: (int(w[0], 16), int(w[1], 16)) for w in map(str.split, out.splitlines()) if len(w) == 4}
    ours = {s.name: s for s in Elf(module.path).variables()}
    local = next(s for s in ours.values() if s.short == "local")
    assert local.nbytes == 1024
    assert local.local_static
    assert local.owner.startswith("9histogram")
    for name, symbol in ours.items():
        assert theirs[name] == (symbol.address, symbol.nbytes)


def test_a_file_that_is_no_object(tmp_path):
    (tmp_path / "x.so").write_bytes(b"nothing of the kind")
    with pytest.raises(ValueError, match="not a 64-bit little-endian ELF file"):
        Elf(tmp_path / "x.so")


def test_kernels_of_a_text():
    code = r"""
// __global__ void commented_out(int x) {}
const char* s = "__global__ void in_a_string(int x)";
extern "C" { __global__ void first(const float* __restrict__ x, float y[], int n = 3, dim3 d) {} }
template <typename T, int N> __global__ void __launch_bounds__(N * 32, 2) second(T* x) {}
extern "C" __global__ __launch_bounds__(128) void third(void) {}
static __global__ void fourth(float (*unnamed), int) {}
"""
    kernels = {k.name: k for k in find_kernels(code)}
    assert list(kernels) == ["first", "second", "third", "fourth"]
    assert kernels["first"].parameters == ("x", "y", "n", "d")
    assert kernels["second"].parameters == ("x",)
    assert kernels["second"].bounds == ("N * 32", "2")
    assert kernels["third"].parameters == ()
    assert kernels["third"].bounds == ("128",)
    assert [k.extern_c for k in kernels.values()] == [True, False, True, False]
    assert [k.template for k in kernels.values()] == [False, True, False, False]
    assert [k.line for k in kernels.values()] == [4, 5, 6, 7]


def test_rewriting_keeps_every_line():
    code = "/* extern __shared__ float no[]; */\nextern __shared__ __align__(16)\nfloat s[];\n"
    code += "static __shared__ int t[2];\n"
    out, dynamic = rewrite(code)
    assert dynamic
    assert out.count("\n") == code.count("\n")
    assert out.startswith("/* extern __shared__ float no[]; */\nextern  __align__(16)\nfloat s[] __asm__")
    assert out.endswith("\n__shared__ int t[2];\n")
    assert rewrite("__shared__ float s[4];\nfloat x = 1;") == ("__shared__ float s[4];\nfloat x = 1;", False)
    with pytest.raises(SourceError, match="line 2: a __shared__ variable can't have an initialiser"):
        rewrite("\n__shared__ float s[2] = {1, 2};")
    with pytest.raises(SourceError, match="line 1: <iostream> is a header for the host"):
        rewrite("#include <iostream>")
    with pytest.raises(SourceError, match="bracket on line 2 is never closed"):
        find_kernels("\n__global__ void k(int x {")


def test_comments_and_constants():
    assert without_comments('a // b\n"// c" /* d\n e */ f') == 'a     \n"    "     \n      f'
    code = "__constant__ int a; __device__ int b; __constant__ float4 c[3], d; static __constant__ T e = {1, f};"
    assert find_constants(code) == ("a", "c", "d", "e")


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (("-DA", "-DB=2", "-D", "C=3", "-UA"), ["-DA", "-DB=2", "-DC=3", "-UA"]),
        (("--define-macro=A=1", "--include-path=x", "-I", "y"), ["-DA=1", "-Ix", "-Iy"]),
        (("-std=c++11", "--std=c++20"), ["-std=c++20"]),
        (("-arch=sm_80", "--use_fast_math", "--maxrregcount=64", "-lineinfo", "-G"), []),
    ],
)
def test_options(given, kept):
    assert host_options(given) == kept
