"""Random lives of sequences against a model that is only a list of token ids a sequence, coupled to values.

The K of a token is a number made from all ids up to it. A sequence that reads another's block, a stale hit, a
missing copy or a slot written by two therefore reads a wrong number, and not only a wrong count.
"""

import hashlib
from collections import Counter

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from refsim.kvcache import BlockManager, OutOfBlocks, PagedKV, chain, story

IDS = st.integers(0, 2)  # few ids, so that prefixes meet often
WHICH = st.integers(0, 99)


def value_of(ids: list[int], salt: int) -> float:
    digest = hashlib.blake2b(repr((ids, salt)).encode(), digest_size=3).digest()
    return float(int.from_bytes(digest, "big"))  # below 2**24: exact in float32


class Life(RuleBasedStateMachine):
    """Allocate, append, fork, commit, preempt, pin and free in any order, over a pool that is often too small."""

    prefix_cache = True
    tables = 1
    known_ids = True
    host_blocks = 0

    @initialize(blocks=st.integers(1, 20), block_size=st.integers(1, 4))
    def start(self, blocks: int, block_size: int) -> None:
        self.manager = BlockManager(
            blocks * self.tables,
            block_size,
            tables=self.tables,
            prefix_cache=self.prefix_cache,
            host_blocks=self.host_blocks,
            record=True,
        )
        self.kv = PagedKV(self.manager, 2, 1, 1)
        self.model: dict[int, tuple[list[int], int]] = {}
        self.pins: list[list[int]] = []
        self.next_id = 0
        self.past: list[tuple[list[int], int]] = []
        self.cut_into: set[int] = set()  # sequences with a tail in which others had written on

    def attempt(self, call) -> bool:
        """Run a call that may run out of blocks; if it does, it was right to, and nothing changed."""
        before = self.picture()
        refusal = None
        try:
            call()
        except OutOfBlocks as error:
            refusal = error
        if refusal is not None:
            held = {int(b) for s in self.model for t in range(self.tables) for b in self.manager.table(s, t)}
            held |= {int(b) for pin in self.pins for b in pin}
            assert refusal.available <= self.manager.pool.num_blocks - len(held)
            assert refusal.needed > refusal.available
            assert self.picture() == before
        return refusal is None

    def picture(self) -> tuple:
        m = self.manager
        tables = {s: [m.table(s, t).tolist() for t in range(self.tables)] for s in m.sequences}
        lengths = {s: m.length(s) for s in m.sequences}
        return tables, lengths, list(m.pool.refs), m.pool.free_ids(), m.stats(), self.kv.k.tobytes()

    def write(self, seq: int, start: int) -> None:
        ids, salt = self.model[seq]
        rows = np.array([value_of(ids[: p + 1], salt) for p in range(start, len(ids))], np.float32).reshape(-1, 1, 1)
        for layer in range(2):
            self.kv.write(self.kv.slot_mapping(seq, start, len(rows), layer), rows + layer, -rows, layer=layer)

    def live(self, which: int) -> int:
        return sorted(self.model)[which % len(self.model)]

    @rule(ids=st.lists(IDS, max_size=24), salt=st.integers(0, 1))
    def allocate(self, ids: list[int], salt: int) -> None:
        seq, self.next_id = self.next_id, self.next_id + 1
        hit = 0

        def call() -> None:
            nonlocal hit
            hit = self.manager.allocate(seq, ids if self.known_ids else len(ids), salt=salt)

        if self.attempt(call):
            assert hit == 0 or (hit < len(ids) and hit % self.manager.block_size == 0)
            self.model[seq] = (list(ids), salt)
            self.write(seq, hit)
            self.past.append((list(ids[:8]), salt))

    @precondition(lambda self: self.past)
    @rule(which=WHICH, more=st.lists(IDS, max_size=6))
    def allocate_what_begins_alike(self, which: int, more: list[int]) -> None:
        ids, salt = self.past[which % len(self.past)]
        self.allocate(ids=ids + more, salt=salt)

    @precondition(lambda self: self.model)
    @rule(which=WHICH, ids=st.lists(IDS, max_size=6))
    def append(self, which: int, ids: list[int]) -> None:
        seq = self.live(which)
        if self.attempt(lambda: self.manager.append(seq, ids if self.known_ids else len(ids))):
            start = len(self.model[seq][0])
            self.model[seq][0].extend(ids)
            self.write(seq, start)

    @precondition(lambda self: self.model)
    @rule(which=WHICH)
    def fork(self, which: int) -> None:
        parent, child, self.next_id = self.live(which), self.next_id, self.next_id + 1
        self.manager.fork(parent, child)
        self.model[child] = (list(self.model[parent][0]), self.model[parent][1])
        if parent in self.cut_into:
            self.cut_into.add(child)

    @precondition(lambda self: self.model and not self.prefix_cache)
    @rule(which=WHICH, count=st.integers(0, 24))
    def adopt(self, which: int, count: int) -> None:
        giver, seq, self.next_id = self.live(which), self.next_id, self.next_id + 1
        ids, salt = self.model[giver]
        ids = ids[:count]
        columns = -(-len(ids) // self.manager.block_size)
        self.manager.adopt(seq, [self.manager.table(giver, t)[:columns] for t in range(self.tables)], len(ids))
        self.model[seq] = (ids, salt)
        self.cut_into.add(seq)  # what follows in its tail is the giver's

    @precondition(lambda self: self.model)
    @rule(which=WHICH, count=st.integers(0, 9))
    def truncate(self, which: int, count: int) -> None:
        seq = self.live(which)
        ids, salt = self.model[seq]
        left = max(0, len(ids) - count)
        self.manager.truncate(seq, left)
        assert self.manager.length(seq) == left
        self.model[seq] = (ids[:left], salt)
        tails = [self.manager.table(seq, t)[-1] for t in range(self.tables)] if left % self.manager.block_size else []
        if any(self.manager.pool.refs[tail] > 1 for tail in tails):
            self.cut_into.add(seq)

    @precondition(lambda self: self.model)
    @rule(which=WHICH)
    def commit(self, which: int) -> None:
        self.manager.commit(self.live(which))

    @precondition(lambda self: self.model)
    @rule(which=WHICH)
    def free(self, which: int) -> None:
        seq = self.live(which)
        self.manager.free(seq)
        del self.model[seq]

    @precondition(lambda self: self.model)
    @rule(which=WHICH)
    def preempt_and_resume(self, which: int) -> None:
        seq = self.live(which)
        self.manager.commit(seq)
        self.manager.free(seq)
        self.cut_into.discard(seq)
        ids, salt = self.model.pop(seq)
        hit = 0

        def call() -> None:
            nonlocal hit
            hit = self.manager.allocate(seq, ids if self.known_ids else len(ids), salt=salt)

        if self.attempt(call):
            self.model[seq] = (ids, salt)
            self.write(seq, hit)

    @precondition(lambda self: self.prefix_cache and self.model)
    @rule(which=WHICH)
    def pin(self, which: int) -> None:
        ids, salt = self.model[self.live(which)]
        self.pins.append(self.manager.pin(ids, salt))

    @precondition(lambda self: self.prefix_cache and self.pins)
    @rule()
    def unpin(self) -> None:
        self.manager.unpin(self.pins.pop(0))

    @invariant()
    def each_reads_what_it_wrote(self) -> None:
        for seq, (ids, salt) in getattr(self, "model", {}).items():
            want = np.array([value_of(ids[: p + 1], salt) for p in range(len(ids))], np.float32)
            for layer in range(2):
                k, v = self.kv.gather(seq, layer)
                assert (k.ravel() == want + layer).all()
                assert (v.ravel() == -want).all()
                unused = -len(ids) % self.manager.block_size
                if unused and seq not in self.cut_into:
                    tail = self.kv.pools(layer)[0][self.kv.table(seq, layer)[-1], -unused:]
                    assert np.isnan(tail).all(), "a slot that nobody wrote holds values"

    @invariant()
    def the_books_agree(self) -> None:
        if hasattr(self, "manager"):
            self.manager.check_invariants()
            free = self.manager.pool.free_ids()
            assert np.isnan(self.kv.k[:, free]).all(), "a free block holds values"

    def teardown(self) -> None:
        for pin in getattr(self, "pins", []):
            self.manager.unpin(pin)
        for seq in list(getattr(self, "model", {})):
            self.manager.free(seq)
        if hasattr(self, "manager"):
            self.manager.check_invariants()
            assert self.manager.available == self.manager.pool.usable


class PlainLife(Life):
    prefix_cache = False
    known_ids = False


class LayeredLife(Life):
    prefix_cache = False
    tables = 2


class TieredLife(Life):
    """Evicted blocks go to a small host tier and come back with their values."""

    host_blocks = 16


class CollidingLife(Life):
    """Hashes so poor that most blocks collide: it may cost hits, but never a wrong number."""

    @initialize()
    def spoil(self) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(chain, "key_of", lambda pair: hash(pair) % 3)

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "patch"):
            self.patch.undo()


