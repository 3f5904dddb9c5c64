"""Number types against their definitions: every value decoded by hand, and rounding by search."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsim.numerics import DTYPES, Precision, carrier, dtype_of, largest, name_of, round_to, unit_roundoff

# name: (exponent bits, mantissa bits, has inf)
FORMATS = {"float16": (5, 10, True), "bfloat16": (8, 7, True), "e4m3": (4, 3, False), "e5m2": (5, 2, True)}


def positive_values(exponent_bits, mantissa_bits, has_inf):
    """Every finite value from 0 up, by the formula 2^(e - bias) * 1.m (or 0.m where e is 0)."""
    bias = 2 ** (exponent_bits - 1) - 1
    top = 2**exponent_bits - (1 if has_inf else 0)  # formats with inf keep the last exponent for it and NaN
    fraction = np.arange(2**mantissa_bits) / 2**mantissa_bits
    rows = [fraction * 2.0 ** (1 - bias), *((1 + fraction) * 2.0 ** (e - bias) for e in range(1, top))]
    return np.concatenate(rows)[: None if has_inf else -1]  # e4m3 gives its last pattern to NaN


VALUES = {name: positive_values(*form) for name, form in FORMATS.items()}


def nearest(x, name):
    """Round to nearest, ties to the even pattern; beyond the last value as if one more followed it."""
    values = VALUES[name]
    beyond = 2 * values[-1] - values[-2]
    grid = np.append(values, beyond)
    at = min(int(np.searchsorted(grid, abs(x))), len(grid) - 1)
    below, above = grid[max(at - 1, 0)], grid[at]
    down, up = abs(x) - below, above - abs(x)
    index = at if up < down or (up == down and at % 2 == 0) else max(at - 1, 0)
    if index == len(values):
        return np.copysign(np.inf, x) if FORMATS[name][2] else np.nan
    return np.copysign(grid[index], x)


@pytest.mark.parametrize("name", FORMATS)
def test_every_value_is_kept(name):
    values = VALUES[name].astype(np.float32)
    np.testing.assert_array_equal(round_to(values, name), values)
    np.testing.assert_array_equal(round_to(-values, name), -values)
    assert largest(name) == values[-1]


@pytest.mark.parametrize("name", FORMATS)
@given(st.floats(allow_nan=False, allow_infinity=False, width=32))
def test_rounding_goes_to_the_nearest_value(name, x):
    # Squeeze the draw into and just beyond the format's range, so that overflow is met but not always.
    x = np.float32(np.clip(x, -1.2 * VALUES[name][-1], 1.2 * VALUES[name][-1]))
    got = round_to(np.array([x], np.float32), name)
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, np.float32(nearest(float(x), name)))


@pytest.mark.parametrize("name", FORMATS)
def test_ties_go_to_even_and_the_largest_error_is_the_unit_roundoff(name):
    values = VALUES[name]
    steps = values[values >= 1][:9].astype(np.float32)
    halfway = (steps[:-1] + steps[1:]) / 2
    got = round_to(halfway, name)
    even = np.array([nearest(float(x), name) for x in halfway], np.float32)
    np.testing.assert_array_equal(got, even)
    assert unit_roundoff(name) == 2.0 ** -(FORMATS[name][1] + 1)
    assert (abs(got - halfway) / halfway).max() <= unit_roundoff(name)


@pytest.mark.parametrize(
    ("name", "last", "over"),
    [
        ("float16", 65504, np.inf),
        ("bfloat16", 3.3895313892515355e38, np.inf),
        ("e4m3", 448, np.nan),
        ("e5m2", 57344, np.inf),
    ],
)
def test_published_ranges_and_what_lies_beyond(name, last, over):
    assert largest(name) == last
    np.testing.assert_array_equal(round_to(np.array([last * 1.2], np.float64), name), [over])


def test_names_and_types_stand_for_each_other():
    for name, dtype in DTYPES.items():
        assert dtype_of(name) == dtype_of(dtype) == dtype_of(dtype.type) == dtype
        assert name_of(dtype) == name
    assert [DTYPES[name].itemsize for name in DTYPES] == [8, 4, 2, 2, 1, 1]


@pytest.mark.parametrize("given_type", ["int8", np.int32, "fp16", object, bool, "complex64", "no such type", None])
def test_types_that_no_kernel_stores_are_refused(given_type):
    with pytest.raises(TypeError, match="not a floating type that kernels store; choose one of float64"):
        dtype_of(given_type)


def test_values_are_carried_in_float32_or_float64():
    assert carrier("float64") == np.float64
    assert {carrier(name) for name in DTYPES if name != "float64"} == {np.dtype(np.float32)}


def test_rounding_to_the_own_type_copies_nothing():
    x = np.ones(3, np.float32)
    assert round_to(x, "float32") is x


def test_nan_stays_nan():
    for name in FORMATS:
        assert np.isnan(round_to(np.array([np.nan], np.float32), name)).all()


@pytest.mark.parametrize("name", DTYPES)
def test_the_usual_precision_sums_in_float32_or_wider(name):
    chosen = Precision.of(name)
    assert chosen.storage == chosen.matrix == chosen.p == DTYPES[name]
    assert name_of(chosen.accumulate) == ("float64" if name == "float64" else "float32")


def test_each_part_of_a_precision_can_be_chosen():
    chosen = Precision.of("bfloat16", matrix="e4m3", accumulate="float64", p="float16")
    assert [name_of(t) for t in (chosen.storage, chosen.matrix, chosen.accumulate, chosen.p)] == [
        "bfloat16",
        "e4m3",
        "float64",
        "float16",
    ]
    with pytest.raises(TypeError, match="accumulation in bfloat16 loses the sum"):
        Precision.of("bfloat16", accumulate="bfloat16")


def test_a_precision_made_by_hand_is_checked_as_well():
    assert Precision("float16", "float16", "float32", "float16") == Precision.of("float16")
    with pytest.raises(TypeError, match="accumulation in float16 loses the sum"):
        Precision(*["float16"] * 4)
    with pytest.raises(TypeError, match="'int8' is not a floating type"):
        Precision("float16", "int8", "float32", "float16")


def test_the_other_byte_order_is_named():
    with pytest.raises(TypeError, match=r"dtype\('>f4'\) has its bytes in the other order.*newbyteorder\('='\)"):
        dtype_of(np.dtype(">f4"))
