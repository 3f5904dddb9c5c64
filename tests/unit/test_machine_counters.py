"""One small kernel an access form: what the ledger must say is worked out on paper beside each.

Every form runs in 3 programs on float32 tiles x (2, 5) and w (5, 4), so that sizes can't be confused.
"""

import numpy as np
import pytest

from refsim.machine import Key, Machine, Work

P, ITEM = 3, 4  # programs, bytes of a float32
X, W = 2 * 5, 5 * 4


def sram(direction, **nbytes):
    return {Key("k", name, "SRAM", direction): n for name, n in nbytes.items() if n}


def run(form):
    """What `form(prog, x, w)` adds to the ledger."""
    machine = Machine()
    rng = np.random.default_rng(0)
    with machine.kernel("k") as k, k.programs(P) as prog:
        tiles = []
        for name, shape in (("x", (2, 5)), ("w", (5, 4))):
            source = machine.hbm(name, rng.random((P, *shape), np.float32))
            tiles.append(prog.load(source, ..., into=prog.buffer(name, shape, "float32")))
        before = machine.ledger()
        form(prog, *tiles)
        return machine.ledger() - before


def iadd(prog, x, w):
    x += 1


def iadd_slice(prog, x, w):
    part = prog.buffer("y", (2, 5), "float32").full(0)
    part[..., :3] += 1


def copy_slice(prog, x, w):
    y = prog.buffer("y", (2, 5), "float32").full(0)
    y[..., :3] = x[..., 2:]


def overlapping_copy(prog, x, w):
    y = prog.buffer("y", (2, 5), "float32").full(0)
    y[..., :3] = y[..., 1:4]


