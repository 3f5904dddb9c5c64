"""Each mistake's wrong value is wrong, its right value right, by arithmetic done here."""

import math

import numpy as np
import pytest

from refsim import mistakes


def softmax_answer(s: np.ndarray, v: np.ndarray) -> np.ndarray:
    p = np.exp(s - s.max())
    return p @ v / p.sum()


class TestMergeWithoutTheBlocksFactor:
    def test_two_keys_by_hand(self) -> None:
        # The text forgets e^(0 - 1) on the second value: 1 / (1 + e^-1) in place of e^-1 / (1 + e^-1).
        got = mistakes.merge_without_the_blocks_factor(np.array([1.0, 0.0]), np.array([[0.0], [1.0]]), block=1)
        assert got.wrong == pytest.approx(1 / (1 + math.exp(-1)))
        assert got.right == pytest.approx(math.exp(-1) / (1 + math.exp(-1)))

    @pytest.mark.parametrize("block", [1, 3, 4, 7])
    def test_fails_on_ordinary_scores(self, block: int) -> None:
        rng = np.random.default_rng(0)
        s, v = 3 * rng.standard_normal(20), rng.standard_normal((20, 5))
        got = mistakes.merge_without_the_blocks_factor(s, v, block)
        np.testing.assert_allclose(got.right, softmax_answer(s, v), rtol=1e-12)
        assert np.abs(got.wrong - softmax_answer(s, v)).max() > 0.1

    @pytest.mark.parametrize("block", [1, 4, 20])
    def test_right_while_each_block_holds_the_largest_score(self, block: int) -> None:
        rng = np.random.default_rng(1)
        s, v = np.sort(rng.standard_normal(20)), rng.standard_normal((20, 5))
        got = mistakes.merge_without_the_blocks_factor(s, v, block)
        np.testing.assert_allclose(got.wrong, softmax_answer(s, v), rtol=1e-12)

    @pytest.mark.parametrize(("T", "rows", "block"), [(3, 2, 1), (0, 0, 1), (3, 3, 0)])
    def test_refuses_what_does_not_fit(self, T: int, rows: int, block: int) -> None:
        with pytest.raises(ValueError, match="expected scores"):
            mistakes.merge_without_the_blocks_factor(np.zeros(T), np.zeros((rows, 2)), block)


class TestListingWithoutScaleAndL:
    def test_three_equal_keys_by_hand(self) -> None:
        # Each block of one key: o = (l o + v) / 1 with l = 1, a plain sum: 1 + 2 + 4 in place of 7 / 3.
        got = mistakes.listing_without_scale_and_l([0.0, 0.0], np.zeros((3, 2)), [[1.0], [2.0], [4.0]], block=1)
        np.testing.assert_allclose(got.without_l, 7.0)
        for answer in (got.without_scale, got.completed, got.right):  # no score, no scale
            np.testing.assert_allclose(answer, 7 / 3)

    @pytest.mark.parametrize("block", [1, 3, 4, 20])
    def test_with_both_put_in_it_is_right_wherever_the_largest_score_is(self, block: int) -> None:
        rng = np.random.default_rng(3)
        q, k, v = rng.standard_normal(16), rng.standard_normal((20, 16)), rng.standard_normal((20, 5))
        got = mistakes.listing_without_scale_and_l(q, k, v, block)
        s = k @ q
        np.testing.assert_allclose(got.right, softmax_answer(s / 4, v), rtol=1e-12)
        np.testing.assert_allclose(got.completed, got.right, rtol=1e-12)
        np.testing.assert_allclose(got.without_scale, softmax_answer(s, v), rtol=1e-12)
        assert np.abs(got.without_scale - got.right).max() > 0.1
        # One block has nothing to carry.
        assert (np.abs(got.without_l - got.right).max() > 0.1) == (block < 20)

    @pytest.mark.parametrize(("D", "T", "rows", "block"), [(2, 3, 2, 1), (2, 0, 0, 1), (3, 2, 2, 1), (2, 2, 2, 0)])
    def test_refuses_what_does_not_fit(self, D: int, T: int, rows: int, block: int) -> None:
        with pytest.raises(ValueError, match="expected q"):
            mistakes.listing_without_scale_and_l(np.zeros(D), np.zeros((T, 2)), np.zeros((rows, 1)), block)


