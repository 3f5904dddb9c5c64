"""`refsim devices`: what the cost model knows of each GPU, and where each figure comes from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from refsim.cli_table import print_table

if TYPE_CHECKING:
    from refsim.cost import Device

# Field of Device, heading, size of the unit it is printed in.
FIGURES = (
    ("multiprocessors", "SMs", 1),
    ("hbm_bytes_per_s", "HBM GB/s", 1e9),
    ("l2_nbytes", "L2 MiB", 2**20),
    ("sram_nbytes", "shared KiB/SM", 2**10),
    ("fp16_flops_per_s", "16-bit TFLOP/s", 1e12),
    ("fp32_flops_per_s", "fp32 TFLOP/s", 1e12),
    ("clock_hz", "GHz", 1e9),
)
MORE_FIGURES = (
    ("fp8_flops_per_s", "fp8 TFLOP/s", 1e12),
    ("fp64_flops_per_s", "fp64 TFLOP/s", 1e12),
    ("exps_per_clock", "exponentials a clock and SM", 1),
    ("sram_bytes_per_clock", "shared bytes a clock and SM", 1),
    ("launch_s", "launch, us", 1e-6),
)
UNCONFIRMED = "unconfirmed"


def devices(
    name: Annotated[str | None, typer.Argument(help="Show one device, each figure with its source.")] = None,
    file: Annotated[
        Path | None, typer.Option(help="A TOML file of your own, in place of the built-in devices.")
    ] = None,
) -> None:
    """List the devices of the cost model, and where their figures come from.

    \b
    Example:
        refsim devices
        refsim devices A100-80
        refsim devices --file my-gpus.toml
    """
    from rich.console import Console

    console = Console()
    known = built_in() if file is None else load_file(file)
    if name is not None:
        device = find_device(name) if file is None else of_file(known, name)
        if device is None:
            raise ValueError(f"{file} has no device {name!r}; it has {', '.join(known)}")
        console.print(device.title, highlight=False, markup=False)
        print_table(console, ("figure", "", "source"), figure_rows(device), "lrl")
        return
    headings = ("device", *(heading for _, heading, _ in FIGURES))
    print_table(console, headings, device_rows(known), "l" + "r" * len(FIGURES))
    stars = any(is_unconfirmed(device, figure) for device in known.values() for figure, _, _ in FIGURES)
    note = f"* {UNCONFIRMED}. " if stars else ""
    here = "" if file is None else f" --file {file}"
    console.print(f"{note}One device, figure by figure: refsim devices NAME{here}\n", highlight=False, markup=False)
    for device in known.values():
        console.print(f"{device.name}: {device.title}. {'; '.join(sources_of(device))}", highlight=False, markup=False)


def find_device(name: str) -> Device:
    """A built-in device by name, or one of a file of your own, as FILE.toml or FILE.toml:NAME.

    Raises ValueError when there is no such device, naming those there are.

    >>> find_device("a100-80").title
    'NVIDIA A100 80 GB SXM'
    """
    from refsim.cost import devices as known

    match = re.fullmatch(r"(.*\.toml)(?::(.*))?", name, re.IGNORECASE)
    if match is None:
        try:
            return known.get(name)
        except LookupError as error:
            raise ValueError(f"{error.args[0]}, or give FILE.toml:NAME, a device of a file of your own") from None
    path, wanted = match.groups()
    mine = load_file(Path(path))
    device = next(iter(mine.values())) if not wanted and len(mine) == 1 else of_file(mine, wanted or "")
    if device is None:
        raise ValueError(f"{path} has the devices {', '.join(mine)}; write {path}:NAME, got {name!r}")
    return device


def built_in() -> dict[str, Device]:
    """The built-in devices by name."""
    from refsim.cost import devices as known

    return {name: known.get(name) for name in known.names()}


def load_file(path: Path) -> dict[str, Device]:
    """The devices of a file by name."""
    from refsim.cost import devices as known

    return known.load(path)


def of_file(mine: Mapping[str, Device], wanted: str) -> Device | None:
    """The device of that name, spelt as freely as a built-in one's; None where there is none, or more than one."""
    from refsim.cost.devices import plain

    alike = [name for name in mine if plain(name) == plain(wanted)]
    return mine.get(wanted) or (mine[alike[0]] if len(alike) == 1 else None)


def device_rows(known: Mapping[str, Device]) -> list[list[str]]:
    """A row a device; a star marks a figure that nobody has confirmed."""
    return [[device.name, *(show_figure(device, name, unit) for name, _, unit in FIGURES)] for device in known.values()]


def figure_rows(device: Device) -> list[list[str]]:
    """A row a figure of one device, with its source."""
    return [
        [heading, show_figure(device, name, unit), device.sources.get(name, "")]
        for name, heading, unit in (*FIGURES, *MORE_FIGURES)
    ]


def show_figure(device: Device, name: str, unit: float) -> str:
    """A figure in its unit.

    >>> show_figure(find_device("A100-80"), "hbm_bytes_per_s", 1e9)
    '2,039'
    """
    value = getattr(device, name)
    if value is None:
        return "none"
    star = "*" if is_unconfirmed(device, name) else ""
    return f"{value / unit:.4g}{star}" if value / unit < 999.95 else f"{value / unit:,.0f}{star}"


def is_unconfirmed(device: Device, name: str) -> bool:
    """Whether nobody has confirmed a figure."""
    return device.sources.get(name, "").startswith(UNCONFIRMED)


def sources_of(device: Device) -> list[str]:
    """The sources of a device's own figures, each once, the unconfirmed left out."""
    own = (device.sources.get(name, "") for name, _, _ in FIGURES)
    return [source for source in dict.fromkeys(own) if source and not source.startswith(UNCONFIRMED)] or [UNCONFIRMED]
