"""A device: what a GPU can move and compute in a second."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

from refsim.checks import is_positive
from refsim.numerics import name_of

_KIND = {
    "float16": "fp16",
    "bfloat16": "fp16",
    "float32": "fp32",
    "float64": "fp64",
    "e4m3": "fp8",
    "e5m2": "fp8",
}
_NO_FIGURES = {"name", "title", "sources"}
_OPTIONAL = {"fp8_flops_per_s", "fp64_flops_per_s"}
WHOLE = {"multiprocessors", "l2_nbytes", "sram_nbytes"}


@dataclass(frozen=True)
class Device:
    """What a GPU can do. `Machine(device)` gives each program its `sram_nbytes`.

    fp16_flops_per_s: matrix products of 16-bit inputs, dense; fp8 and fp64 likewise, None where there is no figure.
    fp32_flops_per_s: float32 arithmetic outside the matrix units, a multiply-add as two.
    exps_per_clock, sram_bytes_per_clock: of one multiprocessor.  launch_s: what a kernel launch costs.
    sources: where each figure comes from, by the name of its field.

    Raises ValueError for a figure that isn't a positive number, or not a whole one where things are counted.
    """

    name: str
    title: str
    multiprocessors: int
    hbm_bytes_per_s: float
    l2_nbytes: int
    sram_nbytes: int
    fp16_flops_per_s: float
    fp32_flops_per_s: float
    clock_hz: float
    exps_per_clock: float
    sram_bytes_per_clock: float
    launch_s: float
    fp8_flops_per_s: float | None = None
    fp64_flops_per_s: float | None = None
    sources: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sources", MappingProxyType(dict(self.sources)))
        for name in (f.name for f in fields(self) if f.name not in _NO_FIGURES):
            value = getattr(self, name)
            if value is None and name in _OPTIONAL:
                continue
            if not is_positive(value) or (name in WHOLE and value != int(value)):
                kind = "positive whole" if name in WHOLE else "positive"
                raise ValueError(f"{name} of {self.name} must be a {kind} number, got {value!r}")

    def __reduce__(self) -> Any:
        # Devices travel to worker processes, and a mapping proxy can't be pickled.
        return _rebuilt, ({**vars(self), "sources": dict(self.sources)},)

    @property
    def exps_per_s(self) -> float:
        """Exponentials a second, over all multiprocessors."""
        return self.exps_per_clock * self.clock_hz * self.multiprocessors

    @property
    def sram_bytes_per_s(self) -> float:
        """Shared-memory bytes a second, over all multiprocessors."""
        return self.sram_bytes_per_clock * self.clock_hz * self.multiprocessors

    def matrix_flops_per_s(self, dtype: Any) -> float:
        """Peak of matrix products with inputs of `dtype`; float32 runs outside the matrix units.

        Raises ValueError where the device has no figure for that type.

        >>> from refsim.cost import devices
        >>> devices.get("A100-80").matrix_flops_per_s("bfloat16") / 1e12
        312.0
        """
        given = name_of(dtype)
        kind = _KIND[given]
        rate: float | None = getattr(self, f"{kind}_flops_per_s")
        if rate is None:
            raise ValueError(
                f"{self.name} has no figure for matrix products in {given}; give it as {kind}_tflops in a device file "
                "(refsim.cost.devices.load), or estimate with another dtype"
            )
        return rate


def _rebuilt(values: dict[str, Any]) -> Device:
    return Device(**values)
