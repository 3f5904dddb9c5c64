"""The device report, rehearsed on the emulator: everything in it but the GPU's own figures."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from gpu.device_report import DeviceReport, device_report, draw, find_device
from gpu.device_report.__main__ import main
from gpu.device_report.measure import Timing, measure, predict, rivals, wall_seconds
from gpu.device_report.report import microseconds
from gpu.device_report.rivals import RIVALS, Missing, sdpa
from gpu.device_report.workloads import FULL, SMOKE, workloads
from gpu.runtime import EmulatorRuntime
from refsim.cost import devices

TIMINGS = (
    Timing("decode", "memory", nbytes=2_000_000, median_s=1e-3, predicted_s=5e-4, notes=("FlashInfer skipped: no",)),
    Timing("prefill", "matrix", flops=4_000_000_000, median_s=2e-3, predicted_s=1e-3, rivals_s={"torch SDPA": 1e-3}),
    Timing("append", "memory", skipped="the budget of 1 s was used up"),
)
REPORT = DeviceReport({"device": "a GPU", "measured_on_a_gpu": True}, None, 4e9, TIMINGS, ("append: no time",), 12.0)


def test_figures_are_what_they_are_called() -> None:
    decode, prefill, skipped = TIMINGS
    assert decode.bandwidth == 2e9
    assert prefill.tflops == 2.0
    assert skipped.bandwidth is None
    assert skipped.tflops is None
    assert [microseconds(s) for s in (0.0012, 0.0000123)] == ["1,200 us", "12.3 us"]


def test_the_table_says_all(tmp_path: Path) -> None:
    table = REPORT.to_markdown()
    assert "| decode | 1,000 us | 500 us | 2,000,000 | 50% |  | FlashInfer skipped: no |" in table
    assert "| prefill | 2,000 us | 1,000 us | 0 |  | 2.0 | torch SDPA 1,000 us |" in table
    assert "| append | skipped: the budget of 1 s was used up |" in table
    assert "No GPU" not in table
    assert json.loads(REPORT.to_json())["timings"][1]["tflops"] == 2.0


def test_predicted_against_measured_is_drawn() -> None:
    ax = draw(REPORT)
    points = [
        (float(line.get_xdata()[0]), float(line.get_ydata()[0])) for line in ax.lines if len(line.get_xdata()) == 1
    ]
    assert points == [(5e-4, 1e-3), (1e-3, 2e-3)]


@pytest.mark.parametrize("name", [w.name for w in workloads(SMOKE)])
def test_every_workload_runs_and_its_closed_form_is_what_it_moves(name: str) -> None:
    (workload,) = (w for w in workloads(SMOKE) if w.name == name)
    prepared = workload.prepare(EmulatorRuntime())
    prepared.run()
    counted = sum(launch.ledger().hbm_nbytes for launch in prepared.launches)
    assert counted == workload.ledger(prepared).hbm_nbytes > 0


def test_the_workloads_of_serving_are_as_stated() -> None:
    """64 sequences x 8192 tokens, 32/8 heads of 128; 16k tokens of prefill. K and V of the decode alone: 2 GiB."""
    assert (FULL.sequences, FULL.keys, FULL.H, FULL.G, FULL.D, FULL.prompt) == (64, 8192, 32, 8, 128, 16_384)
    assert "paged decode, 64 x 8192 tokens" in [w.name for w in workloads(FULL)]


def test_what_fails_is_a_line_not_the_end() -> None:
    def refuse(_: object) -> None:
        raise MemoryError("too large")

    timing = measure(replace(workloads(SMOKE)[0], prepare=refuse), EmulatorRuntime(), SMOKE, None)  # type: ignore[arg-type]
    assert timing.skipped == "MemoryError: too large"


def test_a_compiler_s_log_stays_out_of_the_table() -> None:
    failed = Timing("decode", "memory", skipped="CompileError: a | b\nline 2\nline 3")
    table = DeviceReport({}, None, None, (failed,), (), 1.0).to_markdown()
    assert "| decode | skipped: CompileError: a \\| b |||||| \n" in table
    assert "line 2" not in table


def test_each_kernel_of_a_call_has_its_share_of_the_copy() -> None:
    split = Timing(
        "split", "memory", nbytes=2_200_000, median_s=1e-3, kernels_s={"split_kv": 1e-3, "reduce": 1e-4},
        kernels_nbytes={"split_kv": 2_000_000, "reduce": 200_000},
    )  # fmt: skip
    table = DeviceReport({}, None, 4e9, (split,), (), 1.0).to_markdown()
    assert "split_kv: 1,000 us (50% of copy); reduce: 100 us (50% of copy)" in table
    workload = workloads(SMOKE)[1]
    timing = measure(workload, EmulatorRuntime(), SMOKE, None, repeats=1)
    assert list(timing.kernels_s) == list(timing.kernels_nbytes) == ["split_kv", "reduce"]
    assert sum(timing.kernels_nbytes.values()) == timing.nbytes


def test_calls_judged_by_bytes_find_a_cold_cache() -> None:
    class OnAGpu(EmulatorRuntime):
        flushed: ClassVar[list[bool]] = []

        def seconds(self, run: Callable[[], object], *, repeats: int, flush: Any = None) -> list[float]:
            self.flushed.append(flush is not None and flush.nbytes > 100 * 2**20)  # an H200's L2 has 50 MiB
            return wall_seconds(run, repeats=repeats)

    runtime = OnAGpu()
    decode, prefill = workloads(SMOKE)[0], workloads(SMOKE)[3]
    assert (decode.kind, prefill.kind) == ("memory", "matrix")
    prepared = {workload.name: workload.prepare(EmulatorRuntime()) for workload in (decode, prefill)}
    runtime.name = "cupy"
    for workload in (decode, prefill):
        measure(replace(workload, prepare=lambda _, w=workload: prepared[w.name]), runtime, SMOKE, None, repeats=1)  # type: ignore[misc]
    assert runtime.flushed == [True, False]


def test_a_copy_that_fails_costs_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise MemoryError("too large")

    monkeypatch.setattr("gpu.device_report.copy_bandwidth", refuse)
    monkeypatch.setattr("gpu.device_report.OPS", ("rope",))
    report = device_report("emulator", budget_s=0)
    assert report.copy_bytes_per_s is None
    assert "the copy: MemoryError: too large" in report.to_markdown()


@pytest.mark.parametrize(
    ("gpu", "known"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA L4", "L4"),
        ("Tesla T4", "T4"),
        ("NVIDIA A100-SXM4-80GB", "A100-80"),
        ("NVIDIA A100-SXM4-40GB", "A100-40"),
        ("NVIDIA A100 80GB PCIe", "A100-80-PCIe"),
        ("NVIDIA RTX A6000", None),
        ("NVIDIA GH200 480GB", None),
        ("NVIDIA T400", None),
    ],
)
def test_devices_are_known_by_their_own_names(gpu: str, known: str | None) -> None:
    runtime = EmulatorRuntime()
    runtime.device_name = gpu  # type: ignore[attr-defined]
    found, skipped = find_device(runtime, None)
    assert found == (None if known is None else devices.get(known))
    assert bool(skipped) == (known is None)


def test_every_rival_is_asked_for_and_says_why_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    for workload in workloads(SMOKE):
        found, notes = rivals(workload, SMOKE)
        assert found == {}
        assert len(notes) == len(RIVALS.get(workload.rival or "", ()))
        assert all("skipped: PyTorch is not usable" in note for note in notes)
    with_rivals = {workload.rival for workload in workloads(SMOKE)} - {None}
    assert with_rivals == set(RIVALS)


def test_predictions_need_a_known_device() -> None:
    runtime = EmulatorRuntime()
    found, skipped = find_device(runtime, None)
    assert found is None
    assert "give --device" in skipped[0]
    runtime.device_name = "NVIDIA H200"  # type: ignore[attr-defined]
    assert find_device(runtime, None) == (devices.get("H200"), [])
    workload = workloads(SMOKE)[0]
    ledger = workload.ledger(workload.prepare(EmulatorRuntime()))
    assert predict(ledger, None) is None
    seconds = predict(ledger, devices.get("H200"))
    assert seconds is not None
    assert np.isfinite(seconds)


def test_rivals_that_are_not_here_say_so() -> None:
    with pytest.raises(Missing):
        sdpa(SMOKE, causal=True)


def test_the_command_rehearses_without_a_gpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpu.device_report.OPS", ("rope", "append"))
    words = ["--runtime", "emulator", "--budget", "0", "--device", "A100-80", "--out", str(tmp_path)]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "say nothing about any device" in said
    assert "the budget of 0 s was used up" in said
    assert json.loads((tmp_path / "report.json").read_text())["correctness"]["ok"]
    assert (tmp_path / "predicted-measured.svg").read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--level", "fast"], "choose from"),
        (["--runtime", "cpu"], "no runtime 'cpu'"),
        (["--device", "H999"], "no device is named 'H999'"),
        (["--out", __file__], "File exists"),
    ],
)
def test_what_would_fail_at_the_end_fails_at_the_start(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpu.device_report.__main__.device_report", None)
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
