"""Figures hold the numbers they were given. Pixels are looked at by people."""

import numpy as np
import pytest
from matplotlib.axis import Axis
from matplotlib.figure import Figure

from refsim import attention, charts
from refsim.attention import Plan
from refsim.charts.pool import blocks_on_map
from refsim.charts.style import METADATA, tensor_colour, tensor_group
from refsim.charts.traffic import by_tensor
from refsim.cost import closed_form
from refsim.kvcache import BlockManager
from refsim.machine import Key, Ledger, Work


def ledger(**nbytes: int) -> Ledger:
    return Ledger({Key("kernel", tensor, "HBM", "read"): n for tensor, n in nbytes.items()})


def tick_labels(axis: Axis) -> list[str]:
    """What a drawn axis says, ticks outside it left out."""
    axis.axes.figure.draw_without_rendering()
    low, high = sorted(axis.get_view_interval())
    both = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
    return [t.label1.get_text() for t in both if low <= t.get_loc() <= high and t.label1.get_text()]


class TestStyle:
    def test_k_is_one_colour_cached_or_not(self) -> None:
        assert tensor_colour(tensor_group("k_cache")) == tensor_colour(tensor_group("k"))
        assert tensor_colour(tensor_group("k")) != tensor_colour(tensor_group("v"))

    def test_every_group_of_the_tensors_that_matter_has_its_own_colour(self) -> None:
        colours = [tensor_colour(name) for name in ("q", "k", "v", "out", "s", "p", "o_partial", METADATA)]
        assert len(set(colours)) == len(colours)

    @pytest.mark.parametrize(
        ("nbytes", "text"),
        [
            (1, "1 B"),
            (1000, "1.00 kB"),
            (9999, "10.0 kB"),
            (999_499, "999 kB"),
            (999_500, "1.00 MB"),
            (2.5e15, "2.50 PB"),
            (3e20, "300 EB"),
            (4e21, "4.00 ZB"),
        ],
    )
    def test_three_digits(self, nbytes: float, text: str) -> None:
        assert charts.human_nbytes(nbytes) == text


class TestTrafficByAlgorithm:
    def test_bars_are_the_ledgers(self) -> None:
        ax = charts.traffic_by_algorithm({"a": ledger(q=10, k=300, lse=4), "b": ledger(q=10, s=70, seq_lens=2)})
        bars = {label: bar for bar, label in zip(ax.containers, ax.get_legend_handles_labels()[1], strict=True)}
        widths = {label: [patch.get_width() for patch in bar] for label, bar in bars.items()}
        assert widths == {"q": [10, 10], "k": [300, 0], "s": [0, 70], METADATA: [4, 2]}
        ends = [max(patch.get_x() + patch.get_width() for patch in row) for row in zip(*bars.values(), strict=True)]
        assert ends == [314, 82]
        assert [text.get_text() for text in ax.texts] == ["314 B", "82 B"]

    def test_of_a_real_run(self) -> None:
        x = np.random.default_rng(0).standard_normal((64, 2, 16)).astype(np.float32)
        run = attention.standard(x, x, x).ledger
        assert sum(by_tensor(run).values()) == run.hbm_nbytes
        # S is written and read back: 2 heads of 64 x 64 float32, twice; P likewise.
        assert by_tensor(run)["s"] == by_tensor(run)["p"] == 2 * 2 * 64 * 64 * 4

    def test_sram_is_left_out(self) -> None:
        on_chip = Ledger({Key("kernel", "m", "SRAM", "read"): 5, Key("kernel", "q", "HBM", "read"): 1})
        assert by_tensor(on_chip) == {"q": 1}

    def test_needs_a_ledger(self) -> None:
        with pytest.raises(ValueError, match="at least one ledger"):
            charts.traffic_by_algorithm({})

    def test_more_bytes_than_64_bits_count(self) -> None:
        """Prefill of as many tokens as int32 holds: 32 heads, K and V for each of 2^24 query tiles."""
        plan = Plan.of([(2**31 - 1, 2**31 - 1)], 32, 8, 128, dtype="float16", tile=(128, 128))
        counted = closed_form.flash(plan)
        assert counted.hbm_nbytes > 2**64
        ax = charts.traffic_by_algorithm({"flash": counted})
        assert [text.get_text() for text in ax.texts] == ["590 EB"]

    def test_nothing_moved(self) -> None:
        ax = charts.traffic_by_algorithm({"flash": Ledger(), "paged": Ledger()})
        assert [label.get_text() for label in ax.get_yticklabels()] == ["flash", "paged"]
        assert [text.get_text() for text in ax.texts] == ["0 B", "0 B"]
        assert ax.get_legend() is None

    def test_ticks_of_few_bytes_are_whole(self) -> None:
        ax = charts.traffic_by_algorithm({"a": ledger(q=2)})
        assert tick_labels(ax.xaxis) == ["0 B", "1 B", "2 B"]

    def test_bars_fill_the_height_and_long_names_fold(self) -> None:
        ax = charts.traffic_by_algorithm(
            {f"an algorithm with many options, number {i}": ledger(q=1) for i in range(25)}
        )
        assert ax.get_ylim() == pytest.approx((24.6, -0.6))
        assert ax.get_yticklabels()[3].get_text() == "an algorithm with many\noptions, number 3"

    def test_what_is_no_ledger(self) -> None:
        with pytest.raises(TypeError, match=r"'a' must be a ledger, such as result\.ledger; got a int"):
            charts.traffic_by_algorithm({"a": 3})  # type: ignore[dict-item]

    def test_draws_on_a_given_axes(self) -> None:
        ax = Figure().add_subplot()
        assert charts.traffic_by_algorithm({"a": ledger(q=1)}, ax=ax) is ax


