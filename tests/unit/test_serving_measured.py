"""A measured vLLM run replayed, Mooncake's hit rates, what sharing saves, and the step times behind them."""

import itertools
import json

import numpy as np
import pytest

from refsim.kvcache import BlockManager
from refsim.serving import PagedMemory, Request, Roofline, Scheduler, TraceError, load, replay
from refsim.serving.capacity import token_hit_rate
from refsim.serving.measured import compare, load_run
from refsim.serving.scheduler import Step
from refsim.serving.sharing import beam_search, parallel_sampling
from refsim.serving.step_time import LLAMA_3_1_8B, OPT_13B, Linear, llama_shape


@pytest.fixture(scope="module")
def measured(shared_data):
    requests = load(shared_data / "vllm_measured/sharegpt300_llama31_blk16.jsonl")
    run = load_run(shared_data / "vllm_measured/rtx4090_llama31_8b", requests)
    manager = BlockManager(2588, 16, prefix_cache=True, reserved=1)
    step_time = Roofline(LLAMA_3_1_8B, 1008e9, 165e12, memory_efficiency=0.8, flops_efficiency=0.9)
    result = replay(requests, Scheduler(PagedMemory(manager)), step_time)
    manager.check_invariants()
    return result, run, compare(result, run)


def test_what_was_measured_is_read_as_published(measured) -> None:
    _, run, _ = measured
    assert run.makespan_s == pytest.approx(183.6, abs=0.1)
    assert run.mean_ttft_s == pytest.approx(65.5, abs=0.1)
    assert run.mean_tpot_s == pytest.approx(0.0324, abs=0.0001)
    assert run.fill.max() >= 0.9996
    assert run.running.max() == 49


def test_times_are_within_one_percent(measured) -> None:
    _, _, c = measured
    assert abs(c.makespan) < 0.01
    assert abs(c.ttft) < 0.01
    assert abs(c.tpot) < 0.01


def test_fill_is_within_two_points(measured) -> None:
    _, _, c = measured
    assert c.fill < 0.02


def test_admission_is_first_come_first_served_as_it_was(measured) -> None:
    result, run, _ = measured
    assert result.admission_order == list(range(300))
    assert (np.diff(run.scheduled_s) >= 0).all()


def test_running_and_waiting_follow_the_run(measured) -> None:
    result, run, c = measured
    assert abs(result.series.running.max() - run.running.max()) <= 2
    assert c.running < 2
    assert c.waiting < 4
    assert np.abs(c.first_token_s).mean() < 1.0


def test_a_run_of_other_requests_is_refused(shared_data) -> None:
    requests = load(shared_data / "vllm_measured/sharegpt300_llama31_blk16.jsonl", limit=299)
    with pytest.raises(TraceError, match="not a run of these 299"):
        load_run(shared_data / "vllm_measured/rtx4090_llama31_8b", requests)


ROW = {"request_id": "bench-0", "input_toks": 3, "output_toks": 2}
ROW |= {"queued_ts": 5.0, "scheduled_ts": 5.0, "first_token_ts": 6.0, "last_token_ts": 7.0}
TICKS = "t,running,waiting,kv_cache_pct\n"


@pytest.mark.parametrize(
    ("row", "ticks", "message"),
    [
        ("oops", TICKS + "1,1,0,50", r"requests\.jsonl, line 1: JSONDecodeError"),
        ("[1]", TICKS + "1,1,0,50", r"requests\.jsonl, line 1: TypeError"),
        (json.dumps(ROW | {"request_id": "bench"}), TICKS + "1,1,0,50", r"line 1: IndexError.*such as bench-0"),
        (json.dumps(ROW | {"request_id": 7}), TICKS + "1,1,0,50", r"line 1: AttributeError"),
        (json.dumps({k: v for k, v in ROW.items() if k != "queued_ts"}), TICKS + "1,1,0,50", "KeyError 'queued_ts'"),
        (json.dumps(ROW), "", r"timeseries\.csv has no rows; expected the columns t, running"),
        (json.dumps(ROW), TICKS, "has no rows"),
        (json.dumps(ROW), TICKS + "1,1,0,50\n2,1,x,50", r"timeseries\.csv, line 3: ValueError"),
        (json.dumps(ROW), "t,running\n1,1", r"timeseries\.csv, line 2: KeyError 'waiting'"),
        (json.dumps(ROW), TICKS + "1,1", r"timeseries\.csv, line 2: TypeError"),
    ],
)
def test_a_malformed_run_is_refused_by_its_line(tmp_path, row, ticks, message) -> None:
    (tmp_path / "requests.jsonl").write_text(row + "\n")
    (tmp_path / "timeseries.csv").write_text(ticks)
    with pytest.raises(TraceError, match=message):
        load_run(tmp_path, [Request(0, 0.5, 3, 2)])


