"""Devices: figures, sources, look-up by name, and files of one's own."""

import copy
import dataclasses
import pickle
import tomllib
from pathlib import Path

import numpy as np
import pytest

from refsim import attention
from refsim.attention import Plan
from refsim.cost import Device, closed_form, devices, estimate
from refsim.cost.devices import DeviceFileError, UnknownDevice
from refsim.machine import Machine, SramOverflow

GOOD = """
[devices.Toy]
multiprocessors = 4
hbm_gb_per_s = [100, "a napkin"]
l2_mib = 0.5
sram_kib = 48
fp16_tflops = 1
fp32_tflops = 0.5
clock_ghz = 1
"""


def test_two_a100s_have_two_bandwidths() -> None:
    """2 TB/s for "40-80 GB" is one figure for two memories: the 40 GB A100 has 1.555, the 80 GB one 2.039.

    Decode is bound by HBM, so a text that takes 2 TB/s for both is wrong by more than a quarter on the smaller.
    """
    small, large = devices.get("A100-40"), devices.get("A100-80")
    assert (small.hbm_bytes_per_s, large.hbm_bytes_per_s) == (1555e9, 2039e9)
    plan = Plan.of([(1, 32768)] * 108, 32, 8, 128, dtype="float16", packed=True, block_size=16)
    times = [estimate(closed_form.paged(plan), device).kernels[0] for device in (small, large)]
    assert [t.bound for t in times] == ["HBM", "HBM"]
    assert times[0].seconds["HBM"] / times[1].seconds["HBM"] == pytest.approx(2039 / 1555)
    assert 2000 / 1555 > 1.28


def test_published_rates() -> None:
    """FlashAttention: "about 19 TB/s" on chip. FlashAttention-3: 3.9 T exponentials a second on an H100."""
    assert devices.get("A100-40").sram_bytes_per_s == pytest.approx(19.5e12, rel=1e-3)
    assert devices.get("H100").exps_per_s == pytest.approx(3.865e12, rel=1e-3)


def test_on_chip_memory_limits_a_machine() -> None:
    assert devices.get("A100-80").sram_nbytes == 164 * 1024
    x = np.zeros((128, 1, 128), np.float32)
    with pytest.raises(SramOverflow, match="the machine has 65,536 B"):
        attention.flash(x, x, x, tile=(128, 128), machine=Machine(devices.get("T4")))


@pytest.mark.parametrize(
    ("name", "figures"),
    [
        # multiprocessors, HBM GB/s, L2 MiB, shared KiB, 16-bit and fp32 TFLOP/s, GHz: as published
        ("T4", (40, 320, 4, 64, 65, 8.1, 1.59)),
        ("V100", (80, 900, 6, 96, 125, 15.7, 1.53)),
        ("A100-40", (108, 1555, 40, 164, 312, 19.5, 1.41)),
        ("A100-80", (108, 2039, 40, 164, 312, 19.5, 1.41)),
        ("A100-80-PCIe", (108, 1935, 40, 164, 312, 19.5, 1.41)),
        ("H100", (132, 3352, 50, 228, 989, 67, 1.83)),
        ("H200", (132, 4800, 50, 228, 989, 67, 1.83)),
        ("B200", (148, 8000, 126.5, 228, 2250, 75, 1.85)),
        ("L4", (58, 300, 48, 100, 121, 30.3, 2.04)),
        ("L40S", (142, 864, 96, 100, 362, 91.6, 2.52)),
        ("RTX-3090", (82, 936, 6, 100, 71, 35.6, 1.70)),
        ("RTX-4090", (128, 1008, 72, 100, 165, 82.6, 2.52)),
        ("RTX-5090", (170, 1792, 96, 100, 209.5, 104.8, 2.41)),
        ("MI300X", (304, 5300, 32, 64, 1307, 163.4, 2.1)),
    ],
)
def test_published_figures(name: str, figures: tuple[float, ...]) -> None:
    d = devices.get(name)
    rates = [d.fp16_flops_per_s / 1e12, d.fp32_flops_per_s / 1e12, d.clock_hz / 1e9]
    sizes = [d.multiprocessors, d.hbm_bytes_per_s / 1e9, d.l2_nbytes / 2**20, d.sram_nbytes / 2**10]
    assert sizes + rates == pytest.approx(figures)


