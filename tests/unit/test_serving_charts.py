"""Figures of a replay say what the replay says; and the command line from end to end."""

import numpy as np
import pytest

from refsim.charts import serving as charts
from refsim.cli import main
from refsim.kvcache import BlockManager
from refsim.serving import ContiguousMemory, Linear, PagedMemory, Request, Scheduler, replay
from refsim.serving.measured import MeasuredRun, compare

ONE = {"hash_ids": (1, 2), "hash_block": 4, "hashed_len": 8}


@pytest.fixture(scope="module")
def result():
    requests = [Request(i, 3.0 * i, 8, 4, **ONE) for i in range(3)]
    manager = BlockManager(6, 4, prefix_cache=True)
    return replay(requests, Scheduler(PagedMemory(manager)), Linear(0.5, 0, 0), fill_every_s=0.1)


@pytest.fixture(scope="module")
def run() -> MeasuredRun:
    at = np.array([0.0, 3.0, 6.0])
    ticks = np.array([1.0, 4.0])
    one = np.ones(2)
    return MeasuredRun(at, at, at + 1, at + 4, np.full(3, 4.0), ticks, one, 0 * one, 0.5 * one)


def test_pool_fill_falls_to_zero_between_requests(result) -> None:
    x, y = charts.pool_fill(result).lines[0].get_data()
    assert y.max() == pytest.approx(50.0)  # three of six blocks
    assert y[(x > 2.0) & (x < 3.0)].tolist() == []
    assert y[x == 2.0].tolist() == [50.0, 0.0]
    assert y[x == 3.0].tolist() == [0.0]


def test_queue_and_measured_lines(result, run) -> None:
    ax = charts.queue(result, run)
    assert len(ax.lines) == 4
    assert ax.lines[0].get_ydata().max() == 1
    assert ax.lines[1].get_ydata().tolist() == [1, 1]


def test_hit_rate_is_cumulative(result) -> None:
    (line,) = charts.hit_rate({"paged": result}).lines
    assert line.get_ydata().tolist() == pytest.approx([0.0, 25.0, 100 * 8 / 24])


def test_no_policy_is_left_out(result) -> None:
    """More policies than colours: each has a line, no two alike, none of them a beam."""
    ax = charts.hit_rate({f"policy {i}": result for i in range(20)})
    assert len({(line.get_color(), line.get_linestyle()) for line in ax.lines}) == 20
    assert max(line.get_linewidth() for line in ax.lines) <= 4
    assert len(ax.get_legend().get_texts()) == 20


def test_latency_is_a_distribution(result) -> None:
    (line,) = charts.latency({"paged": result}, "ttft_s").lines
    assert line.get_xdata().tolist() == [0.5, 0.5, 0.5]
    assert line.get_ydata()[-1] == 100
    (line,) = charts.latency({"paged": result}, "tpot_s").lines
    assert line.get_xdata().tolist() == [500.0] * 3


def test_requests_of_one_token_have_no_time_per_output_token() -> None:
    one = replay(
        [Request(0, 0.0, 8, 1), Request(1, 9.0, 8, 3)],
        Scheduler(PagedMemory(BlockManager(6, 4))),
        Linear(0.5, 0, 0),
    )
    (line,) = charts.latency({"paged": one}, "tpot_s").lines
    assert line.get_xdata().tolist() == [500.0]
    (line,) = charts.latency({"paged": one}, "ttft_s").lines
    assert line.get_xdata().tolist() == [0.5, 0.5]


def test_nothing_is_wasted_while_nothing_runs() -> None:
    other = replay(
        [Request(0, 0.0, 5, 3), Request(1, 100.0, 5, 3)],
        Scheduler(ContiguousMemory(40, "max", max_len=30)),
        Linear(0.5, 0, 0),
    )
    x, y = charts.waste({"max": other}).lines[0].get_data()
    assert y.max() == pytest.approx(100 * 22 / 40)
    assert y[x == 100.0].tolist() == [0.0]
    assert y[x == 1.5].tolist()[-1] == 0.0, "from the last step on"


def test_policies_far_apart_are_drawn_on_a_log_axis(result) -> None:
    slow = replay([Request(0, 0.0, 8, 3)], Scheduler(PagedMemory(BlockManager(6, 4))), Linear(50, 0, 0))
    assert charts.latency({"paged": result, "slow": slow}, "ttft_s").get_xscale() == "log"
    assert charts.latency({"paged": result}, "ttft_s").get_xscale() == "linear"


def test_lines_on_each_other_are_all_seen(result) -> None:
    widths = [line.get_linewidth() for line in charts.latency(dict.fromkeys("abc", result), "ttft_s").lines]
    assert widths == sorted(widths, reverse=True)
    assert len(set(widths)) == 3


