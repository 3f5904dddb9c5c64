"""Compiled objects: whole or not there, one for everything that differs, and kept wherever they can be."""

import importlib.util
import os
import shutil
import subprocess
import sys

import pytest

from gpu.emulator import CompileError, native
from gpu.emulator.build import build
from gpu.emulator.cache import cache_folder, is_whole

CODE = 'extern "C" __global__ void k(float* x) { x[threadIdx.x] = 1; }'
PROGRAM = f"""
import numpy as np
from gpu.emulator import RawKernel
x = np.zeros(4, np.float32)
RawKernel({CODE!r}, "k")(1, 4, (x,))
assert x.sum() == 4
"""


def start(**environment):
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM], env={**os.environ, **environment}, stderr=subprocess.PIPE, text=True
    )


def run(**environment):
    process = start(**environment)
    errors = process.communicate(timeout=300)[1]
    assert process.returncode == 0, errors


def objects(folder):
    """The files under a cache folder, bar those that Zig keeps for itself."""
    return sorted(p.name for p in folder.rglob("*") if p.is_file() and "zig" not in p.relative_to(folder).parts)


def test_processes_that_compile_at_once_and_objects_cut_short(tmp_path):
    processes = [start(REFSIM_CACHE=str(tmp_path)) for _ in range(3)]
    for process in processes:
        errors = process.communicate(timeout=300)[1]
        assert process.returncode == 0, errors
    made = objects(tmp_path)
    assert [name.split("-")[0] for name in made] == ["kernel", "runtime"]  # and nothing half-written stays
    for share in (0.5, 0):
        for path in tmp_path.rglob("*.so"):
            assert is_whole(path)
            os.truncate(path, int(share * path.stat().st_size))
            assert not is_whole(path)
        run(REFSIM_CACHE=str(tmp_path))
        assert objects(tmp_path) == made


def test_homes_that_cannot_be_used(tmp_path, monkeypatch):
    monkeypatch.delenv("REFSIM_CACHE", raising=False)
    (tmp_path / "file").write_text("no folder")
    (tmp_path / "home").mkdir()
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "refsim" / "emulator"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # which its specification says to ignore
    assert cache_folder() == tmp_path / "home" / ".cache" / "refsim" / "emulator"
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    private = tmp_path / "temporary" / f"refsim-{os.getuid()}"
    assert cache_folder() == private / "emulator"
    assert private.stat().st_mode & 0o077 == 0
    private.chmod(0o777)  # others could put objects there for us to run
    with pytest.raises(OSError, match="set REFSIM_CACHE to a folder where compiled kernels can be kept"):
        cache_folder()
    monkeypatch.setenv("REFSIM_CACHE", str(tmp_path / "file"))
    with pytest.raises(OSError, match="set REFSIM_CACHE"):
        cache_folder()


def test_a_process_without_a_home(tmp_path):
    environment = {k: v for k, v in os.environ.items() if k not in ("HOME", "XDG_CACHE_HOME", "REFSIM_CACHE")}
    program = PROGRAM.replace("import numpy", f"import tempfile; tempfile.tempdir = {str(tmp_path)!r}\nimport numpy", 1)
    environment["HOME"] = "/dev/null"
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=300)
    assert len(objects(tmp_path)) == 2


def test_whatever_differs_is_another_object(tmp_path, monkeypatch):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.cuh").write_text('#include "b.cuh"\n')
    (tmp_path / "sub" / "b.cuh").write_text("#define ONE 1\n")
    text = '#include "sub/a.cuh"\n' + CODE.replace("= 1", "= ONE")
    options = (f"-I{tmp_path}",)
    paths = [build(text, options).path, build(text, options, traced=False).path, build(text, (*options, "-DA")).path]
    (tmp_path / "sub" / "b.cuh").write_text("#define ONE 2\n")  # found beside the header that includes it
    paths.append(build(text, options).path)
    layout = native.layout()
    monkeypatch.setattr(native, "layout", lambda: layout + 'static_assert(sizeof(int) == 4, "of another version");\n')
    paths.append(build(text, options).path)
    assert len(set(paths)) == len(paths)


@pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="the ziglang wheel is not installed")
def test_the_compiler_of_a_wheel_is_enough(tmp_path):
    """With nothing on the path, and no CXX: compiled, run, and findings at their lines, as with any compiler."""
    (tmp_path / "path").mkdir()
    environment = {k: v for k, v in os.environ.items() if k != "CXX"}
    environment |= {"PATH": str(tmp_path / "path"), "REFSIM_CACHE": str(tmp_path / "cache")}
    program = PROGRAM + (
        "from gpu.emulator import KernelError\n"
        "try:\n"
        f"    RawKernel({CODE!r}, 'k')(1, 5, (x,))\n"
        "except KernelError as error:\n"
        "    assert (error.report.check, error.report.line) == ('out_of_bounds', 1)\n"
        "else:\n"
        "    raise AssertionError('not found')\n"
    )
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=300)


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
def test_another_version_of_the_compiler_is_another_compiler(tmp_path):
    wrapper = tmp_path / "g++"
    wrapper.write_text('#!/bin/sh\nexec g++ "$@"\n')
    wrapper.chmod(0o755)
    first = build(CODE, compiler=str(wrapper))
    wrapper.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "g++ 99.1" || exec g++ "$@"\n')
    from gpu.emulator.toolchain import find_compiler

    find_compiler.cache_clear()
    second = build(CODE, compiler=str(wrapper))
    assert first.path != second.path
    assert first.runtime != second.runtime


def test_structs_that_do_not_fit_do_not_compile(monkeypatch):
    """Python's view of the runtime's structs is asserted by the compiler, field by field."""
    right = native.layout()
    assert right.count("offsetof(Launch") == len(native.Launch._fields_)
    monkeypatch.setattr(
        native, "layout", lambda: right.replace("offsetof(Slot, heat) == ", "offsetof(Slot, heat) == 1")
    )
    with pytest.raises(CompileError, match="has changed since this process began: start Python again"):
        build(CODE)
