"""The cross-check itself: green at level quick, and every count equal four ways where kernels count themselves."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from gpu import ops
from gpu.crosscheck import Case, cases, crosscheck, run_case
from gpu.crosscheck.cases import OPS, keywords
from gpu.crosscheck.report import CrossReport
from gpu.crosscheck.traffic import Bytes, add_up
from gpu.runtime import EmulatorRuntime
from refsim.cli import build


@pytest.fixture(scope="module")
def quick() -> CrossReport:
    return crosscheck(runtime="emulator", level="quick")


def test_every_kernel_agrees_with_its_twin(quick: CrossReport) -> None:
    assert [line for case in quick.cases for line in case.complaints()] == []
    assert quick.ok
    assert {row["op"] for row in quick.summary()} == set(OPS)


@pytest.mark.parametrize("op", OPS)
def test_bytes_are_counted_by_three_and_equal(quick: CrossReport, op: str) -> None:
    rows = quick.bytes_of(op)
    assert rows
    for row in rows:
        assert row.closed_form == row.reference == row.emulated > 0, str(row)
        assert row.unique is not None
        assert row.unique <= row.reference


def test_the_metadata_of_a_paged_call_is_counted_too(quick: CrossReport) -> None:
    tensors = {row.tensor for row in quick.bytes_of("paged")}
    assert {"block_tables", "seq_lens", "cu_seqlens_q", "alibi_slopes", "sinks", "lse"} <= tensors


def test_keys_and_values_fill_their_sectors() -> None:
    """Heads of 64 float16, 16-byte aligned: of every sector that K and V touch, all bytes are asked for."""
    case = Case("paged", dtype="float16", D=64, Dv=64, block_size=16, lengths=((1, 100),) * 2)
    shares = {row.tensor: row.useful for row in run_case(case, EmulatorRuntime()).bytes}
    assert shares["k_cache"] == shares["v_cache"] == 1.0


@pytest.mark.parametrize("form", ["scalar", "mma"])
def test_the_inner_loops_have_no_bank_conflict(form: str) -> None:
    """Of the 16-byte accesses to shared memory that inner loops make, none takes more passes than it must.

    What key groups add up once, at a program's end, is no inner loop.
    """
    from gpu.crosscheck.problem import Problem

    rows = ((1, 256),) if form == "scalar" else ((64, 128),)
    case = Case(
        "paged", "bfloat16", rows, H=4, G=1, D=128, Dv=128, block_size=16, tile=None, options=keywords(form=form)
    )
    problem = Problem.of(case)
    prepared = problem.prepare(EmulatorRuntime(), problem.fresh())
    prepared.run()
    (launch,) = prepared.launches
    assert launch.function == ("paged" if form == "scalar" else "paged_mma")
    rows_16 = [row for row in launch.trace.rows if row.tensor == "shared" and row.size == 16]
    wide = [row.traffic for row in rows_16 if "gather" not in row.text and "to[c / 4]" not in row.text]
    assert sum(traffic.wavefronts for traffic in wide) == sum(traffic.ideal_wavefronts for traffic in wide) > 1000
    for tensor in ("k_cache", "v_cache", "q"):
        assert launch.trace.tensors[tensor].read.useful_share >= 0.97


def test_a_kernel_that_counts_itself_agrees() -> None:
    case = Case("split_kv_paged", lengths=((1, 37), (1, 0)), options=keywords(num_splits=3))
    report = run_case(case, EmulatorRuntime(), counted=True)
    assert report.ok, report.complaints()
    assert all(row.counted == row.emulated for row in report.bytes)
    assert sum(row.counted or 0 for row in report.bytes if row.tensor == "block_tables") > 0


def test_packed_heads_load_keys_once() -> None:
    """Four query heads of a KV head in one program ask for a quarter of the bytes of K that four programs ask for."""
    lengths = ((1, 64),)
    read = {}
    for packed in (True, False):
        case = Case("paged", H=8, G=2, lengths=lengths, options=keywords(pack_gqa=packed))
        report = run_case(case, EmulatorRuntime())
        assert report.ok, report.complaints()
        read[packed] = next(row.emulated for row in report.bytes if row.tensor == "k_cache")
    assert read[False] == 4 * read[True] == 8 * 64 * 32 * 4


def test_the_tolerance_is_the_reference_s_own_error() -> None:
    """A float32 kernel may be off by a few roundings, a bfloat16 one by as much as rounding P costs: no constants."""
    tolerances = {
        dtype: run_case(Case("paged", dtype=dtype), EmulatorRuntime()).errors[0].tolerance
        for dtype in ("float32", "bfloat16")
    }
    assert tolerances["float32"] < 2e-5
    assert 1e-3 < tolerances["bfloat16"] < 0.1


def test_levels_grow_and_names_are_checked() -> None:
    sizes = [len(cases(level)) for level in ("quick", "standard", "exhaustive")]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[1] < sizes[2]
    with pytest.raises(ValueError, match="no op 'flush'; there are standard, flash"):
        cases("quick", ("flush",))
    with pytest.raises(ValueError, match="level must be one of"):
        cases("fast")


def test_rows_of_several_cases_add_up() -> None:
    rows = [
        Bytes("flash", "k", "read", n, n, n, None, unique=n, sectors=n, useful=u) for n, u in ((10, 1.0), (30, 0.5))
    ]
    (row,) = add_up(rows)
    assert (row.closed_form, row.emulated, row.counted, row.sectors) == (40, 40, None, 40)
    assert row.useful == (10 * 1.0 + 30 * 0.5) / 40
    wrong = Bytes("flash", "k", "read", 1, 1, 2, None)
    assert str(wrong) == "flash: k read: closed form 1 B, reference 1 B, kernel 2 B"
    assert not wrong.agree


def test_the_command(tmp_path) -> None:  # type: ignore[no-untyped-def]
    app, run = build("crosscheck"), CliRunner()
    chart = tmp_path / "bytes.svg"
    result = run.invoke(
        app, ["crosscheck", "--op", "rope", "--runtime", "emulator", "--json", "-", "--chart", str(chart)]
    )
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    assert said["ok"]
    assert said["ops"][0]["bytes"][0]["closed_form"] == said["ops"][0]["bytes"][0]["emulated"]
    assert chart.read_text().startswith("<?xml")
    table = tmp_path / "table.md"
    shown = run.invoke(
        app, ["crosscheck", "--op", "merge", "--runtime", "emulator", "--bytes", "--markdown", str(table)]
    )
    assert shown.exit_code == 0
    assert "| merge | lse_a | read |" in table.read_text()
    assert "all agree" in shown.output
    assert run.invoke(app, ["crosscheck", "--op", "flush"]).exit_code == 2
    assert run.invoke(app, ["crosscheck", "--level", "fast"]).exit_code == 2


def test_a_failure_sets_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference bent by a hair: the command says so and returns 1."""
    from gpu.crosscheck import problem

    honest = problem.REFERENCE["rope"]

    def bent(*args, **keys):  # type: ignore[no-untyped-def]
        result = honest(*args, **keys)
        return result._replace(out=result.out + np.float32(0.1).astype(result.out.dtype))

    monkeypatch.setitem(problem.REFERENCE, "rope", bent)
    result = CliRunner().invoke(build("crosscheck"), ["crosscheck", "--op", "rope", "--runtime", "emulator"])
    assert result.exit_code == 1
    assert "4 cases do not agree" in result.output  # not those of bfloat16, whose roundings are as large


