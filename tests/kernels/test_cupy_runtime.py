"""The CuPy runtime against a stand-in for CuPy: what we ask of it, and what we make of its errors."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gpu.cupy_runtime import CompileError, CupyRuntime, LaunchFailed, explain, log_of


class DriverError(Exception):
    pass


class CompileFailure(Exception):
    pass


class FakeEvent:
    clock = 0.0

    def record(self) -> None:
        self.at = FakeEvent.clock


class FakeKernel:
    max_dynamic_shared_size_bytes = 0
    attributes: dict[str, int] = {"num_regs": 32}  # noqa: RUF012

    def __init__(self) -> None:
        self.launches: list[Any] = []

    def __call__(self, grid: Any, block: Any, args: Any, *, shared_mem: int) -> None:
        if block[0] > 1024:
            raise DriverError("CUDA_ERROR_INVALID_VALUE: invalid argument")
        self.launches.append((grid, block, args, shared_mem))
        FakeEvent.clock += 2.0  # milliseconds


class FakeModule:
    def __init__(self, *, code: str, options: tuple[str, ...], name_expressions: Any) -> None:
        self.code, self.options = code, options
        self.kernel = FakeKernel()

    def compile(self, log: Any) -> None:
        if "error" in self.code:
            raise CompileFailure("line 3: expected a ';'")

    def get_function(self, name: str) -> FakeKernel:
        self.compile(None)
        return self.kernel


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> CupyRuntime:
    cuda = SimpleNamespace(
        Event=FakeEvent,
        get_elapsed_time=lambda begin, end: end.at - begin.at,
        get_current_stream=lambda: SimpleNamespace(synchronize=lambda: None),
        compiler=SimpleNamespace(CompileException=CompileFailure),
        driver=SimpleNamespace(CUDADriverError=DriverError),
        runtime=SimpleNamespace(CUDARuntimeError=DriverError, getDeviceProperties=lambda _: {"name": b"NVIDIA H200"}),
        Device=lambda: SimpleNamespace(id=0, attributes={"MultiProcessorCount": 132}),
    )
    fake = SimpleNamespace(
        RawModule=FakeModule, cuda=cuda, asarray=np.asarray, ascontiguousarray=np.ascontiguousarray, empty=np.empty
    )
    monkeypatch.setitem(sys.modules, "cupy", fake)
    return CupyRuntime()


def test_a_launch_is_handed_on(runtime: CupyRuntime) -> None:
    kernel = runtime.module("text", ("-DX",)).get_function("f")
    kernel.max_dynamic_shared_size_bytes = 70_000  # type: ignore[attr-defined]
    kernel([2], [32], [np.int32(1)], shared_mem=64)
    raw = kernel._raw  # type: ignore[attr-defined]
    assert raw.launches == [((2,), (32,), (np.int32(1),), 64)]
    assert raw.max_dynamic_shared_size_bytes == 70_000
    assert kernel.attributes == {"num_regs": 32}  # type: ignore[attr-defined]


def test_refusals_are_explained(runtime: CupyRuntime) -> None:
    with pytest.raises(LaunchFailed, match=r"kernel 'f': .*INVALID_VALUE.*more than the device has"):
        runtime.module("text").get_function("f")((1,), (2048,), ())
    with pytest.raises(CompileError, match="expected a ';'"):
        runtime.module("an error").get_function("f")
    with pytest.raises(CompileError, match="expected a ';'"):
        runtime.module("an error").compile()  # type: ignore[attr-defined]
    assert explain("something else") == "something else"
    assert log_of(CompileFailure("line 1: no")) == "line 1: no"
    assert "headers: set CUDA_PATH" in log_of(CompileFailure('could not open source file "cuda_bf16.h"'))


def test_times_are_the_device_s(runtime: CupyRuntime) -> None:
    kernel = runtime.module("text").get_function("f")
    assert runtime.seconds(lambda: kernel((1,), (32,), ()), repeats=3, warm_up=1) == [0.002] * 3
    assert len(kernel._raw.launches) == 4  # type: ignore[attr-defined]


def test_the_device_by_name(runtime: CupyRuntime) -> None:
    assert (runtime.device_name, runtime.multiprocessors) == ("NVIDIA H200", 132)


def test_bfloat16_travels_as_bits(runtime: CupyRuntime) -> None:
    x = np.array([1.0, -2.5], ml_dtypes.bfloat16)
    there = runtime.asarray(x)
    assert there.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(there, x)
    assert runtime.empty((3,), "bfloat16").dtype == ml_dtypes.bfloat16


def test_without_cupy_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(RuntimeError, match=r"pip install 'refsim\[gpu\]'"):
        CupyRuntime()


def test_what_a_gpu_lacks_is_said(runtime: CupyRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpu import runtime as runtimes

    def refuse() -> int:
        raise DriverError("no driver")

    monkeypatch.setattr(runtimes.importlib.util, "find_spec", lambda _: object())
    for count, says in ((lambda: 1, ""), (lambda: 0, "CuPy finds no GPU"), (refuse, "DriverError: no driver")):
        monkeypatch.setattr(runtime.cupy.cuda.runtime, "getDeviceCount", count, raising=False)
        assert says in runtimes.why_no_gpu()
        assert runtimes.gpu_present() == (says == "")
    with pytest.raises(RuntimeError, match=r"needs CuPy and a GPU: CuPy is installed and can't be used: .*no driver"):
        runtimes.get("cupy")
    monkeypatch.setattr(runtimes.importlib.util, "find_spec", lambda _: None)
    assert "CuPy is not installed (pip install 'refsim[gpu]'" in runtimes.why_no_gpu()


def test_a_changed_header_is_another_kernel(
    runtime: CupyRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CuPy's cache of compiled kernels goes by text and options: an option says which headers they were."""
    from gpu.ops import modules

    monkeypatch.setattr(modules, "_modules", {})
    folder = tmp_path / "kernels"
    shutil.copytree(modules.KERNELS, folder)

    def options() -> tuple[str, ...]:
        return modules.module(runtime, "rope.cu", ())._raw.options  # type: ignore[attr-defined,no-any-return]

    before = options()
    monkeypatch.setattr(modules, "KERNELS", folder)
    monkeypatch.setattr(modules, "_modules", {})
    assert [o for o in options() if "HEADERS" in o] == [o for o in before if "HEADERS" in o]
    (folder / "traffic.cuh").write_text("// changed")
    modules.header_digest.cache_clear()
    monkeypatch.setattr(modules, "_modules", {})
    assert [o for o in options() if "HEADERS" in o] != [o for o in before if "HEADERS" in o]
    modules.header_digest.cache_clear()
