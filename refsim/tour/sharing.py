"""Two requests that share a prefix: a fork, reference counts, and the copy before the first write."""

from __future__ import annotations

import numpy as np

from refsim import charts
from refsim.kvcache import blocks_for
from refsim.model import PagedCache, Session
from refsim.tour.life import new_cache, shorten, show_table
from refsim.tour.page import Chapter, Picture, Prose, Quote, Table, count
from refsim.tour.setting import Setting

FIRST, SECOND = "first", "second"
STEPS = 8


def sharing(setting: Setting) -> Chapter:
    """Fork a prefilled request; the two write different tokens; neither sees the other's.

    A prompt that fills its blocks exactly leaves nothing to copy: then the request writes a token before it is forked.
    """
    ids, B = list(setting.ids), setting.block_size
    write_first = len(ids) % B == 0 and B > 1 and setting.tokens > 1
    steps = min(STEPS, setting.tokens - write_first)
    most = len(ids) + write_first + steps
    cache = new_cache(setting, 2 * blocks_for(most, B))
    run = setting.decoder.start(attention="paged", cache=cache, length=most)
    rows: list[tuple[str, str, str, str]] = []

    def note(what: str) -> None:
        rows.append((what, *_tables(cache, names), _refs(cache)))

    first = run.open()
    names = {first: FIRST}
    logits = run.prefill(first, ids)[-1]
    note("the first request is prefilled")
    if write_first:
        ids.append(int(np.argmax(logits)))
        logits = run.step({first: ids[-1]})[first]
        note("it writes a token into a new block")
    second = run.fork(first)
    names[second] = SECOND
    note("the second forks it: no byte is copied")
    best, runner_up = (int(token) for token in np.argsort(-logits, kind="stable")[:2])
    logits_of = {second: run.step({second: runner_up})[second]}
    note("the second writes a token")
    logits_of[first] = run.step({first: best})[first]
    note("the first writes another")
    texts = {first: [best], second: [runner_up]}
    for _ in range(steps - 1):
        chosen = {seq: int(np.argmax(logits_of[seq])) for seq in texts}
        for seq, token in chosen.items():
            texts[seq].append(token)
        logits_of = run.step(chosen)
    picture = Picture.of(
        "pool-shared-prefix",
        charts.pool_map(cache.manager, names=names),
        "The pool while both are alive: striped blocks are shared, and nobody writes into them.",
    )
    alone = {seq: _alone(setting, [*ids, text[0]], steps) for seq, text in texts.items()}
    if texts != alone:
        raise RuntimeError(f"sharing changed a text: {texts} together, {alone} alone")
    run.close(first)
    names.pop(first)
    note("the first ends: shared blocks stay")
    run.close(second)
    note("the second ends: all blocks are free")
    cache.manager.check_invariants()
    return Chapter(
        "Two requests share a prefix",
        (
            Prose(_what_happens(len(setting.ids), B, write_first)),
            Table.of(("what happens", FIRST, SECOND, "references"), rows, "llll"),
            Prose("Both texts are, token for token, what each request gets alone, in a cache of its own:"),
            *(Quote(setting.prompt, setting.added([*ids[len(setting.ids) :], *text])) for text in texts.values()),
            picture,
        ),
    )


def _what_happens(length: int, block_size: int, write_first: bool) -> str:
    full, used = divmod(length, block_size)
    begin = (
        f"The prompt's {count(length, 'token')} fill{'s' if length == 1 else ''} {count(full, 'block')} of {block_size}"
    )
    if used:
        begin += f" and {count(used, 'slot')} of another. That last block"
    elif write_first:
        begin += " exactly, and the first request writes a token more. That token's block"
    else:
        return f"{begin} exactly: whoever writes next takes a new block, and nothing needs to be copied."
    return (
        f"{begin} is shared when the second request wants to write, so the manager copies it first and drops one "
        "reference: copy-on-write. The full blocks stay shared to the end."
    )


def _tables(cache: PagedCache, names: dict[int, str]) -> tuple[str, str]:
    held = {name: show_table(cache.manager.table(seq)) for seq, name in names.items() if seq in cache.manager}
    return held.get(FIRST, ""), held.get(SECOND, "")


def _refs(cache: PagedCache) -> str:
    refs = cache.manager.pool.refs
    held = [f"P{block}:{refs[block]}" for block in np.flatnonzero(refs)]
    return shorten(held, 8, "…") or "none"


def _alone(setting: Setting, ids: list[int], steps: int) -> list[int]:
    """The last of these ids and what follows, as a request gets it in a contiguous cache of its own, by the oracle."""
    run: Session = setting.decoder.start(attention="oracle", length=len(ids) + steps - 1)
    return [ids[-1], *run.stream(run.open(), ids, steps - 1)]
