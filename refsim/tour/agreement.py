"""Every algorithm writes the same text from the same weights, and what each moved to do so."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from refsim import charts
from refsim.charts.style import tensor_place
from refsim.charts.traffic import by_tensor
from refsim.machine import Ledger
from refsim.tour.page import Chapter, Picture, Prose, Quote, Table, count
from refsim.tour.setting import Setting

ALGORITHMS = {
    "standard": "S and P through HBM",
    "flash": "tiles, contiguous cache",
    "paged_gather": "stage A: copy the blocks first",
    "paged": "stage B: walk the block table",
    "split_kv": "splits, reduced by LSE",
}
ORACLE = "oracle"


class Disagreement(RuntimeError):
    """An algorithm wrote another text than the oracle."""


@dataclass(frozen=True)
class Generated:
    """What one algorithm wrote: ids (n,), the logits that each was chosen from (n, vocab), and the ledger."""

    ids: tuple[int, ...]
    logits: np.ndarray
    ledger: Ledger


def generate(setting: Setting, algorithm: str) -> Generated:
    """Greedy decoding of the setting's prompt with one attention algorithm."""
    run = setting.decoder.start(attention=algorithm, block_size=setting.block_size, sequences=1, length=setting.length)
    seq = run.open()
    logits = [run.prefill(seq, list(setting.ids))[-1]]
    ids = [int(np.argmax(logits[0]))]
    while len(ids) < setting.tokens:
        logits.append(run.step({seq: ids[-1]})[seq])
        ids.append(int(np.argmax(logits[-1])))
    return Generated(tuple(ids), np.stack(logits), run.ledger)


def agreement(setting: Setting, runs: dict[str, Generated]) -> Chapter:
    """The texts side by side. Raises Disagreement if any differs from the oracle's."""
    expected = runs[ORACLE]
    rows = []
    for name, what in ALGORITHMS.items():
        run = runs[name]
        if run.ids != expected.ids:
            at = next(i for i, pair in enumerate(zip(run.ids, expected.ids, strict=True)) if pair[0] != pair[1])
            raise Disagreement(f"{name} wrote token {run.ids[at]} at place {at}, the oracle {expected.ids[at]}")
        apart = np.abs(run.logits - expected.logits).max() / np.abs(expected.logits).max()
        rows.append((name, what, f"{len(run.ids)} of {len(expected.ids)}", f"{apart:.0e}"))
    return Chapter(
        "Five algorithms, one text",
        (
            Prose(
                "The same prompt, decoded greedily with each algorithm over the cache that it reads. Every token is "
                "compared with what the float64 oracle writes; logits may differ by rounding, as a share of the "
                "largest."
            ),
            Table.of(("algorithm", "how", "tokens equal", "logits apart"), rows, "llrr"),
            Quote(setting.prompt, setting.added(expected.ids)),
        ),
    )


def traffic(setting: Setting, runs: dict[str, Generated]) -> Chapter:
    """The attention calls' bytes, by algorithm and tensor."""
    config, ledgers = setting.decoder.config, {name: runs[name].ledger for name in ALGORITHMS}
    shares = {name: by_tensor(ledger) for name, ledger in ledgers.items()}
    groups = sorted({group for share in shares.values() for group in share}, key=tensor_place)
    rows = [(group, *(share.get(group, 0) for share in shares.values())) for group in groups]
    rows.append(("in all", *(ledger.hbm_nbytes for ledger in ledgers.values())))
    group = config.num_heads // config.num_kv_heads
    return Chapter(
        "Where the bytes went",
        (
            Prose(
                f"What the attention calls of that text moved through HBM: {len(setting.ids)} tokens of prompt, "
                f"{setting.tokens - 1} decode steps, {config.num_layers} layers. Standard attention and flash run a "
                f"program a query head, so each KV head is read by its {count(group, 'query head')}; the paged ones "
                "pack these in one program and read K and V once. Stage A pays for its copy: every byte read, written, "
                "and read again."
            ),
            Table.of(("bytes", *ledgers), rows, "l" + "r" * len(ledgers)),
            Picture.of(
                "traffic-by-algorithm",
                charts.traffic_by_algorithm(ledgers),
                "HBM bytes of attention while the text above was written, by algorithm and tensor.",
            ),
        ),
    )
