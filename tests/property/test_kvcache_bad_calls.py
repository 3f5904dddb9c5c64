"""Whatever a manager and its cache are called with: a call that fails leaves them as they were."""

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refsim.kvcache import BlockManager, PagedKV
from refsim.kvcache.chain import Chain

ONE = np.ones((2, 1, 1, 2))  # K or V of a token: layers, tokens, heads, head_dim
ODD = st.sampled_from(
    [
        *(0, 1, 2, 3, 6, 9, -1, 10**6, 2**63, 2**70),
        *(2.0, 2.5, float("nan"), float("inf"), 1j, True, False, None, "a", b"x", object()),
        *([], [0], [0, 1], [[0, 1]], [0, -1], [0.5], ["a"], (1, 2), {}, {1}, range(3), range(9)),
        *(np.int8(3), np.uint8(200), np.float32(2), np.bool_(True), np.array(3), np.array([], float)),
        *(np.array([1, 2], ">i8"), np.zeros((2, 2), int), np.array([2**64 - 1], np.uint64)),
        *(ONE, ONE[0], ONE[:, 0], ONE.astype(">f2"), ONE * np.nan, ONE * 1j, ONE.astype(object), ONE.astype(str)),
        *(np.ones((2, 0, 1, 2)), np.ones((0, 1, 2)), np.ones((2, 3, 1, 2))[:, ::-1], np.ones((2, 1, 1, 3))),
    ]
)
CHAIN = st.sampled_from([2, 4]).map(lambda size: Chain([1, 2, 3, 4, 5], size))


def everything(manager: BlockManager, kv: PagedKV) -> bytes:
    sequences = [
        (
            repr(s),
            t.rows,
            t.tokens,
            t.computed,
            t.cached,
            t.tail_shared,
            None if t.chain is None else t.chain.ids.tolist(),
        )
        for s, t in manager._sequences.items()
    ]
    cache = manager.prefix and (manager.prefix.pins, manager.prefix.entries, list(manager.prefix._resting))
    pool = manager.pool.refs, manager.pool.stack, manager.events, manager.stats()
    return pickle.dumps((sequences, cache, pool, kv.k.tobytes(), kv.v.tobytes()))


@settings(max_examples=300, deadline=None)
@given(data=st.data(), prefix_cache=st.booleans(), tables=st.sampled_from([1, 2]))
def test_a_call_that_fails_changes_nothing(data: st.DataObject, prefix_cache: bool, tables: int) -> None:
    tables = 1 if prefix_cache else tables
    m = BlockManager(14, 4, prefix_cache=prefix_cache, host_blocks=2 * prefix_cache, tables=tables, record=True)
    kv = PagedKV(m, 2, 1, 2)
    m.allocate("a", range(6))
    m.allocate("b", [1] * 9)
    m.commit("b")
    m.fork("a", 1)
    calls: dict[str, tuple[Any, int]] = {
        "allocate": (lambda s, x, *a: m.allocate(x, a[0]), 2),
        "allocate a chunk": (lambda s, n, *a: m.allocate(n, a[0], upto=a[1], chunk=a[2], salt=a[3]), 5),
        "append": (m.append, 1),
        "truncate": (m.truncate, 1),
        "fork": (m.fork, 1),
        "adopt": (lambda s, *a: m.adopt(*a), 3),
        "commit": (m.commit, 1),
        "free": (lambda s, x: m.free(x), 1),
        "pin": (lambda s, *a: m.pin(*a), 2),
        "unpin": (lambda s, x: m.unpin(x), 1),
        "slots": (m.slot_mapping, 3),
        "append values": (kv.append, 2),
        "write values": (lambda s, *a: kv.write(*a[:3], layer=a[3]), 4),
        "gather": (kv.gather, 1),
    }
    for _ in range(data.draw(st.integers(1, 6))):
        name = data.draw(st.sampled_from(sorted(calls)))
        call, count = calls[name]
        arguments = [data.draw(st.one_of(ODD, CHAIN) if name.startswith("allocate") else ODD) for _ in range(count)]
        which = data.draw(st.sampled_from([*m.sequences, "nobody"]))
        before = everything(m, kv)
        try:
            call(which, *arguments)
        except (ValueError, TypeError, KeyError, RuntimeError):
            assert everything(m, kv) == before, f"{name} {arguments} failed, and changed something"
        m.check_invariants()


@pytest.mark.parametrize("v", [ONE[0], ONE[:, 0], np.ones((2, 2, 1, 2))])
def test_values_of_another_shape_copy_no_shared_tail(v: np.ndarray) -> None:
    m = BlockManager(8, 4)
    kv = PagedKV(m, 2, 1, 2)
    m.allocate("a", 6)
    m.fork("a", "b")
    before = everything(m, kv)
    with pytest.raises(ValueError, match="v"):
        kv.append("b", ONE, v)
    assert everything(m, kv) == before
