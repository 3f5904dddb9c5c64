"""Ledgers as arithmetic: they add, subtract, compare, filter and print what was put in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsim.machine import Key, Ledger, Work

K_READ, K_WRITE = Key("flash", "k", "HBM", "read"), Key("flash", "k", "SRAM", "write")
OUT = Key("reduce", "out", "HBM", "write")
LEDGER = Ledger(
    {K_READ: 4096, K_WRITE: 4096, OUT: 64},
    {"flash": Work(launches=1, programs=8, matmul_flops=1000, flops=50, exponentials=7, sram_peak_nbytes=512),
     "reduce": Work(launches=1, programs=2, flops=5, sram_peak_nbytes=128)},
)  # fmt: skip

names = st.sampled_from(["a", "b", "c"])
keys = st.builds(Key, names, names, st.sampled_from(["HBM", "SRAM"]), st.sampled_from(["read", "write"]))
amounts = st.integers(0, 2**70)  # beyond any fixed-width type
works = st.builds(Work, *[st.integers(0, 100)] * 5, sram_peak_nbytes=st.just(9))
ledgers = st.builds(Ledger, st.dictionaries(keys, amounts), st.dictionaries(names, works))


@given(ledgers, ledgers)
def test_adding_and_taking_away_again(a, b):
    assert a + b == b + a
    assert (a + b).hbm_nbytes == a.hbm_nbytes + b.hbm_nbytes
    assert (a + b).sram_nbytes == a.sram_nbytes + b.sram_nbytes
    assert (a + b).launches == a.launches + b.launches
    assert ((a + b) - b).nbytes == a.nbytes
    assert ((a + b) - b).flops == a.flops
    assert a + Ledger() == a
    assert a - a == Ledger()


@given(ledgers)
def test_totals_are_sums_over_what_matches(ledger):
    for level in ("HBM", "SRAM"):
        for tensor in "abc":
            by_hand = sum(n for key, n in ledger.nbytes.items() if key.level == level and key.tensor == tensor)
            assert ledger.total(level=level, tensor=tensor) == by_hand
    assert ledger.total(level=None) == ledger.hbm_nbytes + ledger.sram_nbytes
    assert ledger.total() == ledger.hbm_nbytes
    assert ledger.total(direction="read") + ledger.total(direction="write") == ledger.hbm_nbytes
    assert sum(ledger.hbm_only().values()) == ledger.hbm_nbytes
    assert sum(row["nbytes"] for row in ledger.rows()) == ledger.total(level=None)


def test_totals_on_paper():
    assert (LEDGER.hbm_nbytes, LEDGER.sram_nbytes) == (4160, 4096)
    assert (LEDGER.flops, LEDGER.matmul_flops, LEDGER.exponentials) == (55, 1000, 7)
    assert (LEDGER.launches, LEDGER.programs) == (2, 10)
    assert LEDGER.total(kernel="reduce") == 64
    assert LEDGER.total(kernel="reduce", direction="read") == 0
    assert LEDGER.hbm_only() == {("flash", "k", "read"): 4096, ("reduce", "out", "write"): 64}
    assert LEDGER.rows()[0] == {
        "kernel": "flash",
        "tensor": "k",
        "level": "HBM",
        "direction": "read",
        "nbytes": 4096,
    }


def test_nothing_is_dropped_and_kept_alike():
    assert Ledger({K_READ: 0}) == Ledger()
    assert Ledger({}, {"flash": Work()}) == Ledger()
    assert Ledger({K_READ: 1}) != Ledger({K_WRITE: 1})


def test_peaks_are_the_largest_and_not_the_sum():
    twice = LEDGER + LEDGER
    assert twice.work["flash"].sram_peak_nbytes == 512
    assert twice.work["flash"].launches == 2
    other = Ledger({}, {"flash": Work(launches=1, sram_peak_nbytes=600)})
    assert (LEDGER + other).work["flash"].sram_peak_nbytes == 600


def test_taking_away_keeps_only_what_is_left():
    rest = (LEDGER + Ledger({OUT: 1}, {"reduce": Work(launches=1)})) - LEDGER
    assert rest.nbytes == {OUT: 1}
    assert set(rest.work) == {"reduce"}
    assert rest.launches == 1
    less = Ledger() - Ledger({OUT: 5})
    assert less.nbytes == {OUT: -5}, "a difference may be negative"


def test_ledgers_do_not_change_with_what_they_were_made_from():
    counts = {K_READ: 1}
    ledger = Ledger(counts)
    counts[K_READ] = 2
    assert ledger.total() == 1
    with pytest.raises(AttributeError):
        ledger.nbytes = {}


def test_it_prints_every_count():
    text, page = str(LEDGER), LEDGER._repr_html_()
    for shown in ("4,096", "64", "launches 1", "programs 8", "matmul FLOPs 1,000", "exponentials 7", "512 B"):
        assert shown in text
    head, flash, reduce = text.splitlines()[:3]
    assert head.split("  ")[0] == "kernel"
    assert flash.split() == ["flash", "k", "4,096", "0", "0", "4,096"]
    assert reduce.split() == ["reduce", "out", "0", "64", "0", "0"]
    assert page.count("<tr>") == 3
    assert "4,096" in page


def test_names_are_escaped_in_html():
    assert "<script>" not in Ledger({Key("<script>", "<b>", "HBM", "read"): 1})._repr_html_()


@pytest.mark.parametrize("misspelt", [{"level": "hbm"}, {"direction": "reads"}, {"direction": "HBM"}, {"level": ""}])
def test_a_level_or_direction_that_there_is_not_is_no_zero(misspelt):
    ledger = Ledger({Key("flash", "k", "HBM", "read"): 8})
    with pytest.raises(ValueError, match=r"level must be one of \('HBM', 'SRAM'\) or None, direction one of .* got "):
        ledger.total(**misspelt)
    assert ledger.total(kernel="paged") == ledger.total(tensor="q") == 0


def test_plain_tuples_are_keys_and_only_ledgers_are_added():
    ledger = Ledger({("flash", "k", "HBM", "read"): 8})
    assert ledger == Ledger({Key("flash", "k", "HBM", "read"): 8})
    assert "flash" in str(ledger)
    for wrong in (lambda: ledger + 1, lambda: 1 - ledger, lambda: ledger - {}, lambda: sum([ledger])):
        with pytest.raises(TypeError, match="unsupported operand type"):
            wrong()