def test_a_fault_that_shows_late_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU tells of a fault when its answer is fetched: the other cases go on all the same."""

    def late(array: np.ndarray) -> np.ndarray:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr("gpu.crosscheck.judge.host", late)
    report = crosscheck(("flash",), runtime="emulator")
    assert len(report.cases) > 1
    assert all("illegal memory access" in (case.finding or "") for case in report.cases)


def test_answers_that_are_no_numbers_make_valid_json(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpu.crosscheck import problem

    honest = problem.REFERENCE["rope"]

    def broken(*args, **keys):  # type: ignore[no-untyped-def]
        result = honest(*args, **keys)
        return result._replace(out=result.out * np.array(np.nan, result.out.dtype))

    monkeypatch.setitem(problem.REFERENCE, "rope", broken)
    report = crosscheck(("rope",), runtime="emulator")
    assert report.summary()[0]["largest_error"] == np.inf
    (row,) = json.loads(report.to_json(), parse_constant=pytest.fail)["ops"]
    assert row["largest_error"] is None


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--json", "nowhere/x.json", "there is no folder 'nowhere'"),
        ("--markdown", "nowhere/x.md", "there is no folder 'nowhere'"),
        ("--chart", "nowhere/x.svg", "there is no folder 'nowhere'"),
        ("--chart", "chart.txt", "must end in one of .svg, .png, .pdf"),
    ],
)
def test_files_that_can_t_be_written_are_refused_before_the_cases(
    option: str, value: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("gpu.crosscheck.run_case", None)
    result = CliRunner().invoke(build("crosscheck"), ["crosscheck", option, value])
    assert result.exit_code == 2
    assert says in " ".join(result.output.replace("│", " ").split())


def test_a_narrow_terminal_cuts_no_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    words = ["crosscheck", "--op", "rope", "--op", "rope", "--runtime", "emulator", "--bytes"]
    shown = CliRunner().invoke(build("crosscheck"), words).output
    assert "6 cases at level quick" in " ".join(shown.split())  # each op once
    (row,) = (line.split() for line in shown.splitlines() if line.split()[:2] == ["rope", "x"])
    assert row[2] == "read"
    assert row[3] == row[4] == row[5]
    assert "…" not in shown.split("own count")[1]


def test_ops_are_all_there() -> None:
    """Every op of the cross-check is a function of gpu.ops; split_kv serves both kinds of keys."""
    assert {op.removesuffix("_paged") for op in OPS} == set(ops.__all__)