def test_no_device_is_left_out_of_the_published_figures() -> None:
    assert len(devices.names()) == 14


def test_every_figure_has_a_source() -> None:
    text = tomllib.loads(Path(devices.__file__).with_name("devices.toml").read_text())
    named = set()
    for table in (text["defaults"], *text["devices"].values()):
        for key, figure in table.items():
            if key != "title":
                _, source = figure
                named.add(source)
    assert named == set(text["sources"])
    for name in devices.names():
        device = devices.get(name)
        figures = {f.name for f in dataclasses.fields(Device) if getattr(device, f.name) is not None}
        assert set(device.sources) == figures - {"name", "title", "sources"}
    assert devices.get("L4").sources["multiprocessors"].startswith("unconfirmed")
    assert "datasheet" in devices.get("A100-40").sources["hbm_bytes_per_s"]


def test_devices_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        devices.get("T4").launch_s = 0  # type: ignore[misc]


@pytest.mark.parametrize("name", ["RTX-4090", "rtx 4090", "RTX4090", "Rtx_4090"])
def test_names_are_found_however_they_are_spelt(name: str) -> None:
    assert devices.get(name).name == "RTX-4090"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("A100", "A100-40 or A100-80"),
        ("H10", "H100"),
        ("RTX 409", "RTX-4090"),
        ("h200x", "H200"),
        ("NVIDIA H100", "H100"),
        ("GB200", "B200"),
        ("NVIDIA A100 80 GB SXM", "A100-80"),
    ],
)
def test_unknown_names_get_close_ones(name: str, hint: str) -> None:
    with pytest.raises(UnknownDevice, match=f"no device is named '{name}'; did you mean .*{hint}.* Known: T4, V100"):
        devices.get(name)


