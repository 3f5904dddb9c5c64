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


def test_a_device_of_a_file_however_it_is_spelt(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, mine: Path
) -> None:
    """The file may be called anything under --file, and lie anywhere; names are as forgiving as built-in ones."""
    plain = mine.with_name("gpus")
    plain.write_text(MINE)
    assert "measured" in printed(capsys, monkeypatch, "devices", " mine", "--file", str(plain))
    folder = mine.parent / "old.toml.d"
    folder.mkdir()
    (folder / "MINE.TOML").write_text(MINE.replace("multiprocessors = 10", "multiprocessors = 11"))
    assert find_device(f"{folder}/MINE.TOML:mine").multiprocessors == 11
    with pytest.raises(ValueError, match=r"has the devices Mine, Other; write .*mine\.toml:NAME, got .*mine\.toml:T4"):
        find_device(f"{mine}:T4")
    with pytest.raises(ValueError, match=r"or give FILE\.toml:NAME, a device of a file of your own"):
        find_device("mine.toml.old")
    assert cli.main(["devices", "T4", "--file", str(plain)]) == 2
    assert "gpus has no device 'T4'; it has Mine, Other" in capsys.readouterr().err


def test_titles_and_sources_are_printed_as_they_stand(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "odd.toml"
    odd = MINE.replace("[devices.Mine]", '[devices.Mine]\ntitle = "a [red]GPU[/blue]"').replace(
        "measured", "[bold]x[/y]"
    )
    path.write_text(odd)
    for arguments in (("devices", "Mine"), ("devices",)):
        out = printed(capsys, monkeypatch, *arguments, "--file", str(path))
        assert "a [red]GPU[/blue]" in out
        assert "[bold]x[/y]" in out
    assert "a [red]GPU[/blue]" in printed(capsys, monkeypatch, "traffic", "--lengths", "8", "--device", f"{path}:Mine")


def test_small_and_large_figures_keep_their_digits(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "odd.toml"
    path.write_text(MINE.replace("fp16_tflops = 1\n", "fp16_tflops = 0.00012\n").replace("= [100,", "= [1234567,"))
    row = next(
        line for line in printed(capsys, monkeypatch, "devices", "--file", str(path)).splitlines() if "Mine" in line
    )
    assert row.split()[1:] == ["10", "1,234,567", "1", "32", "0.00012", "1", "1"]


def test_the_note_on_stars_stands_where_stars_are(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, mine: Path
) -> None:
    assert "* unconfirmed" in printed(capsys, monkeypatch, "devices")
    own = printed(capsys, monkeypatch, "devices", "--file", str(mine))
    assert "*" not in own
    assert f"One device, figure by figure: refsim devices NAME --file {mine}" in own


def test_a_type_without_a_figure_is_refused_before_anything_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["traffic", "--device", "T4", "--dtype", "e4m3"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "T4 has no figure for matrix products in e4m3" in err


@pytest.mark.parametrize(
    ("more", "how"),
    [
        (["--lengths", "1000"], "executed"),
        (["--lengths", "7000", "--prefill"], "in closed form"),  # 8 x 49 million scores
        (["--lengths", "1000000"], "in closed form"),  # 8 million scores, but 256 million numbers in k and v
        (["--lengths", "8", "--heads", "1000", "--queries", "1000"], "in closed form"),  # 64 million numbers in q
    ],
)
def test_what_is_large_in_scores_or_in_inputs_is_written_down(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, more: list[str], how: str
) -> None:
    assert f"Counts: {how}." in printed(capsys, monkeypatch, "traffic", "--algorithm", "flash", *more)


def test_a_window_wider_than_any_sequence(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli.main(["traffic", "--window", "99999999999999999999"]) == 2
    assert "--window is at most 2,147,483,647" in capsys.readouterr().err
    assert "executed" in printed(capsys, monkeypatch, "traffic", "--lengths", "8", "--window", "2147483647")


@pytest.mark.parametrize("arguments", [("devices", "none"), ("devices", "--file", "/none.toml")])
def test_what_is_not_there(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    assert cli.main(arguments) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_an_a100_of_40_gb_has_less_bandwidth_than_the_text_says() -> None:
    a100 = mistakes.bandwidth_of_an_a100()
    assert (a100.claimed, a100.a100_40, a100.a100_80) == (2.0e12, 1.555e12, 2.039e12)
