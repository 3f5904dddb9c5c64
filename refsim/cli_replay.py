"""`refsim replay`: a trace of requests against cache managers, with tables and charts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from refsim.checks import one_of
from refsim.cli_replay_tables import print_comparison, print_remarks, print_summary
from refsim.kvcache import BlockManager
from refsim.kvcache.contiguous import FITS, RESERVATIONS
from refsim.serving import ContiguousMemory, PagedMemory, Replay, Request, Scheduler, Workload, load
from refsim.serving.capacity import token_hit_rate
from refsim.serving.measured import Comparison, MeasuredRun, compare, load_run
from refsim.serving.replay import replay as run_replay
from refsim.serving.step_time import LLAMA_3_1_8B, Roofline
from refsim.serving.trace import FORMATS

if TYPE_CHECKING:
    from rich.console import Console

    from refsim.serving import Memory

POLICIES = ("paged", "uncached", *RESERVATIONS)
MOST_LIVE, MOST_LIVE_OUTPUT = 12, 24
# What simulates time, and has no meaning where real values run.
ONLY_SIMULATED = (
    *("policy", "fit", "prefix_cache", "host_blocks", "device", "memory_efficiency", "flops_efficiency"),
    *("max_seqs", "capacity_curve", "against", "out"),
)


def replay(
    ctx: typer.Context,
    trace: Annotated[Path | None, typer.Argument(help="The trace's file. [default: a synthetic workload]")] = None,
    format: str = typer.Option("auto", help="auto, azure, mooncake, measured or burst."),
    block_size: int = typer.Option(16, help="Tokens a block."),
    blocks: int = typer.Option(8192, help="Blocks of the pool; contiguous policies get as many slots."),
    policy: Annotated[
        list[str] | None, typer.Option(help=f"One of {', '.join(POLICIES)}; repeat it to compare. [default: paged]")
    ] = None,
    fit: str = typer.Option("first", help="Where contiguous policies look for room: first or best fit."),
    max_len: int = typer.Option(2048, help="What the policy max reserves; contiguous policies refuse longer requests."),
    prefix_cache: bool = typer.Option(
        True, "--prefix-cache/--no-prefix-cache", help="Share cached prefixes; the policy uncached never does."
    ),
    host_blocks: int = typer.Option(0, help="Blocks of a second tier in host memory, under the prefix cache."),
    device: str = typer.Option("H100", help="Whose peaks the step time uses. See: refsim devices."),
    memory_efficiency: float = typer.Option(0.8, help="Of the HBM peak; the default is calibrated (docs/serving.md)."),
    flops_efficiency: float = typer.Option(0.9, help="Of the matrix peak."),
    max_tokens: int = typer.Option(2048, help="New tokens a step."),
    max_seqs: int = typer.Option(256, help="Requests a batch."),
    limit: int | None = typer.Option(None, min=1, help="Only the first so many requests."),
    requests: int = typer.Option(500, min=1, help="Synthetic: how many."),
    rate: float = typer.Option(8.0, help="Synthetic: arrivals a second (Poisson)."),
    mean_prompt: float = typer.Option(500.0, help="Synthetic: mean prompt length (log-normal)."),
    mean_output: float = typer.Option(200.0, help="Synthetic: mean output length (log-normal)."),
    shared_prompt: float = typer.Option(0.5, help="Synthetic: the part of requests that begin with one system prompt."),
    seed: int = typer.Option(0, min=0, help="Synthetic: seed."),
    capacity_curve: bool = typer.Option(False, "--capacity-curve", help="Also draw the hit rate by cache size."),
    against: Annotated[
        Path | None, typer.Option(help="Folder of a measured run of this trace, to compare with.")
    ] = None,
    model: str | None = typer.Option(
        None, "--model", help="Real values of a few requests, not times: default, random, or a path of weights."
    ),
    out: Annotated[Path, typer.Option(help="Where the charts go.")] = Path("refsim-replay"),
) -> None:
    """Replay requests through a continuous-batching scheduler: pool fill, queue, hit rate, waste, latency.

    \b
    Example:
        refsim replay
        refsim replay AzureLLMInferenceTrace_conv.csv --blocks 4000 --policy paged --policy max
        refsim replay conversation_trace.jsonl --block-size 512 --blocks 2000
        refsim replay sharegpt300.jsonl --blocks 2588 --device "RTX 4090" --against rtx4090_llama31_8b
    """
    from rich.console import Console

    from refsim.cli_devices import find_device

    console = Console()
    policies = policy or ["paged"]
    for name in policies:
        one_of("--policy", name, POLICIES)
    one_of("--format", format, ("auto", *FORMATS))
    one_of("--fit", fit, FITS)
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {out} is a file; name a folder for the charts")
    if trace is None:
        workload = Workload(rate, mean_prompt, mean_output, 1.0, max_len, shared_prompt, max(0, min(256, max_len - 2)))
        load_of = workload.draw(requests, np.random.default_rng(seed))[:limit]
    else:
        load_of = load(trace, format, limit=limit)
    if model is not None:
        _refuse_unused(ctx)
        _live(console, load_of, model, blocks, block_size, max_tokens, seed)
        return
    peaks = find_device(device)
    step_time = Roofline(
        LLAMA_3_1_8B, peaks.hbm_bytes_per_s, peaks.fp16_flops_per_s, memory_efficiency, flops_efficiency
    )
    measured = None if against is None else load_run(against, load_of)
    results = {}
    for name in policies:
        memory = _memory(
            name, blocks, block_size, prefix_cache, host_blocks, fit, max_len, null_block=measured is not None
        )
        scheduler = Scheduler(memory, max_tokens=max_tokens, max_seqs=max_seqs)
        results[name] = _with_progress(console, name, load_of, scheduler, step_time)
    print_summary(console, results, len(load_of))
    print_remarks(console, results, load_of)
    comparison = None
    if measured is not None:
        comparison = compare(results[policies[0]], measured)
        print_comparison(console, comparison, measured, results[policies[0]])
    rates = _capacity_curve(console, load_of, block_size) if capacity_curve else {}
    for path in _draw(out, results, measured, comparison, rates, block_size):
        console.print(f"wrote {path}")


def _refuse_unused(ctx: typer.Context) -> None:
    """An option that would be ignored is a misunderstanding: say so."""
    sources = {name: ctx.get_parameter_source(name) for name in ONLY_SIMULATED}
    given = [
        f"--{name.replace('_', '-')}" for name, source in sources.items() if source and source.name == "COMMANDLINE"
    ]
    if given:
        raise ValueError(
            f"--model runs real values through a paged cache, not times, and has no use for {', '.join(given)}"
        )


def _memory(
    policy: str,
    blocks: int,
    block_size: int,
    prefix_cache: bool,
    host_blocks: int,
    fit: str,
    max_len: int,
    *,
    null_block: bool,
) -> Memory:
    if policy in ("paged", "uncached"):
        prefix_cache = prefix_cache and policy == "paged"
        host_blocks = host_blocks if policy == "paged" else 0
        # A measured engine counts its null block in the pool's size.
        return PagedMemory(
            BlockManager(
                blocks, block_size, prefix_cache=prefix_cache, host_blocks=host_blocks, reserved=int(null_block)
            )
        )
    return ContiguousMemory(blocks * block_size, policy, fit=fit, max_len=max_len)


def _with_progress(
    console: Console, name: str, requests: Sequence[Request], scheduler: Scheduler, step_time: Roofline
) -> Replay:
    from rich.progress import Progress

    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(f"replaying, {name}", total=len(requests))
        return run_replay(requests, scheduler, step_time, progress=lambda done: bar.update(task, completed=done))


def _capacity_curve(console: Console, requests: Sequence[Request], block_size: int) -> dict[int | None, float]:
    """Hit rates of least-recently-used caches of growing size, and of one without end (None)."""
    everything = sum(-(-r.prompt_len // block_size) for r in requests)
    sizes = sorted({max(1, everything // 2**k) for k in range(1, 10)})
    rates: dict[int | None, float] = {s: token_hit_rate(requests, block_size, s) for s in sizes}
    rates[None] = token_hit_rate(requests, block_size)
    found = ", ".join(f"{'without end' if s is None else s}: {100 * r:.2f} %" for s, r in rates.items())
    console.print(f"prompt tokens hit by a cache of so many blocks: {found}")
    return rates


def _draw(
    out: Path,
    results: dict[str, Replay],
    measured: MeasuredRun | None,
    comparison: Comparison | None,
    rates: dict[int | None, float],
    block_size: int,
) -> list[Path]:
    from refsim.charts import serving as charts

    out.mkdir(parents=True, exist_ok=True)
    name, first = next(iter(results.items()))
    axes = {
        "pool_fill": charts.pool_fill(first, measured, name=name),
        "queue": charts.queue(first, measured, name=name),
        "time_to_first_token": charts.latency(results, "ttft_s"),
        "time_per_output_token": charts.latency(results, "tpot_s"),
        "slot_use": charts.slot_use(results),
        "waste": charts.waste(results),
    }
    if any(r.hit_rate for r in results.values()):
        axes["hit_rate"] = charts.hit_rate(results)
    if comparison is not None and measured is not None:
        axes["residuals"] = charts.residuals(comparison, measured)
    if rates:
        finite = {size: rate for size, rate in rates.items() if size is not None}
        axes["capacity_curve"] = charts.capacity_curve(finite, rates[None], block_size=block_size)
    paths = []
    for name, ax in axes.items():
        paths.append(out / f"{name}.png")
        figure = ax.get_figure(root=True)
        assert figure is not None
        figure.savefig(paths[-1])
    return paths


def _live(
    console: Console, requests: list[Request], path: str, blocks: int, block_size: int, max_tokens: int, seed: int
) -> None:
    """Small copies of the requests through a real decoder; every text must be what it is alone."""
    from refsim import model
    from refsim.serving.live import LiveRequest, alone, ids_of_trace, run_live

    if path == "random":
        decoder = model.random_decoder(seed=seed)
    else:
        decoder = model.load(None if path == "default" else path)
    rng = np.random.default_rng(seed)
    longest = min(decoder.config.context, blocks * block_size) // 2  # of a prompt, and of an output
    if longest < 1:
        raise ValueError(f"{blocks} block(s) of {block_size} token(s) hold no prompt and its output; give more")
    wants = []
    for i, request in enumerate(requests[:MOST_LIVE]):
        prompt = ids_of_trace(request, decoder.config.vocab, rng)[:longest]
        wants.append(
            LiveRequest(tuple(prompt.tolist()), min(request.output_len, longest, MOST_LIVE_OUTPUT), 1 + (i % 4 == 0))
        )
    result = run_live(decoder, wants, num_blocks=blocks, block_size=block_size, max_tokens=max_tokens)
    wrong = [key for key, ids in result.ids.items() if ids != alone(decoder, wants[key[0]], key[1])]
    console.print(
        f"{decoder.name}: {len(result.ids)} outputs of {len(wants)} requests in {result.steps} steps; "
        f"{result.preemptions} preemptions, {result.hit_tokens} tokens hit, {result.evictions} blocks evicted, "
        f"{result.copies} copied before a write"
    )
    if decoder.tokenizer is not None:
        for key in list(result.ids)[:4]:
            console.print(f"  request {key[0]}, output {key[1]}: {decoder.tokenizer.decode(result.ids[key])!r}")
    if wrong:
        raise ValueError(f"outputs {wrong} differ from the same requests run alone: the cache mixed sequences up")
    console.print("every output equals that of its request run alone")