@pytest.mark.parametrize("name", ["", "cray", "NVIDIA", 7])
def test_names_like_none_list_all(name: str) -> None:
    with pytest.raises(UnknownDevice, match=r"no device is named .* Known: T4, V100, .*MI300X") as error:
        devices.get(name)
    assert "did you mean" not in str(error.value)


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GOOD)
    (toy,) = devices.load(path).values()
    assert (toy.name, toy.multiprocessors, toy.l2_nbytes, toy.sram_nbytes) == ("Toy", 4, 2**19, 48 * 1024)
    assert (toy.hbm_bytes_per_s, toy.fp16_flops_per_s, toy.clock_hz) == (100e9, 1e12, 1e9)
    assert toy.exps_per_clock == 16  # the defaults of the built-in file
    assert toy.sources["hbm_bytes_per_s"] == "a napkin"
    assert toy.sources["clock_hz"] == "given without a source"
    assert Machine(toy).sram_nbytes == 48 * 1024
    with pytest.raises(ValueError, match="Toy has no figure for matrix products in e4m3; give it as fp8_tflops"):
        toy.matrix_flops_per_s("e4m3")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = [", "is not a TOML file"),
        ("x = 1", r"has no \[devices.NAME\] table"),
        ("devices = 3", r"has no \[devices.NAME\] table"),
        ("[devices]\nToy = 3", r"\[devices.Toy\] is not a table but 3"),
        (GOOD.replace("clock_ghz = 1", ""), "lacks clock_ghz"),
        (GOOD + "clock_mhz = 1", "unknown figure 'clock_mhz'; did you mean clock_ghz"),
        (GOOD.replace("sram_kib = 48", "sram_kib = -48"), "sram_kib must be a positive number"),
        (GOOD.replace("sram_kib = 48", "sram_kib = 0"), "sram_kib must be a positive number"),
        (GOOD.replace("sram_kib = 48", "sram_kib = 48.0001"), "not a whole number"),
        (GOOD.replace("sram_kib = 48", "sram_kib = true"), "sram_kib must be a positive number"),
        (GOOD.replace("sram_kib = 48", "sram_kib = [48]"), "sram_kib must be a positive number"),
        (GOOD.replace("sram_kib = 48", "sram_kib = nan"), "sram_kib must be a positive number"),
        (GOOD.replace("clock_ghz = 1", 'clock_ghz = "fast"'), "clock_ghz must be a positive number"),
        (GOOD.replace("clock_ghz = 1", "clock_ghz = 1e308"), "clock_ghz must be a positive number"),
        (GOOD.replace("clock_ghz = 1", "clock_ghz = " + 400 * "9"), "clock_ghz must be a positive number"),
        (GOOD.replace("l2_mib = 0.5", "l2_mib = 1e308"), "l2_mib must be a positive number"),
        (GOOD.replace('"a napkin"', "5"), "the source of hbm_gb_per_s must be text, got 5"),
        (GOOD.replace('"a napkin"', "[1]"), r"the source of hbm_gb_per_s must be text, got \[1\]"),
        (GOOD.replace('"a napkin"', '" "'), "the source of hbm_gb_per_s must be text, got ' '"),
        (GOOD + "title = 5", "title must be text, got 5"),
        (GOOD.replace("Toy", '""'), "its name must be text, got ''"),
        ("defaults = 3" + GOOD, r"defaults must be a table, \[defaults\], and is 3"),
        ("sources = 3" + GOOD, r"sources must be a table, \[sources\], and is 3"),
        ("[sources]\nnote = 3" + GOOD, r"\[sources\]: note must be text, got 3"),
    ],
)
def test_bad_files_say_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(DeviceFileError, match=message):
        devices.load(path)


def test_a_file_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "marked.toml"
    path.write_text(GOOD, encoding="utf-8-sig")
    assert list(devices.load(path)) == ["Toy"]


def test_a_file_has_defaults_and_sources_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        '[defaults]\nlaunch_us = [2, "note"]\n[sources]\nnote = "a note"\n"a napkin" = "a large one"' + GOOD
    )
    (toy,) = devices.load(path).values()
    assert toy.launch_s == pytest.approx(2e-6)
    assert (toy.sources["launch_s"], toy.sources["hbm_bytes_per_s"]) == ("a note", "a large one")


@pytest.mark.parametrize(
    ("field", "value", "wanted"),
    [
        ("hbm_bytes_per_s", 0, "positive number, got 0"),
        ("clock_hz", float("inf"), "positive number"),
        ("fp8_flops_per_s", -1.0, "positive number"),
        ("exps_per_clock", "16", "positive number, got '16'"),
        ("launch_s", None, "positive number, got None"),
        ("multiprocessors", 1.5, "positive whole number, got 1.5"),
        ("sram_nbytes", True, "positive whole number, got True"),
    ],
)
def test_figures_that_no_device_has_are_refused(field: str, value: object, wanted: str) -> None:
    with pytest.raises(ValueError, match=f"{field} of T4 must be a {wanted}"):
        dataclasses.replace(devices.get("T4"), **{field: value})


def test_devices_and_estimates_travel_to_other_processes() -> None:
    device = devices.get("H100")
    for twin in (pickle.loads(pickle.dumps(device)), copy.deepcopy(device)):
        assert twin == device
        assert twin.sources == device.sources
        with pytest.raises(TypeError):
            twin.sources["clock_hz"] = "elsewhere"
    result = estimate(closed_form.flash(Plan.of([(1, 100)], 2, 2, 8)), device)
    twin = pickle.loads(pickle.dumps(result))
    assert twin == result
    assert str(twin) == str(result)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        devices.load(tmp_path / "nowhere.toml")
