"""How the bytes grow with the length, for a model of ordinary size, by closed forms."""

from __future__ import annotations

from collections.abc import Callable

from refsim import charts
from refsim.attention import Plan
from refsim.cost import Device, closed_form, estimate
from refsim.machine import Ledger
from refsim.numerics import dtype_of
from refsim.tour.page import Chapter, Picture, Prose, Table

HEADS, KV_HEADS, HEAD_DIM, DTYPE, BLOCK_SIZE, SPLITS = 32, 8, 128, "float16", 16, 16
LENGTHS = [2**power for power in range(7, 21)]
IN_TABLE = (1024, 16384, 131072, 1048576)
AT_DECODE, AT_PREFILL = 131072, 8192
ONCE = "each tensor once"


def plan(queries: int, keys: int, *, paged: bool, sram_nbytes: int) -> Plan:
    """An attention call of that model over one sequence."""
    return Plan.of(
        [(queries, keys)],
        HEADS,
        KV_HEADS,
        HEAD_DIM,
        dtype=DTYPE,
        causal=True,
        packed=paged,
        block_size=BLOCK_SIZE if paged else None,
        sram_nbytes=sram_nbytes,
    )


def decode(keys: int, device: Device) -> dict[str, Ledger]:
    """One new token over a cache of that length."""
    rows, blocks = (plan(1, keys, paged=paged, sram_nbytes=device.sram_nbytes) for paged in (False, True))
    return {
        "paged_gather": closed_form.paged_gather(blocks),
        "standard": closed_form.standard(rows, sram_nbytes=device.sram_nbytes),
        "flash": closed_form.flash(rows),
        "paged": closed_form.paged(blocks),
        "split_kv": closed_form.split_kv(blocks, num_splits=SPLITS),
    }


def prefill(tokens: int, device: Device) -> dict[str, Ledger]:
    """A whole prompt of that length at once."""
    rows, blocks = (plan(tokens, tokens, paged=paged, sram_nbytes=device.sram_nbytes) for paged in (False, True))
    return {
        "standard": closed_form.standard(rows, sram_nbytes=device.sram_nbytes),
        "flash": closed_form.flash(rows),
        "paged": closed_form.paged(blocks, ragged=True),
    }


def each_once(queries: int, keys: int) -> int:
    """Bytes of q, k, v and out: the least that any algorithm can move."""
    return (2 * queries * HEADS + 2 * keys * KV_HEADS) * HEAD_DIM * dtype_of(DTYPE).itemsize


def lengths(device: Device) -> Chapter:
    """Bytes against the length, for decode and prefill, and the times of a decode step on a device."""
    return Chapter(
        "How the bytes grow",
        (
            Prose(
                f"A layer of a larger model: {HEADS} query heads over {KV_HEADS} KV heads of {HEAD_DIM}, {DTYPE}, "
                f"blocks of {BLOCK_SIZE}. Nothing is run: closed forms give the same ledgers, byte for byte."
            ),
            _picture(
                "traffic-decode",
                "keys in the cache",
                lambda T: decode(T, device),
                lambda T: each_once(1, T),
                "Decode, one token: stage A moves K and V three times (read, written, read again); where each query "
                f"head has a program of its own, they are read {HEADS // KV_HEADS} times.",
            ),
            _picture(
                "traffic-prefill",
                "tokens of the prompt",
                lambda T: prefill(T, device),
                lambda T: each_once(T, T),
                "Prefill of a whole prompt, causal: S and P of standard attention are the square of the length; the "
                "step is where a row of S no longer fits on chip and is read twice. Flash reads K and V once a query "
                "tile, which is that square over the tile's rows.",
            ),
            Prose(
                f"What a plain roofline makes of the decode step on {device.title}: the largest of HBM, on-chip, "
                f"matrix, vector and exponential time of each kernel, waves of programs over {device.multiprocessors} "
                f"multiprocessors, and launches. Few programs leave most of them idle: that is what {SPLITS} splits "
                "are for."
            ),
            times(device),
            Picture.of(
                "roofline",
                charts.roofline(
                    {f"decode, {name}": ledger for name, ledger in decode(AT_DECODE, device).items()}
                    | {f"prefill, {name}": ledger for name, ledger in prefill(AT_PREFILL, device).items()},
                    device,
                    dtype=DTYPE,
                ),
                f"Decode over {AT_DECODE:,} keys and prefill of {AT_PREFILL:,} tokens under the roofline: what lies "
                "below the roof waits for idle multiprocessors, exponentials or launches.",
            ),
        ),
    )


def times(device: Device) -> Table:
    """Microseconds of a decode step, by the number of keys."""
    columns = {T: decode(T, device) for T in IN_TABLE}
    rows = [
        (name, *(f"{1e6 * estimate(ledgers[name], device, dtype=DTYPE).total_s:,.1f}" for ledgers in columns.values()))
        for name in columns[IN_TABLE[0]]
    ]
    return Table.of(("µs, by keys", *(f"{T:,}" for T in IN_TABLE)), rows, "l" + "r" * len(IN_TABLE))


def _picture(
    name: str,
    xlabel: str,
    ledgers_at: Callable[[int], dict[str, Ledger]],
    least_at: Callable[[int], int],
    caption: str,
) -> Picture:
    at = [ledgers_at(T) for T in LENGTHS]
    series = {algorithm: [ledgers[algorithm].hbm_nbytes for ledgers in at] for algorithm in at[0]}
    series[ONCE] = [least_at(T) for T in LENGTHS]
    return Picture.of(name, charts.traffic_by_length(LENGTHS, series, xlabel=xlabel), caption)