@pytest.mark.parametrize("kind", [Life, PlainLife, LayeredLife, TieredLife])
def test_a_long_life(kind: type[Life]) -> None:
    """The same operations drawn by chance, many more of them, in proportions that keep the pool busy."""
    rng = np.random.default_rng(20)
    for blocks, size in [(24, 1), (16, 2), (20, 3), (12, 4)]:
        life = kind()
        life.start(blocks=blocks, block_size=size)
        chances = {"allocate": 2, "alike": 4, "append": 12, "fork": 3, "commit": 6, "free": 6, "preempt": 2}
        chances |= {"pin": 1, "cut": 3} if kind.prefix_cache else {"adopt": 1, "cut": 3}
        for name in rng.choice(
            list(chances),
            1500 if kind.prefix_cache else 1000,
            p=np.array(list(chances.values())) / sum(chances.values()),
        ):
            ids, which = rng.integers(0, 3, rng.integers(1, 8)).tolist(), int(rng.integers(100))
            if name == "allocate":
                life.allocate(ids=ids, salt=which % 2)
            elif name == "alike" and life.past:
                life.allocate_what_begins_alike(which=which, more=ids)
            elif name == "append" and life.model:
                life.append(which=which, ids=ids[:3])
            elif name == "cut" and life.model:
                life.truncate(which=which, count=len(ids))
            elif name == "adopt" and life.model:
                life.adopt(which=which, count=int(rng.integers(12)))
            elif name == "pin" and life.model and kind.prefix_cache:
                life.pin(which=which)
                if len(life.pins) > 1:
                    life.unpin()
            elif life.model:
                act = {"fork": life.fork, "commit": life.commit, "free": life.free, "preempt": life.preempt_and_resume}
                act.get(name, life.free)(which=which)
            if len(life.model) > 6:
                life.free(which=which)
            life.each_reads_what_it_wrote()
            life.the_books_agree()
        pages = list(story.tell(life.manager.events or [], life.manager.pool.num_blocks))
        assert list(pages[-1].refs) == life.manager.pool.refs, "the record tells another story"
        assert life.manager.prefix is None or pages[-1].cached == set(life.manager.prefix.entries)
        kinds = Counter(event.kind for event in life.manager.events or [])
        expected = (
            ("allocate", "share", "cache", "hit", "evict", "free") if kind is Life else ("allocate", "share", "free")
        )
        assert kind is not TieredLife or kinds["load"] >= 5, kinds
        assert all(kinds[k] >= 20 for k in expected), kinds
        assert size == 1 or kinds["copy"] >= 3, kinds
        life.teardown()


class CollidingTieredLife(CollidingLife):
    host_blocks = 6


few = settings(max_examples=40, stateful_step_count=30)
TestLife = Life.TestCase
TestLife.settings = settings(max_examples=100, stateful_step_count=40)
TestPlainLife = PlainLife.TestCase
TestPlainLife.settings = few
TestLayeredLife = LayeredLife.TestCase
TestLayeredLife.settings = few
TestTieredLife = TieredLife.TestCase
TestTieredLife.settings = few
TestCollidingTieredLife = CollidingTieredLife.TestCase
TestCollidingTieredLife.settings = few
TestCollidingLife = CollidingLife.TestCase
TestCollidingLife.settings = few
