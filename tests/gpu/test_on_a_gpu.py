"""On a machine with a GPU and CuPy; skipped elsewhere. The same cases as on the emulator, on the real thing."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from gpu import ops
from gpu.crosscheck import OPS, cases, run_case
from gpu.runtime import gpu_present
from refsim import attention

pytestmark = pytest.mark.skipif(not gpu_present(), reason="no GPU that CuPy can use")


@pytest.mark.parametrize("op", OPS)
def test_kernels_agree_with_their_twins_to_the_byte(op: str) -> None:
    from gpu.cupy_runtime import CupyRuntime

    for case in cases("quick", (op,)):
        report = run_case(case, CupyRuntime(), counted=True)
        assert report.ok, f"{case}: {report.complaints()}"
        assert all(row.counted == row.reference for row in report.bytes)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_numpy_in_numpy_out(dtype: type) -> None:
    x = np.random.default_rng(0).standard_normal((70, 2, 64), dtype=np.float32).astype(dtype)
    got, expected = ops.flash(x, x, x, causal=True, runtime="cupy"), attention.flash(x, x, x, causal=True)
    assert isinstance(got.out, np.ndarray)
    assert got.out.dtype == dtype
    np.testing.assert_allclose(got.out.astype(float), expected.out.astype(float), atol=2**-6)


def test_cupy_in_cupy_out() -> None:
    import cupy

    x = cupy.random.default_rng(0).standard_normal((70, 2, 64), dtype=np.float32)
    out = ops.flash(x, x, x).out
    assert isinstance(out, cupy.ndarray)
    host = x.get()
    np.testing.assert_allclose(out.get(), attention.flash(host, host, host).out, atol=1e-5)


def test_torch_in_torch_out() -> None:
    torch = pytest.importorskip("torch")
    x = torch.randn(70, 2, 64, device="cuda", dtype=torch.bfloat16)
    out = ops.flash(x, x, x).out
    assert out.dtype == torch.bfloat16
    assert out.device == x.device


def test_a_launch_that_cannot_be_is_explained() -> None:
    from gpu.cupy_runtime import CupyRuntime, LaunchFailed

    module = CupyRuntime().module('extern "C" __global__ void f() {}', ("--std=c++17",))
    with pytest.raises(LaunchFailed, match="more than the device has"):
        module.get_function("f")((1, 1, 1), (4096, 1, 1), ())
