"""Figures hold the numbers they were given. Pixels are looked at by people."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from refsim import attention, charts
from refsim.charts.pool import blocks_on_map
from refsim.charts.style import METADATA, tensor_colour, tensor_group
from refsim.charts.traffic import by_tensor
from refsim.kvcache import BlockManager
from refsim.machine import Key, Ledger, Work


def ledger(**nbytes: int) -> Ledger:
    return Ledger({Key("kernel", tensor, "HBM", "read"): n for tensor, n in nbytes.items()})


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

    def test_draws_on_a_given_axes(self) -> None:
        ax = Figure().add_subplot()
        assert charts.traffic_by_algorithm({"a": ledger(q=1)}, ax=ax) is ax


class TestTrafficByLength:
    def test_lines_are_the_series_on_logarithmic_axes(self) -> None:
        ax = charts.traffic_by_length([16, 32, 64], {"a": [1, 2, 3], "b": [4, 5, 6]})
        assert {line.get_label(): list(line.get_ydata()) for line in ax.get_lines()} == {"a": [1, 2, 3], "b": [4, 5, 6]}
        assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")

    @pytest.mark.parametrize("values", [[1, 2], [1, 2, 0]])
    def test_refuses(self, values: list[int]) -> None:
        with pytest.raises(ValueError, match="'a'"):
            charts.traffic_by_length([16, 32, 64], {"a": values})


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

    def test_a_ledger_without_products(self) -> None:
        with pytest.raises(ValueError, match="'copy' has no HBM bytes or no matrix products"):
            charts.roofline({"copy": ledger(k=1)}, "T4")
