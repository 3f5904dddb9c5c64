"""The machine's strictness: nothing is read uncounted, nothing overflows quietly, nothing outlives its program."""

import gc
import operator
import tracemalloc

import numpy as np
import pytest

from refsim.machine import Key, Machine, SramOverflow, StaleTile, UncountedAccess


def one(name="k", **options):
    """A machine, and one running program of kernel `name`."""
    machine = Machine(**options)
    return machine, machine.kernel(name)


# HBM


@pytest.mark.parametrize(
    "touch",
    [
        lambda x: x[0],
        lambda x: x[...],
        lambda x: operator.setitem(x, 0, 1.0),
        lambda x: list(x),
        lambda x: 1.0 in x,
        len,
        bool,
        float,
        int,
        operator.index,
        np.asarray,
        np.array,
        np.exp,
        np.sum,
        np.add.reduce,
        np.from_dlpack,
        lambda x: np.concatenate([x, x]),
        lambda x: np.where(x, 1, 0),
        lambda x: np.zeros(3) + x,
        lambda x: np.matmul(np.zeros((3, 3)), x),
        lambda x: x + 1,
        lambda x: 1 - x,
        lambda x: -x,
        lambda x: x @ x,
        lambda x: x**2,
        lambda x: x / 2,
        lambda x: operator.iadd(x, 1),
        lambda x: x == x,
        lambda x: x != 0,
        lambda x: x < 0,
        lambda x: x // 2,
        lambda x: 7 % x,
        lambda x: divmod(x, 2),
        lambda x: +x,
        lambda x: ~x,
        abs,
        complex,
        reversed,
        lambda x: operator.delitem(x, 0),
    ],
)
def test_an_array_in_hbm_refuses_every_touch(touch):
    x = Machine().hbm("x", np.ones(3), writable=True)
    with pytest.raises(UncountedAccess, match=r"'x' lies in HBM.*programs\.load.*machine\.to_host"):
        touch(x)


def test_what_is_read_only_is_not_given_to_kernels_to_write():
    x = np.ones(3)[:]
    x.flags.writeable = False  # though its base can be written
    with pytest.raises(ValueError, match="'x' is read-only, and kernels are to write it"):
        Machine().hbm("x", x, writable=True)
    assert Machine().hbm("x", x).shape == (3,)


def test_an_array_in_hbm_tells_what_a_launch_argument_tells():
    x = Machine().hbm("x", np.ones((2, 3), np.float32))
    assert (x.name, x.shape, x.dtype) == ("x", (2, 3), np.float32)
    assert repr(x) == "HBMArray('x', shape=(2, 3), dtype=float32)"
    assert x in {x}
    with pytest.raises(AttributeError, match=r"an array in HBM has a name, shape and dtype, but no sum: load a tile"):
        x.sum()
    assert not hasattr(x, "T")


def test_a_tile_and_hbm_do_not_mix():
    machine, kernel = one()
    x = machine.hbm("x", np.ones(3))
    with kernel as k, k.programs() as prog:
        tile = prog.load(x, ..., into=prog.buffer("x", (3,), "float64"))
        with pytest.raises(UncountedAccess):
            tile + x
        with pytest.raises(UncountedAccess):
            x * tile


def test_new_arrays_hold_nan_and_hosts_get_a_copy_they_cannot_write():
    machine = Machine()
    host = machine.to_host(machine.empty("y", (2,), "float32"))
    assert np.isnan(host).all()
    with pytest.raises(ValueError, match="read-only"):
        host[0] = 1


def test_hosts_wait_for_the_kernel():
    machine, kernel = one("busy")
    x = machine.hbm("x", np.ones(1))
    with kernel, pytest.raises(UncountedAccess, match="while kernel 'busy' runs"):
        machine.to_host(x)
    assert machine.to_host(x).item() == 1