class TestLargestLseAsTheGlobalOne:
    def test_weights_of_three_splits_do_not_sum_to_one(self) -> None:
        got = mistakes.largest_lse_as_the_global_one(np.ones((3, 2)), np.array([2.0, 1.0, 0.0]))
        np.testing.assert_allclose(got.wrong, 1 + math.exp(-1) + math.exp(-2))
        np.testing.assert_allclose(got.right, 1.0)

    @pytest.mark.parametrize(
        ("outs", "lses"),
        [
            (np.ones((3, 1)), np.zeros(2)),
            (np.ones(3), np.zeros(3)),
            (np.ones((0, 1)), np.zeros(0)),
            (np.zeros((2, 1)), np.full(2, -np.inf)),
        ],
    )
    def test_refuses_what_does_not_fit(self, outs: np.ndarray, lses: np.ndarray) -> None:
        with pytest.raises(ValueError, match="expected answers"):
            mistakes.largest_lse_as_the_global_one(outs, lses)

    def test_lists_do(self) -> None:
        assert mistakes.largest_lse_as_the_global_one([[1.0], [1.0]], [0, 0]).wrong == 2.0
        assert mistakes.merge_without_the_blocks_factor([1, 0], [[0], [0]], 1).right == 0.0

    def test_right_is_attention_over_all_keys(self) -> None:
        rng = np.random.default_rng(2)
        s, v = rng.standard_normal((4, 6)), rng.standard_normal((4, 6, 3))
        outs = np.stack([softmax_answer(*part) for part in zip(s, v, strict=True)])
        got = mistakes.largest_lse_as_the_global_one(outs, np.log(np.exp(s).sum(axis=1)))
        np.testing.assert_allclose(got.right, softmax_answer(s.ravel(), v.reshape(24, 3)), rtol=1e-12)
        assert np.abs(got.wrong - got.right).max() > 0.1


@pytest.mark.parametrize("head_dim_v", [1, 64, 128])
def test_the_lse_handover_saves_one_number_of_many(head_dim_v: int) -> None:
    got = mistakes.saving_of_the_lse_handover(head_dim_v, num_splits=5)
    assert got.of_scalars == 0.5
    assert got.of_traffic == pytest.approx(1 / (head_dim_v + 2))
    assert got.state_nbytes == 5 * (head_dim_v + 2) * 8  # float64
    assert got.lse_nbytes == 5 * (head_dim_v + 1) * 8


class TestOverflow:
    def test_a_score_of_120(self) -> None:
        rows = {row.dtype: row for row in mistakes.overflow_table(120.0)}
        assert list(rows) == ["float16", "bfloat16", "float32", "float64"]
        assert rows["float16"].largest == 65504
        assert rows["float32"].largest == pytest.approx(3.4028e38, rel=1e-4)
        for name in ("float16", "bfloat16", "float32"):
            assert math.isinf(rows[name].naive_sum)
            assert math.isnan(rows[name].naive)
        assert rows["float64"].naive_sum == pytest.approx(1.304e52, rel=1e-3)
        assert rows["float64"].naive == 1.0
        for row in rows.values():
            assert (row.m, row.l, row.lse, row.by_state, row.by_lse) == (120.0, 1.0, 120.0, 1.0, 1.0)

    def test_where_each_type_gives_up(self) -> None:
        # ln of the largest value: 11.09 in float16, 88.7 in bfloat16 and float32, 709.8 in float64.
        for score, survivors in [(11, 4), (12, 3), (88, 3), (89, 1), (709, 1), (710, 0)]:
            rows = mistakes.overflow_table(float(score))
            assert sum(row.naive == 1.0 for row in rows) == survivors, score
            assert all(row.by_state == 1.0 for row in rows), score

    @pytest.mark.parametrize(("score", "dtypes"), [(1e6, ("float32", "float16")), (math.inf, ("float64",))])
    def test_a_score_that_the_type_has_not_is_no_overflow_of_the_sum(
        self, score: float, dtypes: tuple[str, ...]
    ) -> None:
        with pytest.raises(ValueError, match=f"{dtypes[-1]} holds no score"):
            mistakes.overflow_table(score, dtypes)

    def test_an_unknown_type_is_named(self) -> None:
        with pytest.raises(TypeError, match="'int8' is not a floating type"):
            mistakes.overflow_table(dtypes=("int8",))
