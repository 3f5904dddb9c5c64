"""Kernels of ours with one deliberate mistake each: the cross-check catches every one, and says what it is."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from gpu.crosscheck import Case, CaseReport, run_case
from gpu.crosscheck.cases import keywords
from gpu.ops import modules
from gpu.runtime import EmulatorRuntime

CAUSAL = Case("flash", variant=keywords(causal=True), options=keywords(form="scalar"))
WINDOW = Case("flash", variant=keywords(causal=True, window=(5, 0)), options=keywords(form="scalar"))
PAGED = Case("paged", variant=keywords(causal=True))
SPLIT = Case("split_kv_paged", lengths=((1, 37), (1, 16), (1, 0)), options=keywords(num_splits=3))
APPEND = Case("append", lengths=((37, 37),))


def run_mutant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: Case, file: str, old: str, new: str
) -> CaseReport:
    """Run a case on copies of the kernels of which one has `old` replaced by `new`."""
    folder = tmp_path / "kernels"
    shutil.copytree(modules.KERNELS, folder)
    text = (folder / file).read_text()
    assert text.count(old) == 1, f"{file} no longer has exactly one {old!r}"
    (folder / file).write_text(text.replace(old, new))
    monkeypatch.setattr(modules, "KERNELS", folder)
    monkeypatch.setattr(modules, "_modules", {})
    return run_case(case, EmulatorRuntime())


MUTANTS = {
    "missing barrier": (
        CAUSAL, "fold.cuh", "__syncthreads();  // V is free", "", r"(race|uninitialised) in kernel `flash`"
    ),
    "missing wait for a copy": (
        CAUSAL, "fold.cuh", "cp_async_wait<1>();\n        __syncthreads();  // K is here", "__syncthreads();",
        r"uninitialised in kernel `flash`|race in kernel `flash`",
    ),
    "missing tail mask: keys past the end are loaded": (
        PAGED, "keys.cuh", "const long long stop = min(start + call.key_tile, (long long)span.stop);",
        "const long long stop = start + call.key_tile;",
        r"out of bounds in kernel `paged`|NaN or inf where the answer is finite",
    ),
    "int32 offset": (
        PAGED, "keys.cuh", "return ids[tile.number % 2 * THREADS + block] * block_stride + slot * token_stride;",
        "return ids[tile.number % 2 * THREADS + block] * 1000000 * (int)block_stride / 1000000 + slot * token_stride;",
        r"overflow in kernel `paged`",
    ),
    "stale workspace: a partial answer that no kernel wrote": (
        SPLIT, "split.cuh", "write<LSE_PARTIAL>(&to.lse[at], chip.m[row] + logf(positive(chip.l[row])));", "{}",
        r"uninitialised in kernel `reduce`",
    ),
    "base-2 LSE": (
        CAUSAL, "fold.cuh", "chip.m[row] + logf(positive(chip.l[row])));\n}",
        "(chip.m[row] + logf(positive(chip.l[row]))) * 1.44269504f);\n}", r"the LSE in base 2, not base e",
    ),
    "interleaved heads": (
        CAUSAL, "call.cuh", "rows.kv_head = blockIdx.y / call.programs_per_kv_head;",
        "rows.kv_head = blockIdx.y % (gridDim.y / call.programs_per_kv_head);",
        r"query heads interleaved over the KV heads",
    ),
    "window off by one": (
        WINDOW, "call.cuh", "return (left >= 0 && key < at - left) || (right >= 0 && key > at + right);",
        "return (left >= 0 && key <= at - left) || (right >= 0 && key > at + right);", r"a window one key too narrow",
    ),
    "top-left mask": (
        CAUSAL, "call.cuh", "rows.band = {call.top_left ? 0 : (long long)rows.keys - rows.n,", "rows.band = {0,",
        r"the causal mask aligned top-left",
    ),
    "a skipped slot is written": (
        APPEND, "append.cu", "if (slot < 0) return;", "if (slot < -1) return;", r"out of bounds in kernel `append`"
    ),
    "scale forgotten": (
        CAUSAL, "fold.cuh", "float s = product * call.scale;", "float s = product;", r"the scale left out"
    ),
    "lengths read by every thread": (
        CAUSAL, "call.cuh", "if (threadIdx.x == 0) {", "{",
        r"race in kernel `flash`|cu_seqlens_q read: .* reference",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_every_mutant_is_caught_and_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case, file, old, new, says = MUTANTS[name]
    report = run_mutant(tmp_path, monkeypatch, case, file, old, new)
    assert not report.ok
    complaints = "\n".join(report.complaints())
    assert re.search(says, complaints), complaints


def test_unnecessary_reads_show_in_the_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Right values, wrong traffic: q is loaded twice."""
    old = "    load_q<D_PADDED>(call, rows, q, chip.q);"
    report = run_mutant(tmp_path, monkeypatch, CAUSAL, "flash.cu", old, f"{old}\n    __syncthreads();\n{old}")
    assert report.values_agree
    assert not report.bytes_agree
    (line,) = report.complaints()
    read = sum(n for n, _ in CAUSAL.lengths) * CAUSAL.H * CAUSAL.D * 4
    assert line == f"flash: q read: closed form {read:,} B, reference {read:,} B, kernel {2 * read:,} B"


def test_a_wrong_element_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first element that differs is the one that the mutant spoils: sequence 1's only query, its last column."""
    case = Case("paged", lengths=((2, 20), (1, 13)), options=keywords(form="scalar"))
    old = "write<OUT>(&out[out_at(call, rows, row) + column], to_storage(o));"
    spoil = "to_storage(rows.sequence == 1 && column == 31 ? o + 1 : o)"
    report = run_mutant(tmp_path, monkeypatch, case, "fold.cuh", old, old.replace("to_storage(o)", spoil))
    (line,) = [line for line in report.complaints() if line.startswith("out")]
    assert "sequence 1, query 0 of 1, head 0, block 1, slot 4 (its own key), column 31" in line


def test_unbroken_kernels_pass() -> None:
    """The mutants' own cases, unmutated: what is caught above is the mutation."""
    for case in (CAUSAL, WINDOW, PAGED, SPLIT, APPEND):
        report = run_case(case, EmulatorRuntime())
        assert report.ok, report.complaints()
        assert all(np.isfinite(error.largest) for error in report.errors)