def test_kernels_do_not_nest_and_one_that_fails_ends():
    machine, kernel = one("outer")
    with (
        kernel,
        pytest.raises(RuntimeError, match="'inner' can't start inside kernel 'outer'"),
        machine.kernel("inner"),
    ):
        pass
    with pytest.raises(ZeroDivisionError), machine.kernel("failing"):
        raise ZeroDivisionError
    with machine.kernel("next"):
        pass
    assert machine.ledger().launches == 3


def test_what_runs_apart_counts_for_every_machine_it_came_from():
    whole = Machine(sram_nbytes=100)
    call, other = whole.apart(), whole.apart()
    part = call.apart()
    x = part.hbm("x", np.ones(2))
    with part.kernel("k") as k, other.kernel("k"), k.programs() as prog:
        prog.load(x, ..., into=prog.buffer("x", (2,), "float64"))
        for machine in (part, call, whole):
            assert machine.ledger().total(tensor="x") == 16, "while it runs"
        with pytest.raises(SramOverflow, match="the machine has 100 B"):
            prog.buffer("y", (100,), "float64")
    assert part.ledger() == call.ledger()
    assert whole.ledger() == part.ledger() + other.ledger()
    assert (whole.ledger().launches, other.ledger().launches, other.ledger().hbm_nbytes) == (2, 1, 0)


def test_nothing_starts_apart_while_the_whole_machine_runs_a_kernel():
    machine, kernel = one("outer")
    part = machine.apart().apart()
    with kernel, pytest.raises(RuntimeError, match="'inner' can't start inside kernel 'outer'"), part.kernel("inner"):
        pass
    with part.kernel("inner"):
        pass
    assert machine.ledger().launches == 2


def test_inputs_cannot_be_written():
    machine, kernel = one()
    x = machine.hbm("x", np.ones(1))
    with kernel as k, k.programs() as prog:
        tile = prog.load(x, ..., into=prog.buffer("x", (1,), "float64"))
        with pytest.raises(ValueError, match="'x' is an input of the kernel"):
            prog.store(tile, x, ...)


# On-chip memory


def test_overflow_names_need_limit_and_each_buffer():
    _, kernel = one("attend", sram_nbytes=1000)
    with kernel as k, k.programs() as prog:
        prog.buffer("q", (10, 10), "float16")
        prog.buffer("k", (100,), "float64")
        with pytest.raises(SramOverflow) as error:
            prog.buffer("v", (1,), "float32")
    text = str(error.value)
    for part in (
        "kernel 'attend' needs 1,004 B on chip and the machine has 1,000 B",
        "'v' did not fit",
        "q (10, 10) float16 200 B",
        "k (100,) float64 800 B",
        "v (1,) float32 4 B",
    ):
        assert part in text


def test_exactly_full_is_allowed_and_every_program_has_its_own():
    _, kernel = one(sram_nbytes=400)
    with kernel as k, k.programs(7) as prog:
        prog.buffer("x", (100,), "float32")


def test_the_limit_is_of_each_program_and_not_of_all():
    machine, kernel = one()
    with kernel as k:
        for size in (4, 10, 6):
            with k.programs(3) as prog:
                prog.buffer("x", (size,), "float32")
    assert machine.ledger().work["k"].sram_peak_nbytes == 40


def test_temporaries_count_and_are_given_back():
    machine, kernel = one(sram_nbytes=24)
    x = machine.hbm("x", np.ones(2))
    with kernel as k, k.programs() as prog:
        tile = prog.load(x, ..., into=prog.buffer("x", (2,), "float64"))
        assert prog.live_nbytes == 16
        half = tile.sum(axis=-1)
        assert prog.live_nbytes == 24
        with pytest.raises(SramOverflow, match=r"needs 32 B.*temporaries 16 B"):
            half + 1
        assert prog.live_nbytes == 24, "what did not fit is not held"
        half += 1
        assert prog.live_nbytes == 24, "in place takes nothing"
        del half
        assert prog.live_nbytes == 16
        tile.sum(axis=-1)
        assert prog.live_nbytes == 16, "an expression whose value is dropped is given back at once"
    assert machine.ledger().work["k"].sram_peak_nbytes == 24