class TestTrafficByLength:
    def test_lines_are_the_series_on_logarithmic_axes(self) -> None:
        ax = charts.traffic_by_length([16, 32, 64], {"a": [1, 2, 3], "b": [4, 5, 6]})
        assert {line.get_label(): list(line.get_ydata()) for line in ax.get_lines()} == {"a": [1, 2, 3], "b": [4, 5, 6]}
        assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")

    def test_an_algorithm_looks_the_same_in_every_figure(self) -> None:
        def looks(*names: str) -> dict[str, tuple[str, str]]:
            lines = charts.traffic_by_length([1, 2], {name: [1, 2] for name in names}).get_lines()
            return {line.get_label(): (line.get_color(), str(line._unscaled_dash_pattern)) for line in lines}

        first = looks("paged_gather", "standard", "flash", "paged", "split_kv", "each tensor once")
        second = looks("each tensor once", "flash", "standard", "another")
        assert all(second[name] == first[name] for name in ("flash", "standard", "each tensor once"))
        for figure in (first, second):
            assert len(set(figure.values())) == len(figure)  # and unlike every other line of it

    @pytest.mark.parametrize("values", [[1, 2], [1, 2, 0], [1, 2, float("nan")], [1, float("inf"), 3]])
    def test_refuses(self, values: list[int]) -> None:
        with pytest.raises(ValueError, match="'a'"):
            charts.traffic_by_length([16, 32, 64], {"a": values})

    def test_needs_lengths_and_a_series(self) -> None:
        with pytest.raises(ValueError, match="needs at least one length and one series"):
            charts.traffic_by_length([], {"a": []})
        with pytest.raises(ValueError, match="needs at least one length and one series"):
            charts.traffic_by_length([1], {})

    def test_one_length_is_a_mark(self) -> None:
        ax = charts.traffic_by_length([1000], {"a": [10], "b": [12]})
        assert [line.get_marker() for line in ax.get_lines()] == ["o", "o"]
        assert charts.traffic_by_length([1, 2], {"a": [1, 2]}).get_lines()[0].get_marker() == "None"

    def test_lengths_and_bytes_near_each_other_are_told_apart(self) -> None:
        ax = charts.traffic_by_length([1000, 1001], {"a": [100_000, 100_020]})
        assert tick_labels(ax.xaxis) == ["1,000", "1,001"]
        labels = tick_labels(ax.yaxis)
        assert len(set(labels)) == len(labels) > 2
        one = tick_labels(charts.traffic_by_length([1000], {"a": [10], "b": [11]}).yaxis)
        assert one == ["10 B", "11 B"]

    @pytest.mark.parametrize("values", [[10, 12, 14], [2000, 3000, 5000], [10**6, 10**9, 10**24]])
    def test_every_tick_says_bytes(self, values: list[int]) -> None:
        ax = charts.traffic_by_length([100, 200, 300], {"a": values})
        labels = tick_labels(ax.yaxis)
        assert len(labels) >= 2
        assert all(label.endswith("B") for label in labels)

    def test_large_lengths_have_room(self) -> None:
        ax = charts.traffic_by_length([1, 2**31 - 1], {"a": [1, 2]})
        assert 3 <= len(tick_labels(ax.xaxis)) <= 6

    def test_the_names_of_many_series_stand_beside_the_lines(self) -> None:
        ax = charts.traffic_by_length([1, 2], {f"series {i}": [i + 1, i + 2] for i in range(12)})
        ax.figure.draw_without_rendering()
        assert ax.get_legend().get_window_extent().x0 >= ax.get_window_extent().x1


