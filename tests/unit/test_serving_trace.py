"""Traces: each format read by hand-made rows, every senseless row refused by its line, real files counted."""

import json
import time
from pathlib import Path

import numpy as np
import pytest

from refsim.serving import Request, TraceError, Workload, load, trace

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
)
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,Conversation log\n"


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def mooncake(**changes: object) -> str:
    return json.dumps({"timestamp": 1500, "input_length": 600, "output_length": 5, "hash_ids": [3, 9], **changes})


def measured(**changes: object) -> str:
    return json.dumps({"arrival_s": 0.25, "input_length": 20, "output_length": 14, "hash_ids": [0, 1], **changes})


def test_azure_starts_at_zero_and_keeps_seven_digits(tmp_path) -> None:
    a, b = load(write(tmp_path, "a.csv", AZURE))
    assert (a.arrival_s, a.prompt_len, a.output_len) == (0.0, 374, 44)
    assert b.arrival_s == pytest.approx(4.314579, abs=1e-6)
    assert b.token_ids() is None


def test_burst(tmp_path) -> None:
    (r,) = load(write(tmp_path, "b.csv", BURST))
    assert (r.arrival_s, r.prompt_len, r.output_len) == (5.0, 472, 18)


def test_mooncake_names_blocks_of_512_of_the_prompt(tmp_path) -> None:
    (r,) = load(write(tmp_path, "m.jsonl", mooncake() + "\n\n"))
    assert (r.arrival_s, r.hashed_len) == (1.5, 600)
    ids = r.token_ids()
    assert ids.size == 605
    assert ids[[0, 511, 512, 599]].tolist() == [3 * 512, 3 * 512 + 511, 9 * 512, 9 * 512 + 87]
    assert np.unique(ids).size == 605


def test_measured_names_whole_blocks_of_prompt_and_output(tmp_path) -> None:
    (r,) = load(write(tmp_path, "m.jsonl", measured()))
    ids = r.token_ids()
    assert (r.hashed_len, ids.size) == (32, 34)
    assert ids[:32].tolist() == list(range(32))
    assert ids[32:].min() > 10**9


def test_private_ids_of_two_requests_never_meet() -> None:
    a, b = (Request(i, 0.0, 5000, 5000, (0,), 1, 1).token_ids() for i in (0, 1))
    assert np.intersect1d(a, b).tolist() == [0]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", AZURE + "2023-11-16 18:15:51.0,-3,1\n", r"line 4: prompt_len must be a whole number from 1, got -3"),
        ("a.csv", AZURE + "2023-11-16 18:15:51.0,3,0\n", r"line 4: output_len must be a whole number from 1, got 0"),
        ("a.csv", AZURE + "2023-11-16 18:15:51.0,3\n", r"line 4: GeneratedTokens is None"),
        ("a.csv", AZURE + "yesterday,3,4\n", r"line 4: TIMESTAMP is 'yesterday'"),
        ("a.csv", AZURE + "2023-11-16 18:15:48.0,3,4\n", r"line 4: arrives before the line above it"),
        ("a.csv", AZURE + "2023-11-16 18:14:48.0,3,4\n", r"line 4: arrives before the line above it"),  # and the first
        ("a.csv", AZURE.replace("ContextTokens", "Context"), r"line 2: column 'ContextTokens' is missing"),
        ("a.csv", AZURE + "2023-11-16 18:15:51.0,x,4\n", r"line 4: ContextTokens is 'x'"),
        ("a.csv", AZURE.splitlines()[0], "holds no requests"),
        ("b.csv", BURST.replace("5,Chat", "-5,Chat"), r"line 2: arrival is -5.0"),
        ("b.csv", BURST.replace("5,Chat", "nan,Chat"), r"line 2: arrival is nan"),
        ("m.jsonl", mooncake() + "\n{oops", r"m.jsonl, line 2: not JSON"),
        ("m.jsonl", mooncake() + "\n[1]", r"line 2: expected an object"),
        ("m.jsonl", mooncake(hash_ids=[1]), r"line 1: 1 hash_ids for 600 tokens"),
        ("m.jsonl", mooncake(hash_ids=[1, -2]), r"line 1: hash_ids must be"),
        ("m.jsonl", mooncake(input_length=600.5), r"line 1: input_length is 600.5"),
        ("m.jsonl", mooncake(input_length=True), r"line 1: input_length is True; expected a whole number"),
        ("m.jsonl", mooncake(input_length=float("nan")), r"line 1: input_length is nan; expected a whole number"),
        ("m.jsonl", mooncake(timestamp="noon"), r"line 1: timestamp is 'noon'; expected a number"),
        ("m.jsonl", mooncake(timestamp=9) + "\n" + mooncake(timestamp=8), r"line 2: arrives before"),
        ("m.jsonl", measured(hash_ids=[0]), r"line 1: 1 hash_ids for 20 \+ 14"),
        ("x.txt", "hello", "like no known format"),
        ("x.txt", "", r"x\.txt is empty"),
        ("a.csv", "\n" + AZURE, r"begins with an empty line"),
        ("a.csv", AZURE + '"' + "x" * 200_000, r"a\.csv, line 3: not CSV \(field larger"),
        ("a.csv", AZURE + "2023-11-16 18:15:51.5e3,3,4\n", r"line 4: TIMESTAMP is '2023-11-16 18:15:51.5e3'"),
        ("m.jsonl", '{"timestamp": ' + "[" * 100_000, r"m\.jsonl, line 1: not JSON \(maximum recursion"),
        # Beyond 64 bits, and among the ids of tokens that no hash names.
        ("m.jsonl", mooncake(hash_ids=[0, 2**63]), r"line 1: hash_ids go from 0 to 9223372036854775808"),
        ("m.jsonl", mooncake(hash_ids=[0, 2**31]), r"expected 0 to 2147483647 in blocks of 512"),
    ],
)
def test_senseless_rows_are_refused_by_their_line(tmp_path, name, text, message) -> None:
    with pytest.raises(TraceError, match=message):
        load(write(tmp_path, name, text))


