"""The roofline, on a device with round figures and ledgers whose times are worked out on paper."""

import numpy as np
import pytest

from refsim import attention
from refsim.attention import Plan
from refsim.cost import Device, closed_form, devices, estimate
from refsim.machine import Key, Ledger, Work

# A second of each: 1000 B of HBM; 10 x 20 x 5 = 1000 B on chip; 4000 matrix FLOPs (16 bit); 100 additions (a
# multiply-add is two of 200); 10 x 20 x 2 = 400 exponentials. A launch: half a second.
TOY = Device(
    name="Toy", title="A toy", multiprocessors=10, clock_hz=20, hbm_bytes_per_s=1000, l2_nbytes=1, sram_nbytes=10**6,
    fp16_flops_per_s=4000, fp32_flops_per_s=200, exps_per_clock=2, sram_bytes_per_clock=5, launch_s=0.5,
)  # fmt: skip


def ledger(*, hbm: int = 0, on_chip: int = 0, programs: int = 10, launches: int = 1, **work: int) -> Ledger:
    nbytes = {Key("kernel", "k", "HBM", "read"): hbm, Key("kernel", "k", "SRAM", "read"): on_chip}
    return Ledger(nbytes, {"kernel": Work(launches=launches, programs=programs, **work)})


@pytest.mark.parametrize(
    ("counts", "bound", "total_s"),
    [
        ({"hbm": 2000}, "HBM", 2 + 0.5),
        ({"on_chip": 3000}, "on-chip", 3 + 0.5),
        ({"matmul_flops": 4000, "hbm": 500}, "matrix", 1 + 0.5),
        ({"flops": 100, "exponentials": 200}, "vector", 1 + 0.5),
        ({"flops": 100, "exponentials": 800}, "exponential", 2 + 0.5),
        ({"hbm": 100}, "launch", 0.1 + 0.5),
        ({"hbm": 2000, "launches": 3, "programs": 30}, "HBM", 2 + 3 * 0.5),
    ],
)
def test_a_kernel_takes_as_long_as_its_busiest_resource(counts: dict[str, int], bound: str, total_s: float) -> None:
    result = estimate(ledger(**counts), TOY)
    assert (result.bound, result.kernels[0].bound) == (bound, bound)
    assert result.total_s == pytest.approx(total_s)


@pytest.mark.parametrize(
    ("programs", "launches", "waves", "seconds"),
    [
        (10, 1, 1, 1),  # one each
        (20, 1, 2, 1),
        (1, 1, 1, 10),  # one program has a tenth of the device
        (11, 1, 2, 20 / 11),  # the second wave has one program, and nine multiprocessors idle
        (22, 2, 2, 20 / 11),  # eleven in each launch
        (1000, 1, 100, 1),
    ],
)
def test_waves_leave_multiprocessors_idle(programs: int, launches: int, waves: int, seconds: float) -> None:
    (kernel,) = estimate(ledger(hbm=1000, programs=programs, launches=launches), TOY).kernels
    assert kernel.waves == waves
    assert kernel.seconds["HBM"] == pytest.approx(seconds)


def test_kernels_follow_one_another() -> None:
    both = Ledger(
        {Key("a", "k", "HBM", "read"): 1000, Key("b", "k", "HBM", "write"): 3000},
        {"a": Work(launches=1, programs=10), "b": Work(launches=1, programs=10, matmul_flops=40000)},
    )
    result = estimate(both, TOY)
    assert [k.total_s for k in result.kernels] == pytest.approx([1.5, 10.5])
    assert (result.total_s, result.bound) == (pytest.approx(12), "matrix")


def test_only_shared_memory_reads_count_on_chip() -> None:
    """Scores, sums and statistics are in registers; filling a tile is an asynchronous copy."""
    nbytes = {Key("kernel", name, "SRAM", "read"): 1000 for name in ("q", "k", "s", "o", "temporaries")}
    nbytes |= {Key("kernel", "k", "SRAM", "write"): 1000}
    counted = Ledger(nbytes, {"kernel": Work(launches=1, programs=10)})
    assert estimate(counted, TOY).kernels[0].seconds["on-chip"] == pytest.approx(2)
    assert estimate(counted, TOY, registers=()).kernels[0].seconds["on-chip"] == pytest.approx(5)


def test_one_tile_on_a_b200_in_cycles() -> None:
    """FlashAttention-4, 128 x 128 x 128 on one multiprocessor: 1024 cycles of matrix products, 1024 of exponentials
    and 768 of shared memory: q, k and v, once each, at 128 bytes a clock."""
    plan = Plan.of([(128, 128)], 1, 1, 128, dtype="bfloat16", tile=(128, 128))
    device = devices.get("B200")
    (kernel,) = estimate(closed_form.flash(plan), device, dtype="bfloat16").kernels
    cycles = {resource: seconds * device.clock_hz for resource, seconds in kernel.seconds.items()}
    assert cycles["on-chip"] == pytest.approx(768)
    statistics = 2 * 128 / 16  # e^(m - m_new) and ln l, one a row, beside the 128 x 128 of P
    assert cycles["exponential"] == pytest.approx(1024 + statistics)
    assert cycles["matrix"] == pytest.approx(1024, rel=0.01)  # 8192 a clock, and the datasheet's rate is rounded


def test_exponentials_take_half_the_matrix_time_of_an_h100() -> None:
    """FlashAttention-3, head size 128: 3.9 T exponentials against 989 T FLOPs a second, 512 FLOPs an exponential."""
    plan = Plan.of([(16384, 16384)], 16, 16, 128, dtype="float16", tile=(128, 128))
    (kernel,) = estimate(closed_form.flash(plan), "H100").kernels
    assert kernel.seconds["exponential"] / kernel.seconds["matrix"] == pytest.approx(0.5, rel=0.02)