def test_a_device_brings_its_own_limit():
    class Small:
        sram_nbytes = 8

    with Machine(Small()).kernel("k") as k, k.programs() as prog, pytest.raises(SramOverflow):
        prog.buffer("x", (3,), "float32")
    with Machine(sram_nbytes=None).kernel("k") as k, k.programs() as prog:
        prog.buffer("x", (10**9,), "float32")
    Small.sram_nbytes = 0
    for wrong in (0, -1, 1.5, float("nan"), "64", True, [1]):
        with pytest.raises(ValueError, match="sram_nbytes must be a whole number from 1, or None"):
            Machine(sram_nbytes=wrong)
    with pytest.raises(ValueError, match="a whole number from 1, or None for no limit, got 0"):
        Machine(Small())


def test_storage_that_nothing_wrote_is_nan():
    machine, kernel = one()
    y = machine.empty("y", (2,), "float32")
    with kernel as k, k.programs() as prog:
        prog.store(prog.buffer("y", (2,), "float32").tile(), y, ...)
    assert np.isnan(machine.to_host(y)).all()


def test_misuse_of_buffers_is_refused():
    machine, kernel = one()
    x = machine.hbm("x", np.ones((2, 3)))
    with kernel as k, k.programs() as prog:
        small = prog.buffer("small", (2, 2), "float64")
        with pytest.raises(ValueError, match=r"'small' is declared already, with shape \(2, 2\)"):
            prog.buffer("small", (1,), "float64")
        with pytest.raises(ValueError, match=r"\(2, 3\) doesn't fit buffer 'small', which was declared \(2, 2\)"):
            prog.load(x, ..., into=small)
        with pytest.raises(ValueError, match=r"\(2,\) doesn't fit buffer 'small'"):
            prog.load(x, np.s_[:, 0], into=small)
        with pytest.raises(ValueError, match=r"\(3, 2\) doesn't fit"):
            small.tile(3, 2)
        with pytest.raises(TypeError, match="not a floating type"):
            prog.buffer("ids", (2,), "int32")
        before = prog.live_nbytes
        with pytest.raises(ValueError, match=r"the shape of buffer 'less' can't be negative, got \(-3,\)"):
            prog.buffer("less", (-3,), "float32")
        for shape in (3, (2.5,), ("a",), None):
            with pytest.raises(TypeError, match="the shape of buffer 'odd' must be whole numbers, one an axis"):
                prog.buffer("odd", shape, "float32")
        for order, shape in (("Z", (2, 2)), ("F", (2,))):
            with pytest.raises(ValueError, match="order must be 'C', or 'F' for two axes and more"):
                prog.buffer("odd", shape, "float32", order=order)
        assert prog.live_nbytes == before, "what is refused takes nothing"


def test_what_is_no_array_in_hbm_no_buffer_and_no_tile_is_named():
    machine, kernel = one()
    x, y = machine.hbm("x", np.ones(2)), machine.empty("y", (2,), "float64")
    for wrong in ([None, 1], ["a"], np.array(["2020-01-01"], "datetime64[D]")):
        with pytest.raises(TypeError, match="'ids' must hold numbers, got"):
            machine.hbm("ids", wrong)
    with pytest.raises(TypeError, match="to_host copies an array in HBM to the host, got ndarray"):
        machine.to_host(np.ones(2))
    with pytest.raises(ValueError, match=r"the shape of 'z' can't be negative, got \(-1,\)"):
        machine.empty("z", (-1,), "float32")
    with kernel as k, k.programs() as prog:
        buffer = prog.buffer("x", (2,), "float64")
        tile = prog.load(x, ..., into=buffer)
        for use, message in (
            (lambda: prog.load(np.ones(2), ..., into=buffer), "load moves bytes of an array in HBM.*got ndarray"),
            (lambda: prog.load(tile, ..., into=buffer), "load moves bytes of an array in HBM.*got Tile"),
            (lambda: prog.load(x, ..., into=tile), "into must be a buffer, which prog.buffer declares, got Tile"),
            (lambda: prog.load_index(np.arange(2), 0), "load_index moves bytes of an array in HBM.*got ndarray"),
            (lambda: prog.store(tile, np.ones(2), ...), "store moves bytes of an array in HBM.*got ndarray"),
            (lambda: prog.store(np.ones(2), y, ...), "expected a tile, .* got ndarray"),
            (lambda: prog.mma(tile, np.ones(2), acc=tile), "expected a tile, .* got ndarray"),
        ):
            with pytest.raises(TypeError, match=message):
                use()
        tile + 1
    assert np.isnan(machine.to_host(y)).all()


