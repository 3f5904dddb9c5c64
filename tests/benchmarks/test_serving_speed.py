"""Speed of the block manager and of the replay.

Blocks allocated, hashed, shared and freed a second, beside a plain dictionary-and-deque manager in the same run; and
the replay's time at two sizes of a trace, which should be proportional. Times are of this process's CPU.

Run with: pytest tests/benchmarks/test_serving_speed.py -n 0 -s
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refsim.kvcache import BlockManager
from refsim.serving import PagedMemory, Roofline, Scheduler, load, replay
from refsim.serving.step_time import LLAMA_3_1_8B
from tests.benchmarks.plain_manager import PlainManager

BLOCK, LIVE, ROUNDS = 16, 10, 3
H100 = Roofline(LLAMA_3_1_8B, 3352e9, 989e12, 0.8, 0.9)


def lives(manager: Any, free: Callable[[int], Any], prompts: list) -> float:
    """Blocks a second over the whole life of requests, a few of which are live at a time."""
    start = time.process_time()
    for i, prompt in enumerate(prompts):
        manager.allocate(i, prompt)
        manager.commit(i)
        if i >= LIVE:
            free(i - LIVE)
    return sum(-(-len(p) // BLOCK) for p in prompts) / (time.process_time() - start)


@pytest.mark.parametrize("shared", [False, True], ids=["fresh", "shared"])
@pytest.mark.parametrize("tokens", [128, 512, 2048, 12288])
def test_blocks_a_second(tokens: int, shared: bool) -> None:
    rng = np.random.default_rng(0)
    count = 500_000 // tokens
    distinct = max(count // 10, 1) if shared else count
    pool = [rng.integers(0, 50000, tokens) for _ in range(distinct)]
    arrays = [pool[i % distinct] for i in range(count)]
    lists = [a.tolist() for a in arrays]
    blocks = LIVE * 4 * tokens // BLOCK
    ours, plain, converted = 0.0, 0.0, 0.0
    for _ in range(ROUNDS):
        manager = BlockManager(blocks, BLOCK, prefix_cache=True)
        ours = max(ours, lives(manager, manager.free, arrays))
        yardstick = PlainManager(blocks, BLOCK)
        plain = max(plain, lives(yardstick, yardstick.free_sequence, lists))
        manager = BlockManager(blocks, BLOCK, prefix_cache=True)
        converted = max(converted, lives(manager, manager.free, lists))
    print(
        f"\n{tokens} tokens: {ours:,.0f} blocks/s, plain {plain:,.0f}, ratio {ours / plain:.2f} (aim: 1, and "
        f"1,000,000); {converted:,.0f} when ids come as lists, which the plain manager takes as they are"
    )


STATUS = Path("/proc/self/status")


def forget_peak() -> None:
    """Let Linux count this process' largest memory anew, so that what ran before has no part in it."""
    if STATUS.exists():
        Path("/proc/self/clear_refs").write_text("5")


def peak_mib() -> str:
    """The largest memory since then, where Linux tells."""
    lines = STATUS.read_text().splitlines() if STATUS.exists() else []
    return next((str(int(line.split()[1]) // 1024) for line in lines if line.startswith("VmHWM")), "?")


@pytest.mark.parametrize(
    ("file", "blocks", "size", "aim"),
    [
        ("azure2023/AzureLLMInferenceTrace_conv.csv", 30000, 16, "60 s, 1 GiB"),
        ("mooncake/conversation_trace.head4000.jsonl", 10000, 512, "10 s"),
        ("mooncake/conversation_trace.head4000.jsonl", 320000, 16, "10 s"),
    ],
)
def test_replay_time_is_linear_in_tokens(shared_data: Path, file: str, blocks: int, size: int, aim: str) -> None:
    requests = load(shared_data / file)
    for count in (len(requests) // 2, len(requests)):
        manager = BlockManager(blocks, size, prefix_cache=file.startswith("mooncake"))
        forget_peak()
        start = time.process_time()
        result = replay(requests[:count], Scheduler(PagedMemory(manager)), H100)
        took, tokens = time.process_time() - start, sum(r.total_len for r in requests[:count])
        print(
            f"\n{file}, blocks of {size}: {count} requests, {len(result.series.time_s)} steps in {took:.1f} s "
            f"(aim for all: {aim}), {1e6 * took / tokens:.3f} us a token, "
            f"largest memory {peak_mib()} MiB"
        )