def test_the_matrix_type_sets_the_rate() -> None:
    counted = ledger(matmul_flops=4000)
    assert estimate(counted, TOY, dtype="bfloat16").kernels[0].seconds["matrix"] == pytest.approx(1)
    assert estimate(counted, TOY, dtype="float32").kernels[0].seconds["matrix"] == pytest.approx(20)
    with pytest.raises(ValueError, match="Toy has no figure for matrix products in float64; give it as fp64_tflops"):
        estimate(counted, TOY, dtype="float64")


def test_unknown_device() -> None:
    with pytest.raises(TypeError, match=r"device must be a refsim\.cost\.Device or a built-in one's name, got 3"):
        estimate(Ledger(), 3)  # type: ignore[arg-type]
    with pytest.raises(devices.UnknownDevice, match="'A1000'; did you mean"):
        estimate(Ledger(), "A1000")


def test_what_is_no_ledger_and_no_set_of_buffers() -> None:
    x = np.zeros((2, 1, 4), np.float32)
    with pytest.raises(
        TypeError, match=r"ledger must be a refsim\.machine\.Ledger, such as result\.ledger; got a Result"
    ):
        estimate(attention.flash(x, x, x), TOY)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"registers must be names of on-chip buffers, such as \{'s', 'p'\}; got 's'"):
        estimate(Ledger(), TOY, registers="s")
    with pytest.raises(TypeError, match="registers must be names of on-chip buffers"):
        estimate(Ledger(), TOY, registers=None)  # type: ignore[arg-type]


def test_a_long_prefill_in_8_bit_on_paper() -> None:
    """16 heads, 16384 tokens, 128 x 128 tiles on 132 multiprocessors of an H100: 2048 programs are 16 waves, the last
    of which is half empty. 128 query tiles each read all keys and values, a byte a number."""
    plan = Plan.of([(16384, 16384)], 16, 16, 128, dtype="e4m3", tile=(128, 128))
    (kernel,) = estimate(closed_form.flash(plan), "H100", dtype="e4m3").kernels
    assert (kernel.programs, kernel.waves, kernel.bound) == (2048, 16, "HBM")
    stretch = 16 * 132 / 2048
    nbytes = 16 * (16384 * 128 * 2 + 16384 * 4 + 128 * 16384 * 128 * 2)
    assert kernel.seconds["HBM"] == pytest.approx(nbytes / 3352e9 * stretch)
    assert kernel.seconds["matrix"] == pytest.approx(4 * 16384**2 * 128 * 16 / 1979e12 * stretch)
    # P, e^(m - m_new) a row and key tile, ln l a row: 16 a clock
    exponentials = 16 * (16384**2 + 16384 * 128 + 16384)
    assert kernel.seconds["exponential"] == pytest.approx(exponentials / (16 * 1.83e9 * 132) * stretch)
    assert kernel.total_s == pytest.approx(kernel.seconds["HBM"] + 5e-6)


def test_a_split_decode_on_paper() -> None:
    """32 heads over 8, 100000 keys, 38 splits on 304 compute units of an MI300X: one each; then 8 that reduce."""
    plan = Plan.of([(1, 100_000)], 32, 8, 128, dtype="bfloat16", packed=True, block_size=16)
    splits, reduce = estimate(closed_form.split_kv(plan, num_splits=38), "MI300X", dtype="bfloat16").kernels
    partials = 38 * 32 * (128 + 1) * 4
    keys, table = 100_000 * 8 * 128 * 2 * 2, 6250 * 4 * 8
    queries, lengths = 38 * 32 * 128 * 2, 304 * 4
    assert (splits.programs, splits.waves, splits.bound) == (304, 1, "HBM")
    assert splits.seconds["HBM"] == pytest.approx((keys + table + queries + lengths + partials) / 5300e9)
    assert (reduce.programs, reduce.bound) == (8, "launch")
    # 8 of 304 compute units have 8/304 of the bandwidth; they read the partials and a length each, write out and LSE.
    assert reduce.seconds["HBM"] == pytest.approx((partials + 8 * 4 + 32 * 128 * 2 + 32 * 4) / 5300e9 * 38)


def test_empty_ledgers_and_kernels() -> None:
    assert (estimate(Ledger(), TOY).total_s, estimate(Ledger(), TOY).bound) == (0, "nothing")
    assert estimate(ledger(programs=0), TOY).total_s == 0.5  # a launch that found nothing to do
    bytes_only = Ledger({Key("copy", "x", "HBM", "read"): 1000})
    assert estimate(bytes_only, TOY).total_s == 1


def test_it_prints() -> None:
    result = estimate(ledger(hbm=2000, matmul_flops=4000), TOY)
    title, head, row, total = str(result).splitlines()
    assert title == "A toy, matrix products in float16; microseconds"
    assert " ".join(head.split()) == "kernel programs waves HBM on-chip matrix vector exponential launch total bound by"
    assert " ".join(row.split()) == ("kernel 10 1 2,000,000.00 0.00 1,000,000.00 0.00 0.00 500,000.00 2,500,000.00 HBM")
    assert total.split() == ["all", "2,500,000.00", "HBM"]
    page = result._repr_html_()
    assert page.count("<tr>") == 3
    assert "<td>2,500,000.00</td><td>HBM</td>" in page
    assert result.rows()[0]["HBM_s"] == 2
