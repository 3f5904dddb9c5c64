"""The life of a request: it arrives, prefill fills blocks, decode takes a slot a token, the end gives all back."""

from __future__ import annotations

import numpy as np

from refsim import charts
from refsim.kvcache import blocks_for, byte_offset, locate
from refsim.model import PagedCache
from refsim.tour.page import Chapter, Picture, Prose, Quote, Table, count
from refsim.tour.setting import Setting

MOST_ROWS = 12


def new_cache(setting: Setting, num_blocks: int) -> PagedCache:
    """A cache whose free blocks are shuffled, as they are in a server that has been running for a while."""
    order = np.random.default_rng(0).permutation(num_blocks).tolist()
    return PagedCache.of(setting.decoder.config, num_blocks, setting.block_size, free_order=order)


def life(setting: Setting) -> Chapter:
    """One request from arrival to release, with its block table whenever that changes."""
    config, B = setting.decoder.config, setting.block_size
    num_blocks = blocks_for(setting.length, B) + 2
    cache = new_cache(setting, num_blocks)
    run = setting.decoder.start(attention="paged", cache=cache, length=setting.length)
    manager = cache.manager
    rows: list[tuple[str, int | str, str, int | str]] = []

    def note(what: str) -> None:
        rows.append((what, run.length(seq), show_table(manager.table(seq)), manager.available))

    seq = run.open()
    note("arrives")
    new = []
    for token in run.stream(seq, setting.ids, setting.tokens):
        new.append(token)
        if len(new) == 1:
            note(f"prefill: {count(len(setting.ids), 'token')} at once")
        elif run.length(seq) % B == 1 or B == 1:
            note(f"decode: token {run.length(seq)} opens a block")
    if setting.tokens > 1:
        note("decode: the last token")
    unused, position = manager.stats().unused_slots, run.length(seq) - 1
    logical, slot = locate(position, B)
    block = int(manager.table(seq)[logical])
    kv_dim = config.num_kv_heads * config.head_dim
    offset = byte_offset(block, slot, B, kv_dim)
    picture = Picture.of(
        "pool-one-request",
        charts.pool_map(manager, names={seq: "the request"}),
        "The pool at the last token: physical blocks, filled as far as their slots are in use.",
    )
    run.close(seq)
    rows.append(("finished: all blocks go back", 0, "", manager.available))
    if len(rows) > MOST_ROWS:
        rows[MOST_ROWS // 2 : -MOST_ROWS // 2] = [("…", "", "", "")]
    manager.check_invariants()
    return Chapter(
        "The life of a request",
        (
            Prose(
                f"The pool has {num_blocks} blocks of {B} tokens, handed out in a shuffled order, as after hours of "
                "service. Logical block i of the sequence lies in the i-th physical block of its table."
            ),
            Table.of(("the request", "tokens", "block table", "free blocks"), rows, "lrlr"),
            Prose(
                f"Where is position {position}? Logical block {position} // {B} = {logical}, slot {position} % {B} = "
                f"{slot}; the table says P{block}; so its K begins at byte ({block} x {B} + {slot}) x {kv_dim} x 4 = "
                f"{offset:,} of each layer's pool. Reserved and unused at the end: {count(unused, 'slot')}, never more "
                f"than {B - 1} a sequence."
            ),
            Quote(setting.prompt, setting.added(new)),
            picture,
        ),
    )


def show_table(table: np.ndarray, most: int = 8) -> str:
    """A block table in words; a long one by its beginning and its end.

    >>> show_table(np.array([5, 2], np.int32)), show_table(np.arange(20), most=4)
    ('P5 P2', 'P0 P1 … P18 P19')
    """
    return shorten([f"P{block}" for block in table], most, "…")


def shorten(words: list[str], most: int, gap: str) -> str:
    """Words in one line; of more than `most`, the first and the last."""
    if len(words) > most:
        words = [*words[: most // 2], gap, *words[-(most // 2) :]]
    return " ".join(words)
