"""Closed forms against execution: the whole ledger, to the byte and the FLOP, on every kind of call."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from refsim import attention
from refsim.attention import Plan
from refsim.cost import closed_form
from refsim.machine import Ledger, Machine
from refsim.numerics import dtype_of

DTYPES = st.sampled_from(["float32", "float16", "bfloat16", "e4m3", "e5m2", "float64"])
WIDE = Machine(sram_nbytes=None).sram_nbytes  # odd tiles are of any size here; what fits is another test


@dataclass(frozen=True)
class Case:
    """Everything about a call but its values."""

    lengths: list[tuple[int, int]]
    G: int
    group: int
    D: int
    Dv: int
    tile: tuple[int, int]
    dtypes: tuple[str, str, str]
    pack_gqa: bool = False
    ragged: bool = True
    block_size: int = 4
    num_splits: int = 3
    handover: str = "lse"
    variant: dict[str, Any] = field(default_factory=dict)

    @property
    def H(self) -> int:
        return self.G * self.group

    def plan(self, *, packed: bool | None = None, block_size: int | None = None) -> Plan:
        packed = self.pack_gqa if packed is None else packed
        return Plan.of(
            self.lengths, self.H, self.G, self.D, self.Dv,
            dtype=self.dtypes[0], tile=self.tile, packed=packed, block_size=block_size, **self.variant,
        )  # fmt: skip

    @property
    def types(self) -> dict[str, str]:
        return dict(zip(("q_dtype", "k_dtype", "v_dtype"), self.dtypes, strict=True))

    def random(self, *shape: int, dtype: str) -> np.ndarray:
        return np.random.default_rng(0).standard_normal(shape, np.float32).astype(dtype_of(dtype))

    def contiguous(self) -> tuple[tuple[np.ndarray, ...], dict[str, Any]]:
        n, T = (sum(lengths) for lengths in zip((0, 0), *self.lengths, strict=True))
        q, k, v = (
            self.random(*shape, dtype=dtype)
            for shape, dtype in zip(
                ((n, self.H, self.D), (T, self.G, self.D), (T, self.G, self.Dv)), self.dtypes, strict=True
            )
        )
        keywords: dict[str, Any] = dict(tile=self.tile, machine=Machine(sram_nbytes=WIDE), **self.variant)
        if self.ragged:
            starts = np.cumsum([(0, 0), *self.lengths], axis=0, dtype=np.int32)
            keywords |= {"cu_seqlens_q": starts[:, 0], "cu_seqlens_k": starts[:, 1]}
        return (q, k, v), keywords

    def paged(self) -> tuple[tuple[np.ndarray, ...], dict[str, Any]]:
        needed = [-(-T // self.block_size) for _, T in self.lengths]
        ids = np.random.default_rng(1).permutation(sum(needed)).astype(np.int32)
        tables = np.full((len(needed), max(needed, default=0)), -1, np.int32)
        for row, count, stop in zip(tables, needed, np.cumsum(needed), strict=True):
            row[:count] = ids[stop - count : stop]
        slots = (sum(needed), self.block_size, self.G)
        q = self.random(sum(n for n, _ in self.lengths), self.H, self.D, dtype=self.dtypes[0])
        k, v = self.random(*slots, self.D, dtype=self.dtypes[1]), self.random(*slots, self.Dv, dtype=self.dtypes[2])
        keywords: dict[str, Any] = dict(tile=self.tile, machine=Machine(sram_nbytes=WIDE), **self.variant)
        if self.ragged:
            keywords["cu_seqlens_q"] = np.cumsum([0, *(n for n, _ in self.lengths)], dtype=np.int32)
        return (q, k, v, tables, np.array([T for _, T in self.lengths], np.int32)), keywords


@st.composite
def cases(draw: Any, *, paged: bool = False) -> Case:
    ragged = draw(st.booleans())
    queries = st.just(1) if paged and not ragged else st.integers(0, 40)
    sequences = st.lists(st.tuples(queries, st.integers(0, 60)), min_size=1, max_size=3 if ragged or paged else 1)
    if ragged or paged:  # a batch with more empty sequences than others
        sequences |= st.lists(st.tuples(queries, st.sampled_from([0, 0, 0, 33])), min_size=6, max_size=9)
    G, group = draw(st.integers(1, 2)), draw(st.sampled_from([1, 2, 3, 8]))
    side = st.none() | st.integers(-1, 25) | st.just(2**31)
    per_head = st.none() | st.just(np.linspace(0.1, 0.5, G * group))
    variant = {
        "causal": draw(st.booleans()),
        "align": draw(st.sampled_from(["bottom-right", "top-left"])),
        "window": draw(st.none() | st.tuples(side, side)),
        "softcap": draw(st.none() | st.just(5.0)),
        "alibi_slopes": draw(per_head),
        "sinks": draw(per_head),
    }
    return Case(
        lengths=draw(sequences),
        G=G,
        group=group,
        D=draw(st.integers(1, 5)),
        Dv=draw(st.integers(1, 5) | st.just(64)),
        tile=(draw(st.integers(1, 20) | st.just(1000)), draw(st.integers(1, 20) | st.just(1000))),
        dtypes=(draw(DTYPES), draw(DTYPES), draw(DTYPES)),
        pack_gqa=draw(st.booleans()),
        ragged=ragged,
        block_size=draw(st.sampled_from([1, 2, 3, 4, 8, 16, 100])),
        num_splits=draw(st.integers(1, 7) | st.just(70)),
        handover=draw(st.sampled_from(["lse", "state"])),
        variant=variant,
    )


def assert_same(closed: Ledger, executed: Ledger) -> None:
    """Equal in every entry; what differs is named, so that a failure says where to look."""
    differing = {
        key: (closed.nbytes.get(key, 0), executed.nbytes.get(key, 0))
        for key in {*closed.nbytes, *executed.nbytes}
        if closed.nbytes.get(key, 0) != executed.nbytes.get(key, 0)
    }
    assert not differing, f"bytes, closed form and executed: {differing}"
    assert closed.work == executed.work
    assert closed == executed


@settings(max_examples=150)
@given(cases())
def test_flash(case: Case) -> None:
    tensors, keywords = case.contiguous()
    executed = attention.flash(*tensors, pack_gqa=case.pack_gqa, **keywords).ledger
    assert_same(closed_form.flash(case.plan(), ragged=case.ragged, **case.types), executed)


@settings(max_examples=120)
@given(cases(), st.sampled_from([None, 400, 1500, 164 * 1024]))
def test_standard(case: Case, sram_nbytes: int | None) -> None:
    tensors, keywords = case.contiguous()
    plan = case.plan(packed=False)
    if sram_nbytes is not None and plan.on_chip_nbytes > sram_nbytes:
        sram_nbytes = plan.on_chip_nbytes
    executed = attention.standard(*tensors, **keywords | {"machine": Machine(sram_nbytes=sram_nbytes)}).ledger
    assert_same(closed_form.standard(plan, sram_nbytes=sram_nbytes, ragged=case.ragged, **case.types), executed)


@settings(max_examples=150)
@given(cases(paged=True))
def test_paged(case: Case) -> None:
    tensors, keywords = case.paged()
    executed = attention.paged(*tensors, pack_gqa=case.pack_gqa, **keywords).ledger
    assert_same(closed_form.paged(case.plan(block_size=case.block_size), ragged=case.ragged, **case.types), executed)


@settings(max_examples=120)
@given(cases(paged=True))
def test_paged_gather(case: Case) -> None:
    tensors, keywords = case.paged()
    executed = attention.paged_gather(*tensors, pack_gqa=case.pack_gqa, **keywords).ledger
    closed = closed_form.paged_gather(case.plan(block_size=case.block_size), ragged=case.ragged, **case.types)
    assert_same(closed, executed)


@settings(max_examples=120)
@given(cases(paged=True), st.booleans())
def test_split_kv(case: Case, paged: bool) -> None:
    if not paged and not case.ragged and len(case.lengths) > 1:
        case = Case(**vars(case) | {"ragged": True})
    tensors, keywords = case.paged() if paged else case.contiguous()
    keywords |= {"num_splits": case.num_splits, "handover": case.handover}
    executed = attention.split_kv(*tensors, pack_gqa=case.pack_gqa, **keywords).ledger
    plan = case.plan(block_size=case.block_size if paged else None)
    closed = closed_form.split_kv(
        plan, num_splits=case.num_splits, handover=case.handover, ragged=case.ragged, **case.types
    )
    assert_same(closed, executed)