def test_programs_cannot_reach_what_others_hold_on_chip():
    machine, kernel = one()
    x, y = machine.hbm("x", np.ones((2, 1))), machine.empty("y", (2, 1), "float64")
    with kernel as k, k.programs(2) as prog, k.programs(2) as other:
        mine, theirs = (p.buffer(name, (1,), "float64") for p, name in ((prog, "mine"), (other, "theirs")))
        a, b = prog.load(x, ..., into=mine), other.load(x, ..., into=theirs)
        before = machine.ledger()
        for use in (
            lambda: a + b,
            lambda: np.exp(a, out=b),
            lambda: prog.load(x, ..., into=theirs),
            lambda: prog.store(b, y, ...),
            lambda: prog.mma(a, a, acc=b),
        ):
            with pytest.raises(ValueError, match="'theirs' is on chip in other programs"):
                use()
        assert machine.ledger().hbm_nbytes == before.hbm_nbytes


# What outlives what


def test_a_tile_is_stale_once_its_buffer_is_loaded_anew():
    machine, kernel = one()
    x = machine.hbm("x", np.arange(4.0))
    with kernel as k, k.programs() as prog:
        buffer = prog.buffer("x", (2,), "float64")
        old = prog.load(x, np.s_[:2], into=buffer)
        view = old[..., :1]
        new = prog.load(x, np.s_[2:], into=buffer)
        for use in (
            lambda: old + 1,
            lambda: new + old,
            lambda: old.sum(axis=-1),
            lambda: view * 2,
            lambda: np.exp(new, out=old),
            lambda: old[..., 0],
            lambda: old.reshape(2, 1),
            lambda: old.round(np.dtype(np.float32)),
            lambda: old.mask(np.array([True, False]), 0),
            lambda: prog.mma(old, new, acc=new),
            lambda: prog.store(old, machine.empty("y", (2,), "float64"), ...),
            lambda: operator.setitem(new, (..., slice(2)), old),
        ):
            with pytest.raises(StaleTile, match="'x' was used although its buffer was loaded anew"):
                use()
        new + 1


def test_nothing_on_chip_outlives_its_program():
    machine, kernel = one()
    x, y = machine.hbm("x", np.ones(2)), machine.empty("y", (2,), "float64")
    with kernel as k:
        with k.programs() as prog:
            buffer = prog.buffer("x", (2,), "float64")
            tile = prog.load(x, ..., into=buffer)
            temporary = tile + 1
        before = machine.ledger()
        for use in (lambda: tile + 1, lambda: temporary + 1, lambda: prog.store(temporary, y, ...)):
            with pytest.raises(StaleTile, match="although its program has ended"):
                use()
        for use in (
            lambda: prog.load(x, ..., into=buffer),
            lambda: prog.buffer("late", (1,), "float64"),
            lambda: buffer.full(0),
        ):
            with pytest.raises(StaleTile, match="has ended"):
                use()
    assert machine.ledger() == before


# Grids


def test_programs_that_share_a_value_each_pay_for_it():
    machine, kernel = one()
    shared, own = machine.hbm("shared", np.ones((1, 2))), machine.hbm("own", np.ones((3, 2)))
    with kernel as k, k.programs(3) as prog:
        prog.load(shared, ..., into=prog.buffer("shared", (2,), "float64"))
        prog.load(own, ..., into=prog.buffer("own", (2,), "float64"))
    ledger = machine.ledger()
    assert ledger.total(tensor="shared") == ledger.total(tensor="own") == 3 * 2 * 8
    assert ledger.programs == 3