class TestPoolMap:
    @pytest.fixture
    def manager(self) -> BlockManager:
        """Blocks of 4: "a" and its fork "b" hold 0 and 1 (6 tokens); then b writes, which copies 1 to 2. 3 is free."""
        manager = BlockManager(4, 4)
        manager.allocate("a", 6)
        manager.fork("a", "b")
        manager.append("b", 1)
        return manager

    def test_blocks(self, manager: BlockManager) -> None:
        assert [(b.holders, b.logical, b.refs, b.used_slots) for b in blocks_on_map(manager)] == [
            (("a", "b"), 0, 2, 4),
            (("a",), 1, 1, 2),
            (("b",), 1, 1, 3),
            ((), None, 0, 0),
        ]

    def test_drawn_as_full_as_they_are(self, manager: BlockManager) -> None:
        ax = charts.pool_map(manager, names={"a": "first", "b": "second"}, columns=2)
        stripes = [patch for patch in ax.patches if patch.get_fill()]
        outlines = [patch for patch in ax.patches if not patch.get_fill()]
        full = outlines[0].get_height()
        assert [patch.get_height() / full for patch in stripes] == pytest.approx([1, 1, 0.5, 0.75])
        assert [patch.get_width() / full for patch in stripes] == pytest.approx([0.5, 0.5, 1, 1])
        assert stripes[0].get_facecolor() == stripes[2].get_facecolor() != stripes[1].get_facecolor()
        assert [text.get_text() for text in ax.texts] == [
            "P0\nblock 0\n2 refs",
            "P1\nblock 1",
            "P2\nblock 1",
            "P3\nfree",
        ]
        assert [text.get_text() for text in ax.get_legend().get_texts()] == ["first", "second"]
        corners = [(patch.get_x(), patch.get_y()) for patch in outlines]
        assert corners == [(0, 0), (1, 0), (0, -1), (1, -1)]

    def test_tables_of_each_layer(self) -> None:
        manager = BlockManager(4, 4, tables=2)
        manager.allocate("a", 3)
        assert [b.used_slots for b in blocks_on_map(manager)] == [3, 3, 0, 0]

    def test_of_an_empty_pool(self) -> None:
        ax = charts.pool_map(BlockManager(2, 4))
        assert ax.get_legend() is None
        assert len(ax.patches) == 2

    def test_columns(self) -> None:
        with pytest.raises(ValueError, match="columns"):
            charts.pool_map(BlockManager(2, 4), columns=0)

    def test_a_small_pool_is_a_small_figure(self) -> None:
        small, row = (charts.pool_map(BlockManager(n, 4)).figure.get_size_inches() for n in (2, 8))
        assert small[0] < row[0]

    def test_names_of_sequences_stay_in_the_picture(self) -> None:
        manager = BlockManager(8, 4)
        manager.allocate("a request with a name as long as this one", 4)
        for i in range(9):
            manager.fork("a request with a name as long as this one", f"its child number {i}")
        for columns in (1, 8):
            ax = charts.pool_map(manager, columns=columns)
            ax.figure.draw_without_rendering()
            names = ax.get_legend().get_window_extent()
            assert names.x1 <= ax.figure.bbox.x1
            assert names.y1 <= ax.figure.bbox.y1

    def test_more_sequences_than_colours(self) -> None:
        manager = BlockManager(10, 4)
        for i in range(10):
            manager.allocate(i, 4)
        looks = {
            (patch.get_facecolor(), patch.get_hatch()) for patch in charts.pool_map(manager).get_legend().get_patches()
        }
        assert len(looks) == 10


