"""The device report, rehearsed on the emulator: everything in it but the GPU's own figures."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from gpu.device_report import DeviceReport, draw, find_device
from gpu.device_report.__main__ import main
from gpu.device_report.measure import Timing, measure, predict
from gpu.device_report.report import microseconds
from gpu.device_report.rivals import Missing, sdpa
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
    from dataclasses import replace

    def refuse(_: object) -> None:
        raise MemoryError("too large")

    timing = measure(replace(workloads(SMOKE)[0], prepare=refuse), EmulatorRuntime(), SMOKE, None)  # type: ignore[arg-type]
    assert timing.skipped == "MemoryError: too large"


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
