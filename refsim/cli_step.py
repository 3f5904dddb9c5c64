"""`refsim step`: walk an algorithm in the terminal, one step a key press."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import numpy as np
import typer

from refsim.cli_inputs import make_inputs
from refsim.cli_shape import ALGORITHMS, Shape, parse_algorithm, parse_mask, parse_tile

if TYPE_CHECKING:
    from rich.console import Console

    from refsim.attention import Result
    from refsim.cli_inputs import Inputs

MOST_NUMBERS = 1_000_000
LEAVE, THE_REST = ("q", "Q", "\x1b"), ("a", "A")


def step(
    algorithm: str = typer.Argument(help=f"One of {', '.join(ALGORITHMS)}."),
    all_steps: bool = typer.Option(False, "--all", help="Print every step without waiting for a key."),
    queries: int = typer.Option(4, help="Query tokens."),
    keys: int = typer.Option(10, help="Key tokens."),
    heads: int = typer.Option(2, help="Query heads."),
    kv_heads: int = typer.Option(1, help="KV heads; query heads must be a multiple of them."),
    head_dim: int = typer.Option(4, help="Numbers a head."),
    tile: str = typer.Option("4x4", help="ROWSxKEYS that a program holds at once."),
    causal: bool = typer.Option(False, "--causal", help="Hide the keys after each query's own position."),
    window: int | None = typer.Option(None, help="Keys that a query sees, its own position among them."),
    block_size: int = typer.Option(4, help="Tokens a block of the paged cache."),
    splits: int = typer.Option(3, help="Splits of split_kv."),
    seed: int = typer.Option(0, help="Seed of the random inputs."),
) -> None:
    """Walk an algorithm a step at a time: the state before and after, what the step moved, the lines that did it.

    Press any key for the next step, a for all the rest, q to leave. Inputs are random and small, so that the numbers
    fit on the screen; the state is that of the first program (thread block).

    \b
    Example:
        refsim step flash --queries 2 --keys 8 --tile 2x4 --causal
        refsim step split_kv --queries 1 --keys 12 --splits 3 --all
    """
    from rich.console import Console

    shape = Shape(
        lengths=((queries, keys),),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        tile=parse_tile(tile),
        block_size=block_size,
        num_splits=splits,
        mask=parse_mask(causal, window),
    )
    name = parse_algorithm(algorithm)
    check_small(shape)
    walk(Console(), name, make_inputs(shape, seed), wait=not all_steps and sys.stdin.isatty())


def check_small(shape: Shape) -> None:
    """Raise ValueError for a shape that nobody could watch, or with too many steps to print."""
    ((queries, keys),) = shape.lengths
    largest = shape.heads * max(queries * keys, max(queries, keys) * shape.head_dim)
    if largest > MOST_NUMBERS:
        raise ValueError(
            f"{queries} queries over {keys} keys with {shape.heads} heads of {shape.head_dim} are too many numbers to "
            f"watch ({largest:,}, at most {MOST_NUMBERS:,}); refsim traffic counts large shapes"
        )


def walk(console: Console, name: str, inputs: Inputs, *, wait: bool) -> None:
    """Show every step, waiting for a key before each but the first where `wait` is set; then the whole ledger."""
    from refsim.cli_step_view import show_step
    from refsim.machine import Machine

    function, arguments, keywords = inputs.call(name, Machine())
    steps = function.steps(*arguments, **keywords)
    for number, each in enumerate(steps, start=1):
        show_step(console, number, each)
        if wait:
            console.print("[dim]any key: next step   a: all the rest   q: leave[/dim]")
            key = typer.getchar()
            if key in LEAVE:
                return
            wait = key not in THE_REST
    show_result(console, steps.result, inputs)


def show_result(console: Console, result: Result, inputs: Inputs) -> None:
    """The whole ledger, and how far the answer lies from the oracle's."""
    from refsim import oracle

    console.rule("done")
    console.print(str(result.ledger), highlight=False, soft_wrap=True)
    expected, _ = oracle.attention(inputs.q, inputs.k, inputs.v, **inputs.shape.mask)
    error = float(np.abs(result.out - expected).max(initial=0))
    console.print(f"largest difference from the float64 oracle: {error:.1e}")