def test_a_file_that_is_text_only_at_first_is_refused_by_name(tmp_path) -> None:
    (tmp_path / "a.csv").write_bytes((AZURE + "2023-11-16 18:15:51.0,3,4\n" * 3000).encode() + b"\xff\xff\n")
    with pytest.raises(TraceError, match=r"a\.csv is not text"):
        load(tmp_path / "a.csv")


@pytest.mark.parametrize("change", [lambda t: "\ufeff" + t, lambda t: t.replace("\n", "\r\n")])
def test_files_as_other_systems_write_them(tmp_path, change) -> None:
    want = load(write(tmp_path, "a.csv", AZURE))
    (tmp_path / "b.csv").write_bytes(change(AZURE).encode())
    assert load(tmp_path / "b.csv") == want
    (tmp_path / "b.jsonl").write_bytes(change(mooncake() + "\n" + mooncake() + "\n").encode())
    assert len(load(tmp_path / "b.jsonl")) == 2


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="the clock's zone can't be set here")
@pytest.mark.parametrize("day", ["2023-03-12", "2023-11-05"])
def test_times_are_those_of_the_trace_wherever_it_is_read(tmp_path, monkeypatch, day) -> None:
    # On these days New York's clocks are put on and back at 2 o'clock.
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        rows = "".join(f"{day} {clock},3,4\n" for clock in ("01:59:59.0", "02:30:00.5", "03:00:00.25"))
        requests = load(write(tmp_path, "a.csv", AZURE.splitlines()[0] + "\n" + rows))
    finally:
        monkeypatch.undo()
        time.tzset()
    assert [r.arrival_s for r in requests] == [0.0, 1801.5, 3601.25]


def test_azure_s_later_trace_names_the_offset(tmp_path) -> None:
    rows = "2024-05-10 00:00:00.009930+00:00,3,4\n2024-05-10 00:00:01+00:00,3,4\n"
    _, b = load(write(tmp_path, "a.csv", AZURE.splitlines()[0] + "\n" + rows))
    assert b.arrival_s == pytest.approx(0.99007, abs=1e-6)