def test_a_race_is_refused():
    machine, kernel = one()
    x, y = machine.hbm("x", np.ones((1, 2))), machine.empty("y", (1, 2), "float64")
    with kernel as k, k.programs(3) as prog:
        tile = prog.load(x, ..., into=prog.buffer("x", (2,), "float64"))
        with pytest.raises(ValueError, match="3 programs would write one part of 'y': that is a race"):
            prog.store(tile, y, ...)
    assert np.isnan(machine.to_host(y)).all()


@pytest.mark.parametrize("shape", [(2, 4), (4,), (4, 3)])
def test_data_that_does_not_follow_the_grid_is_refused(shape):
    machine, kernel = one()
    with kernel as k, k.programs(3, 2) as prog:
        buffer = prog.buffer("x", (4,), "float64")
        with pytest.raises(ValueError, match=r"must begin with the grid \(3, 2\)|doesn't fit"):
            prog.load(machine.hbm("x", np.ones(shape)), ..., into=buffer)


def test_a_grid_may_be_empty_but_not_negative():
    machine, kernel = one()
    with kernel as k:
        with k.programs(0) as prog:
            prog.load(machine.hbm("x", np.ones((0, 2))), ..., into=prog.buffer("x", (2,), "float64"))
        with pytest.raises(ValueError, match="can't be negative"), k.programs(-1):
            pass
        for grid in ((2.5,), ("a",), ((2, 3),)):
            with pytest.raises(TypeError, match="a grid must be whole numbers, one an axis"), k.programs(*grid):
                pass
    assert machine.ledger().nbytes == {}


# Moving values


def test_loads_and_stores_round_to_the_type_they_land_in():
    machine, kernel = one()
    x = machine.hbm("x", np.array([1.001, 2.0]))
    y = machine.empty("y", (2,), "bfloat16")
    with kernel as k, k.programs() as prog:
        tile = prog.load(x, ..., into=prog.buffer("x", (2,), "bfloat16"))
        assert tile.data.tolist() == [1.0, 2.0]
        tile += 0.001  # sums are carried in float32 ...
        assert tile.data[0] == np.float32(1.001)
        prog.store(tile, y, ...)  # ... and a store rounds again
    assert machine.to_host(y).astype(float).tolist() == [1.0, 2.0]
    assert machine.ledger().nbytes[Key("k", "x", "HBM", "read")] == 2 * 8, "read as HBM holds it: float64"
    assert machine.ledger().nbytes[Key("k", "x", "SRAM", "write")] == 2 * (2 * 2), "on chip as bfloat16"
    assert machine.ledger().nbytes[Key("k", "y", "HBM", "write")] == 2 * 2


def test_a_store_out_of_range_becomes_inf_without_a_warning():
    machine, kernel = one()
    x, y = machine.hbm("x", np.array([1e6])), machine.empty("y", (1,), "float16")
    with kernel as k, k.programs() as prog:
        prog.store(prog.load(x, ..., into=prog.buffer("x", (1,), "float64")), y, ...)
    assert np.isposinf(machine.to_host(y)).all()


def test_a_load_is_a_copy_where_the_source_can_change():
    machine, kernel = one()
    x = machine.hbm("x", np.zeros(1), writable=True)
    with kernel as k, k.programs() as prog:
        tile = prog.load(x, ..., into=prog.buffer("a", (1,), "float64"))
        changed = prog.load(x, ..., into=prog.buffer("b", (1,), "float64"))
        changed += 5
        prog.store(changed, x, ...)
        assert tile.data.item() == 0
    assert machine.to_host(x).item() == 5


def test_a_tile_that_was_loaded_as_a_view_does_not_write_through():
    """In place on a tile of an input must not change the input."""
    machine, kernel = one()
    host = np.ones(2)
    x = machine.hbm("x", host)
    with kernel as k, k.programs() as prog:
        tile = prog.load(x, ..., into=prog.buffer("x", (2,), "float64"))
        tile += 1
        tile.mask(np.array([True, False]), 9.0)
        assert tile.data.tolist() == [9.0, 2.0]
    assert host.tolist() == [1.0, 1.0]


