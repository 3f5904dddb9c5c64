"""`refsim traffic`: the ledger of a shape, executed or written down in closed form, and its time on a device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from refsim.cli_devices import find_device
from refsim.cli_inputs import make_inputs
from refsim.cli_shape import ALGORITHMS, Shape, parse_algorithm, parse_dtype, parse_mask, parse_tile
from refsim.cli_table import print_table

if TYPE_CHECKING:
    from rich.console import Console

    from refsim.cost import Device
    from refsim.machine import Ledger

# Above so many scores, or numbers in q, k and v, an execution takes long enough (and memory enough) that the closed
# form, which is equal, answers instead.
MOST_EXECUTED = 50_000_000
NAMES = f"One of {', '.join(ALGORITHMS)}"


def traffic(
    algorithm: Annotated[list[str] | None, typer.Option(help=f"{NAMES}; repeat it for several. [default: all]")] = None,
    lengths: str = typer.Option("1024", help="Keys of each sequence, separated by commas."),
    queries: int = typer.Option(1, help="Query tokens of each sequence: 1 is a decode step."),
    prefill: bool = typer.Option(False, "--prefill", help="As many queries as keys, instead of --queries."),
    heads: int = typer.Option(8, help="Query heads."),
    kv_heads: int = typer.Option(2, help="KV heads; query heads must be a multiple of them."),
    head_dim: int = typer.Option(64, help="Numbers a head."),
    dtype: str = typer.Option("float16", help="Type of q, k and v: float64, float32, float16, bfloat16, e4m3 or e5m2."),
    tile: str | None = typer.Option(None, help="ROWSxKEYS that a program holds. [default: the largest that fits]"),
    causal: bool = typer.Option(False, "--causal", help="Hide the keys after each query's own position."),
    window: int | None = typer.Option(None, help="Keys that a query sees, its own position among them."),
    block_size: int = typer.Option(16, help="Tokens a block of the paged cache."),
    splits: int = typer.Option(4, help="Splits of split_kv."),
    device: str | None = typer.Option(
        None, help="Its on-chip memory limits tiles; adds a time. One of `refsim devices`, or FILE.toml:NAME."
    ),
    execute: bool | None = typer.Option(
        None, "--execute/--closed-form", help="Run it, or write the ledger down. [default: run it unless it is large]"
    ),
    seed: int = typer.Option(0, help="Seed of the random inputs of an execution."),
) -> None:
    """Print what an attention call moves through HBM and computes, by algorithm and tensor.

    \b
    Example:
        refsim traffic --lengths 4096 --heads 32 --kv-heads 8 --head-dim 128
        refsim traffic --lengths 1000,37,512 --algorithm paged --algorithm split_kv
        refsim traffic --prefill --causal --lengths 1000000 --algorithm flash --device H100
    """
    from rich.console import Console

    from refsim.machine import DEFAULT_SRAM_NBYTES

    keys = parse_lengths(lengths)
    shape = Shape(
        lengths=tuple((T if prefill else queries, T) for T in keys),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        dtype=parse_dtype(dtype),
        tile=parse_tile(tile),
        block_size=block_size,
        num_splits=splits,
        mask=parse_mask(causal, window),
    )
    names = [parse_algorithm(name) for name in algorithm or ALGORITHMS]
    gpu = None if device is None else find_device(device)
    if gpu is not None:
        gpu.matrix_flops_per_s(shape.dtype)  # refuses a type without a figure, before anything runs
    sram_nbytes = DEFAULT_SRAM_NBYTES if gpu is None else gpu.sram_nbytes
    if execute is None:
        execute = max(shape.scores, shape.numbers) <= MOST_EXECUTED
    if execute:
        ledgers = executed(names, shape, seed, sram_nbytes)
    else:
        ledgers = {name: shape.closed_form(name, sram_nbytes) for name in names}
    show(Console(), shape, ledgers, "executed" if execute else "in closed form", gpu)


def parse_lengths(given: str) -> list[int]:
    """Lengths separated by commas.

    >>> parse_lengths("1000,37")
    [1000, 37]
    """
    parts = given.replace("_", "").split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise ValueError(f"--lengths must be whole numbers separated by commas, such as 1000,37; got {given!r}")
    return [int(part) for part in parts]


def executed(names: list[str], shape: Shape, seed: int, sram_nbytes: int) -> dict[str, Ledger]:
    """The ledger of each algorithm, by running it on random inputs."""
    from refsim.machine import Machine

    try:
        inputs = make_inputs(shape, seed)
    except MemoryError as error:
        raise MemoryError(f"{error}. --closed-form gives the same ledger without a run") from None
    ledgers = {}
    for name in names:
        function, arguments, keywords = inputs.call(name, Machine(sram_nbytes=sram_nbytes))
        ledgers[name] = function(*arguments, **keywords).ledger
    return ledgers


def show(console: Console, shape: Shape, ledgers: Mapping[str, Ledger], how: str, device: Device | None) -> None:
    """What was asked, and the table."""
    queries, keys = (", ".join(map(str, dict.fromkeys(each))) for each in zip(*shape.lengths, strict=True))
    console.print(
        f"Sequences: {len(shape.lengths)}. Queries: {queries}. Keys: {keys}. Heads: {shape.heads} over "
        f"{shape.kv_heads} KV heads of {shape.head_dim}, {shape.dtype}. Counts: {how}.",
        highlight=False,
    )
    rows, sections = ledger_rows(ledgers)
    if device is not None:
        sections.append(len(rows))
        rows += time_rows(ledgers, device, shape.dtype)
    print_table(console, ("HBM bytes", *ledgers), rows, "l" + "r" * len(ledgers), sections=sections)
    if device is not None:
        said = f"Times are a plain roofline's, on {device.title}: every resource at its peak, perfect overlap."
        console.print(said, highlight=False, markup=False)


def time_rows(ledgers: Mapping[str, Ledger], device: Device, dtype: str) -> list[list[str]]:
    """Two rows: microseconds on a device, and what they go to."""
    from refsim.cost import estimate

    estimates = [estimate(ledger, device, dtype=dtype) for ledger in ledgers.values()]
    return [
        [f"us on {device.name}", *(f"{1e6 * each.total_s:,.1f}" for each in estimates)],
        ["bound by", *(each.bound for each in estimates)],
    ]


def ledger_rows(ledgers: Mapping[str, Ledger]) -> tuple[list[list[str]], list[int]]:
    """A column an algorithm: HBM bytes by tensor (read and written together), their sums, then the work.

    With the numbers of the rows at which sums and work begin.
    """
    each = ledgers.values()

    def row(label: str, numbers: Iterable[float], digits: int = 0) -> list[str]:
        return [label, *(f"{number:,.{digits}f}" for number in numbers)]

    tensors = [row(tensor, (ledger.total(tensor=tensor) for ledger in each)) for tensor in tensors_of(ledgers)]
    sums = [
        row("read", (ledger.total(direction="read") for ledger in each)),
        row("written", (ledger.total(direction="write") for ledger in each)),
        row("in all", (ledger.hbm_nbytes for ledger in each)),
    ]
    work = [
        row("matmul FLOPs", (ledger.matmul_flops for ledger in each)),
        row("FLOPs a byte", (ledger.matmul_flops / max(ledger.hbm_nbytes, 1) for ledger in each), digits=1),
        row("exponentials", (ledger.exponentials for ledger in each)),
        row("kernel launches", (ledger.launches for ledger in each)),
        row("programs", (ledger.programs for ledger in each)),
    ]
    return [*tensors, *sums, *work], [len(tensors), len(tensors) + len(sums)]


def tensors_of(ledgers: Mapping[str, Ledger]) -> list[str]:
    """Every tensor that crosses HBM in any of the ledgers, the heaviest first."""
    heaviest: dict[str, int] = {}
    for ledger in ledgers.values():
        for _, tensor, _ in ledger.hbm_only():
            heaviest[tensor] = max(heaviest.get(tensor, 0), ledger.total(tensor=tensor))
    return sorted(heaviest, key=lambda tensor: (-heaviest[tensor], tensor))