def test_a_run_of_one_request(tmp_path) -> None:
    (tmp_path / "requests.jsonl").write_text(json.dumps(ROW) + "\n\n")
    (tmp_path / "timeseries.csv").write_text(TICKS + "1,1,0,50\n")
    run = load_run(tmp_path, [Request(0, 0.5, 3, 2)])
    assert (run.mean_ttft_s, run.makespan_s, run.mean_tpot_s, run.fill.tolist()) == (1.0, 2.5, 1.0, [0.5])


def test_a_replay_that_refused_requests_is_not_compared(measured, shared_data) -> None:
    _, run, _ = measured
    requests = load(shared_data / "vllm_measured/sharegpt300_llama31_blk16.jsonl")
    step_time = Roofline(LLAMA_3_1_8B, 1008e9, 165e12)
    result = replay(requests, Scheduler(PagedMemory(BlockManager(20, 16))), step_time)
    with pytest.raises(ValueError, match=r"served \d+ of the run's 300 requests.*more blocks"):
        compare(result, run)


def test_mooncake_hit_rates(shared_data) -> None:
    requests = load(shared_data / "mooncake/conversation_trace.head4000.jsonl")
    assert token_hit_rate(requests, 512) == pytest.approx(0.3313, abs=0.00005)
    rates = [token_hit_rate(requests, 512, blocks) for blocks in (30000, 10000, 3000, 1000)]
    assert all(more > less for more, less in itertools.pairwise(rates))
    assert rates[0] < 0.3313


def test_hit_rate_by_hand() -> None:
    def of(i: int, *hashes: int) -> Request:
        return Request(i, 0.0, 4 * len(hashes), 1, hashes, 4, 4 * len(hashes))

    # a b c; a b d hits a b; a b c hits a b (a token must be left); in two blocks nothing of three can stay.
    requests = [of(0, 1, 2, 3), of(1, 1, 2, 4), of(2, 1, 2, 3)]
    assert token_hit_rate(requests, 4) == pytest.approx(16 / 36)
    assert token_hit_rate(requests, 4, 2) == 0.0
    assert token_hit_rate([], 4) == 0.0


@pytest.mark.parametrize(("samples", "published"), [(2, 6.09), (4, 8.53), (6, 9.79)])
def test_parallel_sampling_saves_what_was_published(samples, published) -> None:
    # The prompt is 12 % of the slots on average over the outputs' life: 160 / (160 + 2346 / 2).
    sharing = parallel_sampling(160, 2346, samples)
    assert 100 * sharing.saving == pytest.approx(published, abs=0.5)


def test_sharing_by_hand() -> None:
    # Prompt 5 in blocks of 4, two samples, one token: 2 blocks shared; then one of them copies the tail.
    sharing = parallel_sampling(5, 1, 2, block_size=4)
    assert (sharing.shared, sharing.separate, sharing.copies) == (2 + 3, 4 + 4, 1)
    assert parallel_sampling(8, 0, 3, block_size=4).saving == pytest.approx(2 / 3)
    assert parallel_sampling(8, 5, 1, block_size=4).saving == 0.0
    with pytest.raises(ValueError, match="expected at least"):
        parallel_sampling(0, 1, 1)


def test_beams_share_more_than_samples() -> None:
    beams = beam_search(40, 60, 4, np.random.default_rng(0))
    assert beams.saving > parallel_sampling(40, 60, 4).saving
    assert beams.copies > 0