def test_a_write_to_a_tile_that_shares_its_inputs_memory_makes_older_views_stale():
    machine, kernel = one()
    x = machine.hbm("x", np.ones(2))
    with kernel as k, k.programs() as prog:
        tile = prog.load(x, ..., into=prog.buffer("x", (2,), "float64"))
        view = tile.reshape(1, 2)
        tile *= 3
        assert tile.sum(axis=-1).data == 6
        with pytest.raises(StaleTile, match="loaded anew or written since"):
            view + 1
        again = tile.reshape(1, 2)
        again *= 2
        assert tile.data.tolist() == [6.0, 6.0], "from then on they share one memory"


def test_a_product_may_be_added_to_a_tile_that_was_loaded():
    machine, kernel = one()
    host = np.ones((1, 1))
    x = machine.hbm("x", host)
    with kernel as k, k.programs() as prog:
        a, b, acc = (prog.load(x, ..., into=prog.buffer(name, (1, 1), "float64")) for name in ("a", "b", "acc"))
        prog.mma(a, b, acc=acc)
        assert acc.data.item() == 2
    assert host.item() == 1


def test_a_store_must_fit_its_place():
    machine, kernel = one()
    x, y = machine.hbm("x", np.ones(2)), machine.empty("y", (3,), "float64")
    with kernel as k, k.programs() as prog:
        tile = prog.load(x, ..., into=prog.buffer("x", (2,), "float64"))
        with pytest.raises(ValueError, match=r"'y'.* has shape \(3,\), the tile \(2,\)"):
            prog.store(tile, y, ...)


def test_indices_are_read_by_every_program_and_only_integers_are():
    machine, kernel = one()
    ids = machine.hbm("ids", np.arange(6, dtype=np.int32))
    with kernel as k, k.programs(5) as prog:
        assert prog.load_index(ids, slice(1, 4)).tolist() == [1, 2, 3]
        assert prog.load_index(ids, 2) == 2
        prog.load_index(ids, slice(0, 5), per_program=1)
        with pytest.raises(TypeError, match="only integers are read as an index"):
            prog.load_index(machine.hbm("x", np.ones(1)), 0)
    assert machine.ledger().nbytes == {Key("k", "ids", "HBM", "read"): 5 * (3 + 1 + 1) * 4}


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_a_weight_of_zero_selects_nothing(poison):
    machine, kernel = one()
    a, b = machine.hbm("a", np.array([[0.0, 2.0]])), machine.hbm("b", np.array([[poison], [3.0]]))
    with kernel as k, k.programs() as prog:
        o = prog.buffer("o", (1, 1), "float64").full(1)
        prog.mma(
            prog.load(a, ..., into=prog.buffer("a", (1, 2), "float64")),
            prog.load(b, ..., into=prog.buffer("b", (2, 1), "float64")),
            acc=o,
        )
        assert o.data.item() == 7.0


def test_a_weight_that_is_not_zero_passes_nan_on():
    machine, kernel = one()
    a, b = machine.hbm("a", np.array([[1.0]])), machine.hbm("b", np.array([[np.nan]]))
    with kernel as k, k.programs() as prog:
        o = prog.buffer("o", (1, 1), "float64").full(0)
        tiles = [prog.load(x, ..., into=prog.buffer(x.name, (1, 1), "float64")) for x in (a, b)]
        prog.mma(*tiles, acc=o)
        assert np.isnan(o.data).all()


def test_a_programs_buffers_are_given_back_when_it_ends():
    machine = Machine(sram_nbytes=None)
    gc.disable()  # the memory must go at once, not whenever cycles are next collected
    tracemalloc.start()
    try:
        with machine.kernel("k") as kernel:
            for _ in range(8):
                with kernel.programs() as prog:
                    prog.buffer("s", (1 << 18,), np.float32).full(0)
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        gc.enable()
    assert held < 1 << 18
    assert 1 << 20 <= peak < 3 << 20  # one buffer of 1 MiB at a time, and the next before the last is forgotten