def test_bars_add_up_to_the_cache(result) -> None:
    other = replay([Request(0, 0.0, 5, 3)], Scheduler(ContiguousMemory(40, "max", max_len=30)), Linear())
    ax = charts.slot_use({"paged": result, "max": other})
    widths = np.array([[bar.get_width() for bar in group] for group in ax.containers])
    assert widths.sum(axis=0) == pytest.approx([100, 100])
    assert [bar.get_x() + bar.get_width() for bar in ax.containers[-1]] == pytest.approx([100, 100])
    internal = next(g for g in ax.containers if g.get_label() == "reserved, never used")
    assert internal[1].get_width() == pytest.approx(100 * 22 / 40)


def test_waste_and_capacity(result) -> None:
    assert charts.waste({"paged": result}).lines[0].get_ydata().max() <= 100 * 3 / 24
    ax = charts.capacity_curve({10: 0.1, 1000: 0.3}, 0.33, block_size=512)
    assert ax.get_xlabel() == "blocks of 512 tokens in the cache"
    assert ax.lines[0].get_ydata().tolist() == [10.0, 30.0]
    assert ax.lines[1].get_ydata()[0] == 33.0


def test_the_story_of_blocks() -> None:
    m = BlockManager(3, 4, prefix_cache=True, record=True)
    m.allocate("a", range(6))
    m.commit("a")
    m.fork("a", "b")
    m.append("b", [9])
    m.free("a")
    ax = charts.block_story(m)
    grid = ax.collections[0].get_array()
    # free 0, held 1, shared 2, held and cached 3; events: allocate, cache, share, allocate, copy, drop, free.
    assert grid.tolist() == [[1, 3, 3, 3, 3, 3, 3], [1, 1, 2, 2, 1, 0, 0], [0, 0, 0, 1, 1, 1, 1]]
    with pytest.raises(ValueError, match="record=True"):
        charts.block_story(BlockManager(3, 4))


def test_residuals_are_replay_less_measured(result, run) -> None:
    c = compare(result, run)
    ax = charts.residuals(c, run)
    assert ax.lines[1].get_ydata().tolist() == pytest.approx([-0.5, -0.5, -0.5])
    assert ax.lines[2].get_ydata().tolist() == pytest.approx([-2.0, -2.0, -2.0])
    assert c.fill == pytest.approx(0.0)
    assert c.ttft == pytest.approx(-0.5)


def test_the_command_without_a_file(tmp_path, capsys) -> None:
    assert (
        main(
            [
                "replay",
                "--requests",
                "30",
                "--blocks",
                "200",
                "--policy",
                "paged",
                "--policy",
                "max",
                "--out",
                str(tmp_path),
            ]
        )
        == 0
    )
    out = capsys.readouterr().out
    assert "30 / 0" in out
    assert len(list(tmp_path.glob("*.png"))) == 7


def test_the_command_with_hashes(shared_data, tmp_path, capsys) -> None:
    trace = str(shared_data / "mooncake/conversation_trace.head4000.jsonl")
    arguments = ["--limit", "60", "--block-size", "512", "--blocks", "300", "--host-blocks", "500", "--capacity-curve"]
    assert main(["replay", trace, *arguments, "--policy", "paged", "--policy", "uncached", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "without end" in out
    assert (tmp_path / "capacity_curve.png").exists()


def test_the_command_with_real_values(capsys) -> None:
    assert main(["replay", "--requests", "4", "--blocks", "40", "--model", "random"]) == 0
    assert "every output equals" in capsys.readouterr().out


def test_the_command_against_a_measured_run(shared_data, tmp_path, capsys) -> None:
    folder = shared_data / "vllm_measured"
    trace, run = str(folder / "sharegpt300_llama31_blk16.jsonl"), str(folder / "rtx4090_llama31_8b")
    arguments = ["--blocks", "2588", "--device", "RTX 4090", "--against", run, "--out", str(tmp_path)]
    assert main(["replay", trace, *arguments]) == 0
    out = capsys.readouterr().out
    assert "first come, first served" in out
    assert (tmp_path / "residuals.png").exists()


def test_the_command_says_who_was_refused_and_why_nothing_was_hit(tmp_path, capsys) -> None:
    arguments = ["--requests", "30", "--shared-prompt", "0", "--blocks", "20", "--out", str(tmp_path)]
    assert main(["replay", *arguments, "--policy", "paged", "--policy", "max"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "max refused 30 requests" in out  # 2048 slots each, and there are 320
    assert "served other work" in out
    assert "can hit nothing" in out
    assert not (tmp_path / "hit_rate.png").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policy", "guess"], "--policy must be one of"),
        (["--device", "Z80"], "Z80"),
        (["--blocks", "0"], "num_blocks is 0"),
        (["--block-size", "0"], "block_size must be a whole number from 1, got 0"),
        (["--host-blocks", "5", "--no-prefix-cache"], "needs prefix_cache"),
        (["/no/such/trace.csv"], "No such file"),
        (["--memory-efficiency", "1.5"], "efficiencies are 1.5"),
        (["--limit", "0"], "Invalid value for '--limit'"),
        (["--requests", "0"], "Invalid value for '--requests'"),
    ],
)
def test_wrong_arguments_are_explained(arguments, message, capsys) -> None:
    assert main(["replay", "--requests", "5", *arguments]) == 2
    assert message in capsys.readouterr().err
