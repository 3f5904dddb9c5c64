"""Random calls: whatever the shapes, masks and tiles, a kernel gives the reference's answer and moves its bytes."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu.crosscheck import Case, run_case
from gpu.crosscheck.cases import ATTENTION, PAGED, keywords
from gpu.runtime import EmulatorRuntime

lengths = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 40)), min_size=1, max_size=4).map(tuple)
side = st.one_of(st.none(), st.integers(0, 30))


@st.composite
def calls(draw: Any) -> Case:
    op = draw(st.sampled_from(ATTENTION))
    G = draw(st.integers(1, 3))
    H = G * draw(st.integers(1, 3))
    variant: dict[str, Any] = {
        "causal": draw(st.booleans()),
        "align": draw(st.sampled_from(["bottom-right", "top-left"])),
        "window": draw(st.one_of(st.none(), st.tuples(side, side))),
        "softcap": draw(st.sampled_from([None, 3.0])),
    }
    if draw(st.booleans()):
        variant["alibi_slopes"] = tuple(0.05 * h for h in range(H))
    if draw(st.booleans()):
        variant["sinks"] = tuple(float(h - 1) for h in range(H))
    options: dict[str, Any] = {} if op == "standard" else {"pack_gqa": draw(st.booleans())}
    if op.startswith("split_kv"):
        options |= {"num_splits": draw(st.integers(1, 7)), "handover": draw(st.sampled_from(["lse", "state"]))}
    return Case(
        op,
        lengths=draw(lengths),
        H=H,
        G=G,
        D=8,
        Dv=12,
        block_size=draw(st.integers(1, 9)),
        tile=(draw(st.integers(1, 16)), draw(st.integers(1, 20))),
        variant=keywords(**variant),
        options=keywords(**options),
        seed=draw(st.integers(0, 3)),
    )


@settings(max_examples=40)
@given(calls())
def test_kernels_and_references_agree_on_random_calls(case: Case) -> None:
    report = run_case(case, EmulatorRuntime())
    assert report.ok, f"{case}: {report.complaints()}"


@settings(max_examples=15)
@given(calls())
def test_tensor_cores_agree_on_random_calls(case: Case) -> None:
    op = "paged" if case.op in PAGED else "flash"
    packed = case.options.get("pack_gqa", False)
    options: MappingProxyType[str, Any] = keywords(form="mma", pack_gqa=packed)
    report = run_case(replace(case, op=op, dtype="float16", D=16, Dv=32, options=options), EmulatorRuntime())
    assert report.ok, f"{case}: {report.complaints()}"
