"""What a program holds on chip: the plan's figure is the measured one, and tiles chosen for a machine fit it."""

from itertools import product
from typing import Any

import numpy as np
import pytest

from refsim import attention
from refsim.attention import Plan
from refsim.cost import closed_form, devices
from refsim.machine import Machine

PER_HEAD = np.array([0.5, 0.25, 0.125, 0.5])
VARIANTS: list[dict[str, Any]] = [{}, {"sinks": PER_HEAD}, {"alibi_slopes": PER_HEAD}, {"causal": True, "softcap": 9.0}]


@pytest.mark.parametrize("variant", VARIANTS, ids=["plain", "sinks", "alibi", "causal-softcap"])
@pytest.mark.parametrize(("n", "dtype", "Dv"), [(1, "float16", 64), (200, "float32", 32), (50, "float64", 64)])
def test_the_plan_says_what_flash_holds(n: int, dtype: str, Dv: int, variant: dict[str, Any]) -> None:
    rng, machine = np.random.default_rng(0), Machine()
    q, k, v = (rng.standard_normal(s).astype(dtype) for s in ((n, 4, 64), (300, 2, 64), (300, 2, Dv)))
    work = attention.flash(q, k, v, machine=machine, **variant).ledger.work["flash"]
    plan = Plan.of([(n, 300)], 4, 2, 64, Dv, dtype=dtype, sram_nbytes=machine.sram_nbytes, **variant)
    assert plan.on_chip_nbytes == work.sram_peak_nbytes


@pytest.mark.parametrize("variant", VARIANTS, ids=["plain", "sinks", "alibi", "causal-softcap"])
@pytest.mark.parametrize("block_size", [1, 16, 512])
def test_the_plan_says_what_paged_holds(block_size: int, variant: dict[str, Any]) -> None:
    rng, machine, blocks = np.random.default_rng(0), Machine(), -(-600 // block_size)
    cache = rng.standard_normal((blocks, block_size, 2, 64), np.float32)
    q, tables = rng.standard_normal((1, 4, 64), np.float32), np.arange(blocks, dtype=np.int32)[None]
    work = attention.paged(q, cache, cache, tables, [600], machine=machine, **variant).ledger.work["paged"]
    plan = Plan.of([(1, 600)], 4, 2, 64, packed=True, block_size=block_size, sram_nbytes=machine.sram_nbytes, **variant)
    assert plan.on_chip_nbytes == work.sram_peak_nbytes


def test_on_chip_bytes_by_hand() -> None:
    """2 rows, 4 keys, heads of 8 in 16 bit: q, k, v; s, o, m, l and four statistics a row in float32."""
    plan = Plan.of([(2, 100)], 1, 1, 8, dtype="float16", tile=(2, 4))
    assert plan.on_chip_nbytes == (2 * 8 + 4 * 8 + 4 * 8) * 2 + (2 * 4 + 2 * 8 + 2 + 2 + 4 * 2) * 4


@pytest.mark.parametrize("name", devices.names())
def test_default_tiles_fit_the_device_they_were_chosen_for(name: str) -> None:
    limit = devices.get(name).sram_nbytes
    fitted = 0
    for dtype, D, (n, packed), variant, T in product(
        ("float16", "float32"), (64, 128), ((1, True), (7, True), (4096, False)), VARIANTS, (500, 100_000)
    ):
        shape = ([(n, T)], 4, 1, D)
        plan = Plan.of(*shape, dtype=dtype, packed=packed, sram_nbytes=limit, **variant)
        paged = Plan.of(*shape, dtype=dtype, packed=True, sram_nbytes=limit, block_size=16, **variant)
        ledgers = [closed_form.flash(plan), closed_form.paged(paged), closed_form.paged_gather(paged)]
        ledgers += [closed_form.split_kv(paged, num_splits=4)]
        if not packed:
            ledgers.append(closed_form.standard(plan, sram_nbytes=limit))
        for work in (work for ledger in ledgers for work in ledger.work.values()):
            assert work.sram_peak_nbytes <= limit
        fitted += 1
    assert fitted == 96


@pytest.mark.parametrize("sinks", [None, PER_HEAD])
@pytest.mark.parametrize("extra", range(0, 40, 4))
def test_the_softmax_rows_fit_to_the_byte(extra: int, sinks: Any) -> None:
    """Rows of 50 scores and 7 statistics; on-chip memory a little more than 8 of them (and a sink)."""
    machine = Machine(sram_nbytes=8 * 57 * 4 + extra)
    x = np.random.default_rng(0).standard_normal((50, 4, 2), np.float32)
    work = attention.standard(x, x, x, tile=(16, 4), machine=machine, sinks=sinks).ledger.work["softmax"]
    assert work.sram_peak_nbytes <= machine.sram_nbytes
