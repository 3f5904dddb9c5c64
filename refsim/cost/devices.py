"""The devices there are figures of: built in, or read from a file of your own. Each figure has its source."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from refsim.checks import is_positive
from refsim.cost.device import WHOLE, Device

# Figures as they stand in a file: the field of Device, and its unit's size.
_FIGURES = {
    "multiprocessors": ("multiprocessors", 1),
    "hbm_gb_per_s": ("hbm_bytes_per_s", 1e9),
    "l2_mib": ("l2_nbytes", 2**20),
    "sram_kib": ("sram_nbytes", 2**10),
    "fp16_tflops": ("fp16_flops_per_s", 1e12),
    "fp32_tflops": ("fp32_flops_per_s", 1e12),
    "clock_ghz": ("clock_hz", 1e9),
    "exps_per_clock": ("exps_per_clock", 1),
    "sram_bytes_per_clock": ("sram_bytes_per_clock", 1),
    "launch_us": ("launch_s", 1e-6),
    "fp8_tflops": ("fp8_flops_per_s", 1e12),
    "fp64_tflops": ("fp64_flops_per_s", 1e12),
}
_OPTIONAL = {"fp8_tflops", "fp64_tflops"}


class UnknownDevice(LookupError):
    """No device of that name; the message lists those there are."""


class DeviceFileError(ValueError):
    """A device file that can't be read: what is wrong and in which table."""


@cache
def _built_in() -> dict[str, Device]:
    return _read(Path(__file__).with_name("devices.toml"), {}, {})


def names() -> list[str]:
    """The names of the built-in devices.

    >>> names()[:3]
    ['T4', 'V100', 'A100-40']
    """
    return list(_built_in())


def get(name: str) -> Device:
    """The built-in device of that name; case, spaces and hyphens don't matter.

    Raises UnknownDevice, which names the closest by name or title and lists all.

    >>> get("rtx 4090").multiprocessors
    128
    """
    by_plain = {plain(known): device for known, device in _built_in().items()}
    if isinstance(name, str) and plain(name) in by_plain:
        return by_plain[plain(name)]
    wanted = plain(str(name))
    close = [key for key, device in by_plain.items() if wanted and _alike(wanted, key, plain(device.title))]
    close = close if len(close) <= 3 else []  # "nvidia" is like all of them
    close = close or difflib.get_close_matches(wanted, by_plain, n=3, cutoff=0.6)
    hint = f"; did you mean {' or '.join(by_plain[key].name for key in close)}?" if close else "."
    raise UnknownDevice(
        f"no device is named {name!r}{hint} Known: {', '.join(names())}. Load one of your own with "
        "refsim.cost.devices.load(path)"
    )


def device_of(given: Any) -> Device:
    """The device given, or the built-in one of a name. Raises UnknownDevice; TypeError for what is neither."""
    device = get(given) if isinstance(given, str) else given
    if not isinstance(device, Device):
        raise TypeError(f"device must be a refsim.cost.Device or a built-in one's name, got {device!r}")
    return device


def load(path: str | Path) -> dict[str, Device]:
    """The devices of a TOML file of your own, by name: [devices.NAME] tables as in refsim/cost/devices.toml.

    A figure is a number or [number, "source"]. exps_per_clock, sram_bytes_per_clock and launch_us may be left out;
    a [defaults] table gives figures for all the file's devices, a [sources] table long sources for short ones.

    Raises FileNotFoundError, and DeviceFileError for a file that isn't TOML, a figure that is missing, unknown or not
    a positive number, a source or title that isn't text.
    """
    text = _parse(Path(__file__).with_name("devices.toml"))
    return _read(Path(path), text["defaults"], text["sources"])


def _parse(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))  # some editors begin a file with a mark
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DeviceFileError(f"{path} is not a TOML file: {error}") from None


def _read(path: Path, defaults: Mapping[str, Any], sources: Mapping[str, str]) -> dict[str, Device]:
    text = _parse(path)
    tables = text.get("devices")
    if not isinstance(tables, dict) or not tables:
        raise DeviceFileError(f"{path} has no [devices.NAME] table")
    defaults, sources = {**defaults, **_table(path, text, "defaults")}, {**sources, **_table(path, text, "sources")}
    for short, source in sources.items():
        _text(f"{path}, [sources]: {short}", source)
    return {
        name: _device(f"{path}, [devices.{name}]", name, table, defaults, sources) for name, table in tables.items()
    }


def _device(where: str, name: str, table: Any, defaults: Mapping[str, Any], sources: Mapping[str, str]) -> Device:
    if not isinstance(table, dict):
        raise DeviceFileError(f"{where} is not a table but {table!r}")
    given = {**defaults, **table}
    _text(f"{where}: its name", name)
    title = _text(f"{where}: title", given.pop("title", name))
    for key in given:
        if key not in _FIGURES:
            close = difflib.get_close_matches(key, _FIGURES, n=1)
            hint = f"; did you mean {close[0]}?" if close else "."
            raise DeviceFileError(f"{where}: unknown figure {key!r}{hint} Figures are {', '.join(_FIGURES)}")
    if missing := [key for key in _FIGURES if key not in given and key not in _OPTIONAL]:
        raise DeviceFileError(f"{where} lacks {', '.join(missing)}")
    values: dict[str, Any] = {}
    origin: dict[str, str] = {}
    for key, figure in given.items():
        attribute, unit = _FIGURES[key]
        value, source = figure if isinstance(figure, list) and len(figure) == 2 else (figure, "given without a source")
        if not is_positive(value) or not is_positive(value * unit):
            raise DeviceFileError(f"{where}: {key} must be a positive number or [number, source], got {figure!r}")
        values[attribute] = _whole(where, key, value * unit) if attribute in WHOLE else value * unit
        source = _text(f"{where}: the source of {key}", source)
        origin[attribute] = sources.get(source, source)
    return Device(name=name, title=title, sources=MappingProxyType(origin), **values)


def _table(path: Path, text: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = text.get(name, {})
    if not isinstance(table, dict):
        raise DeviceFileError(f"{path}: {name} must be a table, [{name}], and is {table!r}")
    return table


def _text(what: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise DeviceFileError(f"{what} must be text, got {value!r}")
    return value


def _whole(where: str, key: str, value: float) -> int:
    if value != int(value):
        raise DeviceFileError(f"{where}: {key} comes to {value} bytes or units, which is not a whole number")
    return int(value)


def _alike(wanted: str, name: str, title: str) -> bool:
    """Whether one is the beginning of the other: "A100" of A100-40, "nvidia h100" of a title."""
    return name.startswith(wanted) or wanted.startswith(name) or title.startswith(wanted)


def plain(name: str) -> str:
    """A name without what doesn't matter in it: case, spaces, hyphens.

    >>> plain("RTX-4090") == plain("rtx 4090")
    True
    """
    return "".join(c for c in name.lower() if c.isalnum())