class TestBlockLookup:
    def test_a_table_longer_than_the_pool(self) -> None:
        ax = charts.block_lookup([1, 0, 1, 0, 1], 70, block_size=16, num_blocks=2)
        left, right = ax.get_xlim()
        assert all(left <= patch.get_x() and patch.get_x() + patch.get_width() <= right for patch in ax.patches)

    def test_padding_is_not_drawn_and_not_looked_up(self) -> None:
        table = np.array([3, 2, -1, -1], np.int32)
        assert len(charts.block_lookup(table, 17, block_size=16, num_blocks=4).get_lines()) == 2
        with pytest.raises(ValueError, match="position 40 is in logical block 2; the table has 2 entries"):
            charts.block_lookup(table, 40, block_size=16, num_blocks=4)

    @pytest.mark.parametrize("table", [[9], [0, -3]])
    def test_entries_outside_the_pool(self, table: list[int]) -> None:
        with pytest.raises(ValueError, match=r"block table entry \d is -?\d; the pool has 2 blocks"):
            charts.block_lookup(table, 0, block_size=16, num_blocks=2)

    def test_in_a_large_pool_only_blocks_that_are_held_are_named(self) -> None:
        ax = charts.block_lookup([40, 1, 60], 20, block_size=16, num_blocks=64)
        assert [text.get_text() for text in ax.texts if text.get_text().startswith("P")] == ["P1", "P40", "P60"]
        assert ax.figure.get_size_inches()[0] > 8


class TestSoftmaxWalk:
    def test_lines_are_the_running_maximum_and_lse(self) -> None:
        rng = np.random.default_rng(0)
        q, k = rng.standard_normal((2, 1, 4)), rng.standard_normal((10, 1, 4))
        ax = charts.softmax_walk(attention.flash.steps(q, k, k, tile=(2, 4)), row=1)
        m, log_l, lse, _ = ax.get_lines()
        s = q[1, 0] @ k[:, 0].T / 2
        assert list(m.get_xdata()) == [4, 8, 10]
        np.testing.assert_allclose(m.get_ydata(), [s[:n].max() for n in (4, 8, 10)])
        np.testing.assert_allclose(lse.get_ydata(), [np.log(np.exp(s[:n]).sum()) for n in (4, 8, 10)])
        np.testing.assert_allclose(log_l.get_ydata(), np.array(lse.get_ydata()) - m.get_ydata())

    def test_one_query_tile_of_one_sequence(self) -> None:
        """Two sequences of two query tiles each: the walk is that of the first tile alone."""
        x = np.random.default_rng(0).standard_normal((16, 1, 4))
        starts = np.array([0, 8, 16], np.int32)
        steps = attention.flash.steps(x, x, x, cu_seqlens_q=starts, cu_seqlens_k=starts, tile=(4, 4))
        assert list(charts.softmax_walk(steps).get_lines()[0].get_xdata()) == [4, 8]

    def test_splits_begin_anew(self) -> None:
        """A gap between splits; the dashed line is the LSE of all keys, though the last split saw only its own."""
        q, k = np.ones((1, 1, 1)), np.log(np.array([1.0, 2, 3, 4, 5, 6])).reshape(6, 1, 1)
        ax = charts.softmax_walk(attention.split_kv.steps(q, k, k, num_splits=2, tile=(1, 2), scale=1.0))
        m, _, lse, dashed = ax.get_lines()
        np.testing.assert_allclose(np.exp(m.get_ydata()), [2, 3, np.nan, 5, 6])
        np.testing.assert_allclose(np.exp(lse.get_ydata()), [3, 6, np.nan, 9, 15])
        assert np.exp(dashed.get_ydata()) == pytest.approx([21, 21])

    def test_one_tile_is_a_mark_and_a_row_that_sees_nothing_is_no_error(self) -> None:
        x = np.ones((2, 1, 4))
        ax = charts.softmax_walk(attention.flash.steps(x, x, x, tile=(2, 4)))
        assert [line.get_marker() for line in ax.get_lines()][:3] == ["o", "o", "o"]
        blind = attention.flash.steps(x, x[:1], x[:1], causal=True, tile=(2, 4))
        charts.softmax_walk(blind, row=0).figure.draw_without_rendering()

    def test_a_row_that_is_not_there(self) -> None:
        x = np.ones((2, 1, 4))
        with pytest.raises(ValueError, match="row must be from 0 to 1, got 2"):
            charts.softmax_walk(attention.flash.steps(x, x, x), row=2)

    def test_standard_attention_absorbs_nothing(self) -> None:
        x = np.ones((2, 1, 4))
        with pytest.raises(ValueError, match="absorb"):
            charts.softmax_walk(attention.standard.steps(x, x, x))