FORMS = {
    # name: (form, elements read by buffer, elements written by buffer, FLOPs, matmul FLOPs, exponentials)
    "scalar": (lambda p, x, w: x * 2, {"x": X}, {"temporaries": X}, X, 0, 0),
    "scalar on the left": (lambda p, x, w: 1 - x, {"x": X}, {"temporaries": X}, X, 0, 0),
    "two operands": (lambda p, x, w: x + x, {"x": 2 * X}, {"temporaries": X}, X, 0, 0),
    "in place": (iadd, {"x": X}, {"x": X}, X, 0, 0),
    "in place on a slice": (iadd_slice, {"y": 6}, {"y": 6}, 6, 0, 0),
    "out=": (lambda p, x, w: np.subtract(x, 1, out=x), {"x": X}, {"x": X}, X, 0, 0),
    "slice": (lambda p, x, w: x[..., 1:3] * 2, {"x": 4}, {"temporaries": 4}, 4, 0, 0),
    "slice alone moves nothing": (lambda p, x, w: x[..., 1:3], {}, {}, 0, 0, 0),
    "transpose and reshape move nothing": (lambda p, x, w: x.mT.reshape(10), {}, {}, 0, 0, 0),
    "copy between tiles": (copy_slice, {"x": 6}, {"y": 6}, 0, 0, 0),
    "overlapping copy": (overlapping_copy, {"y": 6}, {"y": 6}, 0, 0, 0),
    "broadcast row": (lambda p, x, w: x - w[..., None, :, 0], {"x": X, "w": 5}, {"temporaries": X}, X, 0, 0),
    "max": (lambda p, x, w: x.max(axis=-1), {"x": X}, {"temporaries": 2}, X, 0, 0),
    "sum down the columns": (lambda p, x, w: x.sum(axis=-2), {"x": X}, {"temporaries": 5}, X, 0, 0),
    "np.sum": (lambda p, x, w: np.sum(x, axis=-1), {"x": X}, {"temporaries": 2}, X, 0, 0),
    "matmul": (lambda p, x, w: x @ w, {"x": X, "w": W}, {"temporaries": 8}, 0, 2 * 2 * 5 * 4, 0),
    "matmul of a transpose": (lambda p, x, w: x @ x.mT, {"x": 2 * X}, {"temporaries": 4}, 0, 2 * 2 * 5 * 2, 0),
    "mma": (
        lambda p, x, w: p.mma(x, w, acc=p.buffer("acc", (2, 4), "float32").full(0)),
        {"x": X, "w": W, "acc": 8},
        {"acc": 8},
        0,
        2 * 2 * 5 * 4,
        0,
    ),
    "exp": (lambda p, x, w: np.exp(x), {"x": X}, {"temporaries": X}, 0, 0, X),
    "log in place": (lambda p, x, w: np.log(x, out=x), {"x": X}, {"x": X}, 0, 0, X),
    "tanh of a slice": (lambda p, x, w: np.tanh(x[..., :1]), {"x": 2}, {"temporaries": 2}, 0, 0, 2),
    "comparison": (lambda p, x, w: x > 0, {"x": X}, {}, 0, 0, 0),
    "remainder": (lambda p, x, w: x % 2, {"x": X}, {"temporaries": X}, X, 0, 0),
    "whole division": (lambda p, x, w: x // 2, {"x": X}, {"temporaries": X}, X, 0, 0),
    "rounding to whole numbers": (lambda p, x, w: np.rint(x), {"x": X}, {"temporaries": X}, 0, 0, 0),
    "copying is no arithmetic": (lambda p, x, w: np.positive(x), {"x": X}, {"temporaries": X}, 0, 0, 0),
    "mask": (lambda p, x, w: x.mask(np.eye(2, 5, dtype=bool), -np.inf), {}, {}, 0, 0, 0),
}


@pytest.mark.parametrize("name", FORMS)
def test_each_access_form_counts_what_it_moves_and_computes(name):
    form, read, written, flops, matmul_flops, exponentials = FORMS[name]
    ledger = run(form)
    reads = sram("read", **{buffer: P * ITEM * n for buffer, n in read.items()})
    writes = sram("write", **{buffer: P * ITEM * n for buffer, n in written.items()})
    if name == "comparison":  # its answer is a byte an element
        writes = sram("write", temporaries=P * X)
    assert ledger.nbytes == reads | writes
    work = ledger.work.get("k", Work())
    assert (work.flops, work.matmul_flops, work.exponentials) == (P * flops, P * matmul_flops, P * exponentials)
    assert ledger.hbm_nbytes == 0


def test_overlapping_copy_moves_the_values():
    machine = Machine()
    x = machine.hbm("x", np.arange(10.0).reshape(2, 5), writable=True)
    with machine.kernel("k") as k, k.programs() as prog:
        tile = prog.load(x, ..., into=prog.buffer("x", (2, 5), "float64"))
        tile[..., :3] = tile[..., 1:4]
        tile[..., 4:] += 100
        tile[..., 3] = 7
        prog.store(tile, x, ...)
    assert machine.to_host(x).tolist() == [[1, 2, 3, 7, 104], [6, 7, 8, 7, 109]]


def test_narrow_tiles_count_their_stored_size():
    machine = Machine()
    x = machine.hbm("x", np.ones(8, np.float32))
    with machine.kernel("k") as k, k.programs() as prog:
        tile = prog.load(x, ..., into=prog.buffer("x", (8,), "e4m3"))
        assert tile.nbytes == 8
        assert tile.round(np.dtype(np.float16)).nbytes == 16
        tile + 1
    assert machine.ledger().nbytes == {
        Key("k", "x", "HBM", "read"): 32,
        Key("k", "x", "SRAM", "write"): 8,
        Key("k", "x", "SRAM", "read"): 8,
        Key("k", "temporaries", "SRAM", "write"): 32,
    }


def test_rounding_a_tile_rounds_it_in_place():
    machine = Machine()
    x = machine.hbm("x", np.array([1.001, 1 + 2.0**-8], np.float32))
    with machine.kernel("k") as k, k.programs() as prog:
        tile = prog.load(x, ..., into=prog.buffer("x", (2,), "float32"))
        rounded = [float(np.float16(1.001)), 1 + 2.0**-8]
        assert rounded[0] != float(np.float32(1.001))
        assert tile.round(np.dtype(np.float16)).data.tolist() == rounded
        assert tile.data.tolist() == rounded


def test_shared_tiles_count_once_a_program():
    machine = Machine()
    x = machine.hbm("x", np.ones((1, 8), np.float32))
    with machine.kernel("k") as k, k.programs(P) as prog:
        tile = prog.load(x, ..., into=prog.buffer("x", (8,), "float32"))
        before = machine.ledger()
        tile * 2
        tile.sum(axis=-1)
    delta = machine.ledger() - before
    assert delta.flops == P * (8 + 8)
    assert delta.total(level="SRAM", direction="read") == P * 2 * 8 * ITEM


def test_values_are_those_of_numpy():
    machine = Machine()
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((P, 2, 5)), rng.standard_normal((P, 5, 4))
    y = machine.empty("y", (P, 2, 4), "float64")
    with machine.kernel("k") as k, k.programs(P) as prog:
        x, w = (
            prog.load(machine.hbm(name, data), ..., into=prog.buffer(name, data.shape[1:], "float64"))
            for name, data in (("a", a), ("b", b))
        )
        s = x @ w
        s -= s.max(axis=-1)[..., None]
        prog.store(np.exp(s) / np.exp(s).sum(axis=-1)[..., None], y, ...)
    s = a @ b
    want = np.exp(s) / np.exp(s).sum(-1, keepdims=True)
    np.testing.assert_allclose(machine.to_host(y), want, rtol=1e-14)


@pytest.mark.parametrize(
    ("use", "error", "message"),
    [
        (lambda x: x[0], IndexError, "index a tile from the end"),
        (lambda x: x[:, 0], IndexError, "index a tile from the end"),
        (lambda x: x.sum(axis=0), ValueError, "reduce a tile along an axis of its program, from -1 to -2"),
        (lambda x: x.sum(axis=-3), ValueError, "from -1 to -2"),
        (lambda x: x - x.max(axis=-1), ValueError, r"shapes \(2, 5\) and \(2,\) have different numbers of axes"),
        (np.asarray, TypeError, "is on chip: store it to HBM"),
        (np.cumsum, TypeError, "on chip"),
        (lambda x: np.add.accumulate(x), TypeError, "add.accumulate is not counted on tiles"),
        (lambda x: np.add.at(x, 0, 1), TypeError, "add.at is not counted on tiles"),
        (lambda x: np.modf(x), TypeError, "modf is not counted on tiles"),
        (lambda x: divmod(x, 2), TypeError, "divmod is not counted on tiles"),
        (lambda x: np.logaddexp(x, x), TypeError, "logaddexp is not counted on tiles"),
        (lambda x: np.sum(x), ValueError, "along an axis of its program, from -1 to -2, got axis=None"),
        (lambda x: x.max(axis=(-1, -2)), ValueError, r"got axis=\(-1, -2\)"),
        (lambda x: np.add(x, 1, out=np.zeros((P, 2, 5))), TypeError, "out must be a tile.* got ndarray"),
        (lambda x: x[()], IndexError, "index a tile from the end"),
        (lambda x: x[..., 0, 0, 0], IndexError, r"past the tile's own axes, \(2, 5\), to those of the grid"),
        (lambda x: x[..., :1, :, :], IndexError, "to those of the grid"),
        *((f, TypeError, "is on chip") for f in (bool, len, list, float, int, lambda x: 1 in x, lambda x: x > 0 or x)),
    ],
)
def test_forms_that_would_not_be_counted_are_refused(use, error, message):
    with pytest.raises(error, match=message):
        run(lambda prog, x, w: use(x))
