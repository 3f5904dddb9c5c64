"""Speed of the block manager and of the replay. Run: `python tests/benchmarks/bench_serving.py [TRACE_FOLDER]`.

Blocks allocated, hashed, shared and freed a second, beside a plain dictionary-and-deque manager in the same run; and
the replay's time at two sizes, which should be proportional. Times are of this process's CPU.
"""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from plain_manager import PlainManager

from refsim.kvcache import BlockManager
from refsim.serving import Scheduler, replay, trace
from refsim.serving.memory import PagedMemory
from refsim.serving.step_time import LLAMA_3_1_8B, Roofline

BLOCK = 16
LIVE = 10


def lives(manager, free, prompts: list) -> float:
    """Blocks a second over the whole life of requests, a few of which are live at a time."""
    start = time.process_time()
    for i, prompt in enumerate(prompts):
        manager.allocate(i, prompt)
        manager.commit(i)
        if i >= LIVE:
            free(i - LIVE)
    return sum(-(-len(p) // BLOCK) for p in prompts) / (time.process_time() - start)


def compare() -> None:
    rng = np.random.default_rng(0)
    print(f"{'prompt':>8} {'prompts':>8} {'refsim':>12} {'plain':>12} {'ratio':>6}   blocks/s, best of 3")
    for tokens in (128, 512, 2048, 12288):
        count = 2_000_000 // tokens // 4
        for name, distinct in (("fresh", count), ("shared", max(count // 10, 1))):
            pool = [rng.integers(0, 50000, tokens) for _ in range(distinct)]
            arrays = [pool[i % distinct] for i in range(count)]
            lists = [a.tolist() for a in arrays]
            blocks = LIVE * 4 * tokens // BLOCK
            ours, plain = [], []
            for _ in range(3):
                manager = BlockManager(blocks, BLOCK, prefix_cache=True)
                ours.append(lives(manager, manager.free, arrays))
                yardstick = PlainManager(blocks, BLOCK)
                plain.append(lives(yardstick, yardstick.free_sequence, lists))
            print(f"{tokens:8} {name:>8} {max(ours):12,.0f} {max(plain):12,.0f} {max(ours) / max(plain):6.2f}")


def replays(folder: Path) -> None:
    h100 = Roofline(LLAMA_3_1_8B, 3352e9, 989e12, 0.8, 0.9)
    conv = trace.load(folder / "azure2023/AzureLLMInferenceTrace_conv.csv")
    mooncake = trace.load(folder / "mooncake/conversation_trace.head4000.jsonl")
    for name, requests, blocks, size in (("Azure", conv, 30000, 16), ("Mooncake", mooncake, 10000, 512)):
        for count in (len(requests) // 2, len(requests)):
            manager = BlockManager(blocks, size, prefix_cache=name == "Mooncake")
            start = time.process_time()
            result = replay(requests[:count], Scheduler(PagedMemory(manager)), h100)
            took, tokens = time.process_time() - start, sum(r.total_len for r in requests[:count])
            print(
                f"{name}: {count} requests, {len(result.series.time_s)} steps in {took:.1f} s, "
                f"{1e6 * took / tokens:.3f} us a token"
            )
    print(f"largest memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    compare()
    if len(sys.argv) > 1:
        replays(Path(sys.argv[1]))