class TestRoofline:
    def test_points_by_hand(self) -> None:
        """1e12 FLOPs over 1e9 bytes on an A100: 3.205 ms of matrix units, 0.490 ms of HBM, and a launch of 5 us."""
        bound = Ledger({Key("k", "q", "HBM", "read"): 10**9}, {"k": Work(1, 108 * 10**4, matmul_flops=10**12)})
        ax = charts.roofline({"matrix": bound, "twice": bound + bound}, "A100-80")
        roof, one, two = ax.get_lines()
        assert list(one.get_xdata()) == list(two.get_xdata()) == [1000]
        assert one.get_ydata()[0] == pytest.approx(1e12 / (1e12 / 312e12 + 5e-6))
        assert two.get_ydata()[0] == pytest.approx(one.get_ydata()[0])
        x, y = np.array(roof.get_xdata()), np.array(roof.get_ydata())
        assert x[1] == pytest.approx(312e12 / 2.039e12)
        np.testing.assert_allclose(y, [x[0] * 2.039e12, 312e12, 312e12])
        assert [text.get_text() for text in ax.get_legend().get_texts()] == ["matrix", "twice"]

    def test_every_tick_is_in_the_axis_unit(self) -> None:
        """65 TFLOP/s of a T4 lie between two powers of ten: the ticks there say 60, not 6 x 10^13."""
        ax = charts.roofline({"a": Ledger({Key("k", "q", "HBM", "read"): 10**9}, {"k": Work(1, 40, 10**11)})}, "T4")
        assert {"20", "60"} <= set(tick_labels(ax.yaxis))
        assert all(float(label) < 1000 for label in tick_labels(ax.yaxis) + tick_labels(ax.xaxis))

    def test_twenty_marks_differ(self) -> None:
        one = Ledger({Key("k", "q", "HBM", "read"): 10**9}, {"k": Work(1, 40, 10**11)})
        ax = charts.roofline({f"number {i}": one for i in range(20)}, "T4")
        assert len({(line.get_color(), line.get_marker()) for line in ax.get_lines()[1:]}) == 20

    def test_no_points_are_a_roof(self) -> None:
        ax = charts.roofline({}, "T4")
        assert len(ax.get_lines()) == 1
        assert ax.get_legend() is None

    def test_what_is_no_ledger_or_no_device(self) -> None:
        with pytest.raises(TypeError, match=r"'a' must be a ledger, such as result\.ledger; got a NoneType"):
            charts.roofline({"a": None}, "T4")  # type: ignore[dict-item]
        with pytest.raises(TypeError, match=r"device must be a refsim\.cost\.Device or a built-in one's name, got 4"):
            charts.roofline({}, 4)  # type: ignore[arg-type]

    def test_a_ledger_without_products(self) -> None:
        with pytest.raises(ValueError, match="'copy' has no HBM bytes or no matrix products"):
            charts.roofline({"copy": ledger(k=1)}, "T4")
