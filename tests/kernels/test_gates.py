"""Gates without a GPU: a GPU compiler takes every kernel, nothing spills, and the lint sees what it should."""

from __future__ import annotations

import pytest

from gpu import nvrtc
from gpu.gates import gate, jobs, lint_folder, lint_text
from gpu.gates.__main__ import main, table
from gpu.gates.nvrtc import GateRow, example
from gpu.gates.occupancy import in_flight_nbytes, needed_nbytes, occupancy
from gpu.ops.modules import KERNELS

needs_nvrtc = pytest.mark.skipif(
    not nvrtc.available() or not nvrtc.headers_available(), reason="NVRTC or the toolkit's headers are not installed"
)


def test_the_kernels_have_no_remark() -> None:
    assert [str(remark) for remark in lint_folder(KERNELS)] == []


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("__global__ void f(float* x, int i, int n) { x[i * n] = 0; }", ["32-bit offset"]),
        ("__global__ void f(float* x, int i, int n) { x[(long long)i * n] = 0; }", []),
        ("__global__ void f(float* x, int i, int n) { const long long at = (long long)i * n; x[at + 3 * i] = 0; }", []),
        ("__global__ void f(float* x, int i) { x[4 * i + 1] = 0; }", []),
        ("__device__ long long at(int i);\n__global__ void f(float* x, int i, int n) { x[at(i) * n] = 0; }", []),
        ("__device__ void f(int i, int n) { write<OUT>(&out[i * n], 0.0f); }", ["32-bit offset"]),
        ("// x[i * n]\n__global__ void f(float* x) {}", []),
        ("float y = __shfl_xor_sync(0x0000ffff, x, 1);", ["partial mask"]),
        ("unsigned b = __ballot_sync(__activemask(), p);", ["partial mask"]),
        ("float y = __shfl_xor_sync(0xffffffff, x, 1); __syncthreads();", []),
    ],
)
def test_the_lint_sees_narrow_offsets_and_partial_masks(text: str, rules: list[str]) -> None:
    assert [remark.rule for remark in lint_text(text)] == rules


def test_a_remark_says_where() -> None:
    text = "__global__ void f(float* x, int i, int n) {\n    x[i * n] = 0;\n}"
    (remark,) = lint_text(text, "my.cu")
    assert str(remark) == "my.cu:2: 32-bit offset: x[i * n] = 0;"


def test_narrowing_one_of_our_offsets_is_noticed() -> None:
    text = (KERNELS / "rope.cu").read_text()
    narrow = text.replace("const long long row = ((long long)blockIdx.x", "const int row = (blockIdx.x").replace(
        "const long long first = row", "const int first = row"
    )
    assert narrow != text
    narrow = narrow.replace("&x[first]", "&x[row * heads]")
    assert [remark.rule for remark in lint_text(narrow)] == ["32-bit offset"]


@needs_nvrtc
@pytest.mark.parametrize(
    ("architecture", "dtype"),
    [("sm_75", "float16"), ("sm_80", "bfloat16"), ("sm_90", "float32"), ("sm_100", "bfloat16"), ("sm_120", "float16")],
)
def test_every_kernel_compiles_and_nothing_spills(architecture: str, dtype: str) -> None:
    if architecture not in nvrtc.supported_architectures():
        pytest.skip(f"this NVRTC does not compile for {architecture}")
    rows = gate(jobs([architecture], [dtype]))
    assert [(row.kernel, row.error) for row in rows if row.error] == []
    assert [(row.kernel, row.spill_nbytes) for row in rows if row.spill_nbytes] == []
    kernels = {row.kernel for row in rows}
    assert {"flash", "paged", "split_kv", "split_kv_paged", "scores", "softmax", "output", "reduce"} <= kernels
    assert {"gather", "append", "copy_blocks", "merge", "rope"} <= kernels
    assert ({"flash_mma", "paged_mma"} <= kernels) == (dtype != "float32")


@needs_nvrtc
def test_a_text_that_does_not_compile_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise nvrtc.NvrtcError("line 1: no")

    monkeypatch.setattr(nvrtc, "compile_text", refuse)
    rows = gate(jobs(["sm_90"], ["float32"])[:1])
    assert not rows[0].ok
    assert "does not compile" in table(rows)
    assert main(["--arch", "sm_90", "--dtype", "float32"]) == 1


def test_decode_has_enough_in_flight_for_an_h200() -> None:
    """Three blocks of 128 threads, a 16 KiB tile of K or V each on its way, against bandwidth times latency."""
    held = occupancy("sm_90", 167, 36_000)
    assert (held.blocks, held.limited_by) == (3, "registers")
    assert held.share == 3 * 128 / 2048
    assert in_flight_nbytes(held.blocks, 64, 128, 2) == 3 * 64 * 128 * 2
    assert in_flight_nbytes(held.blocks, 64, 128, 2) > needed_nbytes(4.8e12, 800e-9, 132)


@pytest.mark.parametrize("words", [["--arch", "sm_1"], ["--dtype", "float64"], ["--dtype"]])
def test_a_gate_for_nothing_is_no_pass(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert words[0] in capsys.readouterr().err


def test_a_spill_is_no_pass() -> None:
    assert GateRow("flash", "float32", "sm_90", 64, registers=255).ok
    assert not GateRow("flash", "float32", "sm_90", 64, registers=255, spill_nbytes=8).ok


def test_the_example_tiles_are_the_default_ones() -> None:
    """64 rows of 128 bfloat16, K and V tiles of 64 keys, scores of 64 x 68 float32, five row statistics, block ids."""
    assert example("flash", "bfloat16") == (64, (64 * 128 + 64 * 256) * 2 + 64 * 68 * 4 + 5 * 64 * 4 + 2 * 128 * 4)
