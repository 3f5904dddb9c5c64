"""Devices: figures, sources, look-up by name, and files of one's own."""

import dataclasses
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
    ("name", "hint"), [("A100", "A100-40 or A100-80"), ("H10", "H100"), ("RTX 409", "RTX-4090"), ("h200x", "H200")]
)
def test_unknown_names_get_close_ones(name: str, hint: str) -> None:
    with pytest.raises(UnknownDevice, match=f"no device is named '{name}'; did you mean .*{hint}.* Known: T4, V100"):
        devices.get(name)


@pytest.mark.parametrize("name", ["", "cray", 7])
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
    ],
)
def test_bad_files_say_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(DeviceFileError, match=message):
        devices.load(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        devices.load(tmp_path / "nowhere.toml")