def test_a_file_that_is_no_text_is_refused_by_name(tmp_path) -> None:
    (tmp_path / "b.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TraceError, match=r"b\.csv is not text"):
        load(str(tmp_path / "b.csv"))


def test_an_unknown_format_is_refused(tmp_path) -> None:
    with pytest.raises(TraceError, match="'csv' is unknown"):
        load(write(tmp_path, "a.csv", AZURE), "csv")


def test_only_the_first_requests(tmp_path) -> None:
    assert len(load(write(tmp_path, "a.csv", AZURE), limit=1)) == 1


@pytest.mark.parametrize("lengths", [(2.5, 1), (1, "3")])
def test_lengths_are_whole_numbers(lengths) -> None:
    with pytest.raises(ValueError, match="_len must be a whole number from 1"):
        Request(0, 0.0, *lengths)


def test_lengths_of_a_narrow_type_add_up() -> None:
    assert Request(0, 0.0, np.int8(100), np.int8(100)).total_len == 200


def test_hashes_must_name_what_they_claim() -> None:
    with pytest.raises(ValueError, match="don't name 9 of"):
        Request(0, 0.0, 10, 1, (1, 2), 4, 9)


@pytest.mark.parametrize(
    ("file", "format", "count", "tokens_in", "tokens_out"),
    [
        # Sums that an independent reader (awk over the columns) gives.
        ("azure2023/AzureLLMInferenceTrace_conv.csv", "azure", 19366, 22361870, 4088665),
        ("azure2023/AzureLLMInferenceTrace_code.csv", "azure", 8819, 18059974, 245896),
        ("mooncake/conversation_trace.head4000.jsonl", "mooncake", 4000, 53249359, 1388321),
        ("vllm_measured/sharegpt300_llama31_blk16.jsonl", "measured", 300, 257239, 195753),
    ],
)
def test_real_traces(shared_data, file, format, count, tokens_in, tokens_out) -> None:
    path = shared_data / file
    assert trace.detect(path) == format
    requests = load(path)
    assert len(requests) == count
    assert (sum(r.prompt_len for r in requests), sum(r.output_len for r in requests)) == (tokens_in, tokens_out)


def test_synthetic_lengths_and_arrivals_have_their_means() -> None:
    work = Workload(rate=4.0, mean_prompt=300, mean_output=100, spread=0.5, max_len=100000)
    requests = work.draw(20000, np.random.default_rng(1))
    assert np.mean([r.prompt_len for r in requests]) == pytest.approx(300, rel=0.02)
    assert np.mean([r.output_len for r in requests]) == pytest.approx(100, rel=0.02)
    assert requests[-1].arrival_s == pytest.approx(20000 / 4, rel=0.03)
    assert np.std(np.log([r.prompt_len for r in requests])) == pytest.approx(0.5, rel=0.03)
    assert [r.arrival_s for r in requests] == sorted(r.arrival_s for r in requests)


def test_synthetic_requests_stay_within_the_maximum_and_share_their_prompt() -> None:
    work = Workload(mean_prompt=900, mean_output=900, max_len=1000, shared_prompt=0.5, shared_len=64)
    requests = work.draw(500, np.random.default_rng(2))
    assert max(r.total_len for r in requests) <= 1000
    shared = [r for r in requests if r.hash_ids]
    assert 200 < len(shared) < 300
    assert all((r.token_ids()[:64] == np.arange(64)).all() for r in shared)


@pytest.mark.parametrize(
    "bad",
    [
        {"rate": 0},
        {"rate": float("nan")},
        {"mean_prompt": -1},
        {"mean_prompt": float("inf")},
        {"mean_output": float("nan")},
        {"shared_prompt": 2},
        {"max_len": 1},
        {"spread": -1},
        {"spread": float("inf")},
    ],
)
def test_a_workload_that_makes_no_sense_is_refused(bad) -> None:
    with pytest.raises(ValueError, match=r"must be|is a fraction"):
        Workload(**bad)


def test_lengths_beyond_every_integer_are_cut_to_the_maximum() -> None:
    requests = Workload(rate=float("inf"), mean_prompt=1e300, max_len=50).draw(5, np.random.default_rng(0))
    assert [(r.arrival_s, r.prompt_len, r.output_len) for r in requests] == [(0.0, 49, 1)] * 5


def test_a_folder_is_no_trace(tmp_path):
    with pytest.raises(TraceError, match="is a folder; name a trace's file"):
        load(tmp_path)
