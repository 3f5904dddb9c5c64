"""Checks of what callers give: what passes, in which form, and what is said of the rest."""

from fractions import Fraction

import numpy as np
import pytest

from refsim.checks import integers, is_finite, is_positive, is_real, one_of, whole_number, whole_numbers, yes_or_no
from refsim.numerics import DTYPES


@pytest.mark.parametrize("value", [3, np.int8(3), np.uint64(3), np.array(3), np.array(3, ">i2")])
def test_whole_numbers_of_any_kind_become_pythons_own(value) -> None:
    number = whole_number("n", value, 3)
    assert (number, type(number)) == (3, int)


def test_no_width_cuts_a_whole_number_short() -> None:
    assert whole_number("n", 2**70) == 2**70
    assert whole_number("n", -(2**70)) == -(2**70)
    assert whole_number("n", np.int8(100)) * 100 == 10_000


@pytest.mark.parametrize("value", [2.0, np.float32(2), True, False, np.True_, None, "2", b"2", [2], np.array([2]), 2j])
def test_what_counts_nothing_is_no_whole_number(value) -> None:
    for wrong in (ValueError, TypeError):
        with pytest.raises(wrong, match="n must be a whole number, got ") as failure:
            whole_number("n", value, wrong=wrong)
        assert str(failure.value).endswith(repr(value))


def test_a_number_too_small_is_a_value_error_whatever_another_kind_is() -> None:
    with pytest.raises(ValueError, match=r"^n must be a whole number from 1, got 0$"):
        whole_number("n", 0, 1, wrong=TypeError)
    with pytest.raises(ValueError, match=r"^n must be a whole number from 1, or None for no limit, got 0$"):
        whole_number("n", 0, 1, or_else="None for no limit")


def test_shapes_are_whole_numbers_one_an_axis() -> None:
    assert whole_numbers("a shape", [np.int8(2), 0]) == (2, 0)
    assert whole_numbers("a shape", ()) == ()
    for given in (3, None, (2.0,), "23", (True,)):
        with pytest.raises(TypeError, match="a shape must be whole numbers, one an axis, got"):
            whole_numbers("a shape", given)
    with pytest.raises(ValueError, match=r"a shape can't be negative, got \(2, -1\)"):
        whole_numbers("a shape", (2, -1))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, ">i4", np.uint64])
def test_arrays_of_integers_keep_their_type_or_take_the_one_that_is_asked_for(dtype) -> None:
    given = np.array([3, 100], dtype)
    assert integers("ids", given, 1) is given
    asked = integers("ids", given, 1, np.int32)
    assert (asked.tolist(), asked.dtype) == ([3, 100], np.int32)
    same = integers("ids", asked, 1, np.int32)
    assert not np.shares_memory(same, asked)


@pytest.mark.parametrize(("given", "ndim", "shape"), [([], 1, (0,)), ([], 2, (0, 0)), (np.zeros((3, 0)), 2, (3, 0))])
def test_what_is_empty_has_no_integers_to_show(given, ndim, shape) -> None:
    array = integers("ids", given, ndim)
    assert (array.shape, array.dtype) == (shape, np.int64)
    assert integers("ids", given, ndim, np.int32).dtype == np.int32


@pytest.mark.parametrize("given", [[1.0], ["1"], [True], [None], [[1]], 1, np.array([1], "m8[s]")])
def test_other_arrays_are_refused(given) -> None:
    for wrong in (ValueError, TypeError):
        with pytest.raises(wrong, match=r"ids must be integers with 1 axis, got .* of shape"):
            integers("ids", given, 1, wrong=wrong)


def test_rows_of_unequal_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="ids must be integers with 2 axes; rows differ in length"):
        integers("ids", [[1], [2, 3]], 2, wrong=TypeError)


@pytest.mark.parametrize(
    ("given", "dtype", "message"),
    [
        ([[0, 1], [2**31, 2**40]], np.int32, r"ids must fit int32; ids\[1, 0\] is 2147483648"),
        ([[-(2**31) - 1]], np.int32, r"ids\[0, 0\] is -2147483649"),
        (np.array([[2**64 - 1]], np.uint64), np.int64, r"ids must fit int64; ids\[0, 0\] is 18446744073709551615"),
    ],
)
def test_no_integer_wraps(given, dtype, message) -> None:
    with pytest.raises(ValueError, match=message):
        integers("ids", given, 2, dtype)


def test_the_last_integers_that_fit() -> None:
    assert integers("ids", [-(2**31), 2**31 - 1], 1, np.int32).tolist() == [-(2**31), 2**31 - 1]
    assert integers("ids", np.array([2**63 - 1], np.uint64), 1, np.int64).tolist() == [2**63 - 1]


def test_words_are_those_known() -> None:
    assert one_of("fit", "best", ("first", "best")) == "best"
    for given in ("b", "", None, 0, ["best"], np.array("best")):
        with pytest.raises(ValueError, match="fit must be one of first, best, got "):
            one_of("fit", given, ("first", "best"))


def test_real_numbers_are_those_of_machines_and_of_ml_dtypes() -> None:
    assert all(is_real(np.dtype(kind)) for kind in (*DTYPES.values(), ">f4", np.longdouble, int, np.uint8, bool))
    assert not any(is_real(np.dtype(kind)) for kind in (complex, object, "S3", "U3", "M8[s]", "m8[s]"))


def test_finite_and_positive_numbers() -> None:
    for value in (1, 0.5, np.float16(2), np.int8(1), Fraction(1, 3)):
        assert is_finite(value)
        assert is_positive(value)
    for value in (0, -1, -0.0, Fraction(1, 10**400)):  # the last is 0 as a float
        assert is_finite(value)
        assert not is_positive(value)
    for value in (np.nan, np.inf, 10**400, 1j, "1", None, True, np.True_, [1.0]):
        assert not is_finite(value)
        assert not is_positive(value)


@pytest.mark.parametrize("value", [0, 1, "no", None, np.array(True)])
def test_only_true_and_false_are_flags(value) -> None:
    assert yes_or_no("causal", np.False_) is False
    with pytest.raises(TypeError, match="causal must be True or False, got"):
        yes_or_no("causal", value)
