"""`refsim devices`, and a device by name wherever one is asked for."""

from pathlib import Path

import pytest

from refsim import cli, mistakes
from refsim.cli_devices import find_device

MINE = """
[devices.Mine]
multiprocessors = 10
hbm_gb_per_s = [100, "measured"]
l2_mib = 1
sram_kib = 32
fp16_tflops = 1
fp32_tflops = 1
clock_ghz = 1
[devices.Other]
multiprocessors = 20
hbm_gb_per_s = 100
l2_mib = 1
sram_kib = 32
fp16_tflops = 1
fp32_tflops = 1
clock_ghz = 1
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(MINE)
    return path


def printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
    monkeypatch.setenv("COLUMNS", "200")
    assert cli.main(arguments) == 0
    return capsys.readouterr().out


def test_the_list_has_published_figures_and_stars(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = printed(capsys, monkeypatch, "devices").splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in lines if line and line[0].isalpha() and ": " not in line}
    assert rows["A100-40"] == ["108", "1,555", "40", "164", "312", "19.5", "1.41"]
    assert rows["H100"] == ["132", "3,352", "50", "228", "989", "67", "1.83"]
    assert rows["L4"][1] == "300*"
    assert any(line.startswith("A100-80: ") and "datasheet" in line for line in lines)


def test_one_device_names_the_source_of_each_figure(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = printed(capsys, monkeypatch, "devices", "l40s")
    lines = {line.split("  ")[0]: line for line in out.splitlines()}
    assert "864" in lines["HBM GB/s"]
    assert "L40S datasheet" in lines["HBM GB/s"]
    assert "142*" in lines["SMs"]
    assert "unconfirmed" in lines["SMs"]
    assert "none" in lines["fp64 TFLOP/s"]


def test_a_file_of_ones_own(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, mine: Path) -> None:
    assert "Other" in printed(capsys, monkeypatch, "devices", "--file", str(mine))
    assert "measured" in printed(capsys, monkeypatch, "devices", "Mine", "--file", str(mine))
    assert find_device(f"{mine}:Other").multiprocessors == 20
    with pytest.raises(ValueError, match="Mine, Other"):
        find_device(str(mine))


def test_a_device_limits_tiles_and_adds_a_time(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, mine: Path
) -> None:
    arguments = ("traffic", "--algorithm", "paged", "--lengths", "65536", "--dtype", "float16")
    for how in ("--execute", "--closed-form"):
        out = printed(capsys, monkeypatch, *arguments, how, "--device", f"{mine}:Mine")
        lines = {line.split("  ")[0]: line.split()[-1] for line in out.splitlines() if line.strip()}
        nbytes = int(lines["in all"].replace(",", ""))
        # 2 programs keep 2 of 10 multiprocessors busy; 100 GB/s; one launch.
        assert float(lines["us on Mine"].replace(",", "")) == pytest.approx(nbytes / 100e9 * 5 * 1e6 + 5, rel=1e-3)
        assert lines["bound by"] == "HBM"
    assert cli.main([*arguments, "--tile", "128x128", "--head-dim", "128", "--device", f"{mine}:Mine"]) == 2
    assert (
        cli.main([*arguments, "--tile", "128x128", "--head-dim", "128", "--device", f"{mine}:Mine", "--closed-form"])
        == 2
    )


def test_executed_and_written_down_are_printed_alike(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for more in ([], ["--prefill", "--causal"], ["--lengths", "100,7", "--queries", "3", "--window", "5"]):
        arguments = ["traffic", "--lengths", "37", "--device", "T4", *more]
        run, written = (printed(capsys, monkeypatch, *arguments, how) for how in ("--execute", "--closed-form"))
        assert run.splitlines()[1:] == written.splitlines()[1:]


@pytest.mark.parametrize("arguments", [("devices", "none"), ("devices", "--file", "/none.toml")])
def test_what_is_not_there(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    assert cli.main(arguments) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_an_a100_of_40_gb_has_less_bandwidth_than_the_text_says() -> None:
    a100 = mistakes.bandwidth_of_an_a100()
    assert (a100.claimed, a100.a100_40, a100.a100_80) == (2.0e12, 1.555e12, 2.039e12)