def test_a_decode_step_reads_weights_and_contexts() -> None:
    step = Step(decodes=8, decode_context=8000, sampled=8)
    peak = Roofline(LLAMA_3_1_8B, 1e12, 1e20, 1.0, 1.0)
    # 6.98e9 body and 0.525e9 head parameters of 2 bytes, 131072 B a context token, 4 passes over float32 logits.
    body = 32 * (4096 * 4096 * 2 + 4096 * 1024 * 2 + 3 * 4096 * 14336) * 2
    expected = (body + 4096 * 128256 * 2 + 8000 * 131072 + 4 * 4 * 128256 * 8) / 1e12
    assert peak.seconds(step) == pytest.approx(expected, rel=1e-9)


def test_a_prefill_step_is_bound_by_arithmetic() -> None:
    step = Step(chunks=[(2048, 0)], sampled=1)
    fast = Roofline(LLAMA_3_1_8B, 1e20, 1e14, 1.0, 1.0)
    body = 32 * (4096 * 4096 * 2 + 4096 * 1024 * 2 + 3 * 4096 * 14336)
    pairs = 2048 * 2049 / 2
    expected = (2 * body * 2048 + 2 * 4096 * 128256 + 4 * 32 * 4096 * pairs) / 1e14
    assert fast.seconds(step) == pytest.approx(expected, rel=1e-9)
    halved = Roofline(LLAMA_3_1_8B, 1e20, 1e14, 1.0, 0.5)
    assert halved.seconds(step) == pytest.approx(2 * expected, rel=1e-9)


def test_chunks_attend_to_what_is_before_them() -> None:
    fast = Roofline(LLAMA_3_1_8B, 1e20, 1e14, 1.0, 1.0)
    alone, later = (fast.seconds(Step(chunks=[(64, before)])) for before in (0, 1000))
    assert later - alone == pytest.approx(4 * 32 * 4096 * 64 * 1000 / 1e14, rel=1e-6)


def test_gaps_loads_and_another_device() -> None:
    base = Roofline(LLAMA_3_1_8B, 1e12, 1e14, 0.5, 0.5)
    step = Step(decodes=1, decode_context=100, sampled=1)
    gaps = Roofline(LLAMA_3_1_8B, 1e12, 1e14, 0.5, 0.5, kernel_s=1e-6)
    assert gaps.seconds(step) - base.seconds(step) == pytest.approx(9 * 32 * 1e-6)
    loading = Step(decodes=1, decode_context=100, sampled=1, loaded_tokens=420)
    assert base.seconds(loading) - base.seconds(step) == pytest.approx(420 * 131072 / 55e9)
    assert base.on(2e12, 2e14).seconds(step) == pytest.approx(base.seconds(step) / 2)
    assert base.on(2e12, 2e14).memory_efficiency == 0.5


def test_published_bytes_of_a_token() -> None:
    assert LLAMA_3_1_8B.kv_token_nbytes == 131072
    assert OPT_13B.kv_token_nbytes == 819200
    # Llama-3.1-405B: 126 layers, 8 KV heads of 128.
    assert llama_shape(16384, 126, 128, 8, 53248, 128256).kv_token_nbytes == 516096


@pytest.mark.parametrize(
    "bad", [(0, 1, 1, 1), (float("nan"), 1, 1, 1), (1, float("nan"), 1, 1), (1, -1, 1, 1), (1, 1, 0, 1), (1, 1, 1, 1.5)]
)
def test_a_device_that_makes_no_sense_is_refused(bad) -> None:
    with pytest.raises(ValueError, match=r"above 0"):
        Roofline(LLAMA_3_1_8B, *bad)


@pytest.mark.parametrize("bad", [{"kernel_s": -1.0}, {"kernels_per_layer": -1}, {"host_nbytes_s": 0.0}])
def test_no_step_takes_less_than_no_time(bad) -> None:
    with pytest.raises(ValueError, match="expected 0 or more"):
        Roofline(LLAMA_3_1_8B, 1e12, 1e12, **bad)
    with pytest.raises(ValueError, match="expected 0 or more"):
        Linear(base_s=float("nan"))
