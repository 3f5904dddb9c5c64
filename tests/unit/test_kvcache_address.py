"""Addresses and sizes against arithmetic on paper and the figures of the paged KV cache text."""

import numpy as np
import pytest

from refsim import kvcache
from refsim.kvcache import address, sizing


def test_worked_figures_of_sizing() -> None:
    assert sizing.blocks_for(100, 16) == 7
    assert sizing.blocks_for(100, 16, layers=28) == 196
    assert kvcache.block_nbytes(16, 1024, 4) == 131072
    assert kvcache.pool_nbytes(196, 16, 1024, 4) == 25690112 == 24.5 * 2**20
    assert [sizing.last_block_used(t, 16) for t in (0, 1, 16, 17, 100)] == [0, 1, 16, 1, 4]


def test_waste_is_at_most_a_block_less_one() -> None:
    waste = [sizing.wasted_slots(tokens, 16) for tokens in range(1, 200)]
    assert max(waste) == 15
    assert min(waste) == 0


def test_paper_figures_of_pool_capacity() -> None:
    # PagedAttention prints the quotients rounded to the nearest token.
    assert kvcache.token_nbytes(40, 5120, 2) == 819200
    assert round(12 * 2**30 / kvcache.token_nbytes(40, 5120, 2)) == 15729
    assert sizing.slots_in(12 * 2**30, 819200) == 15728
    assert round(264 * 2**30 / kvcache.token_nbytes(96, 12288, 2)) == 60075
    assert sizing.slots_in(12 * 2**30, 819200) // 2048 == 7  # requests of 2048 reserved tokens


def test_value_rows_may_be_shorter() -> None:
    assert kvcache.block_nbytes(16, 64, 2, v_dim=0) == 16 * 64 * 2
    assert kvcache.block_nbytes(16, 64, 2, v_dim=32) == 16 * 96 * 2


def test_address_equals_the_strides_of_a_real_array() -> None:
    pool = np.zeros((5, 4, 3, 8), np.float32)  # blocks, slots, heads, head_dim
    block, slot = 3, 2
    view = pool[block, slot]
    start = view.__array_interface__["data"][0] - pool.__array_interface__["data"][0]
    assert kvcache.byte_offset(block, slot, 4, 3 * 8, 4) == start
    assert kvcache.element_offset(block, slot, 4, 24) * 4 == start


def test_locate() -> None:
    assert [kvcache.locate(p, 16) for p in (0, 15, 16, 37)] == [(0, 0), (0, 15), (1, 0), (2, 5)]


@pytest.mark.parametrize(("bits", "signed", "wide"), [(32, True, np.int32), (32, False, np.uint32)])
@pytest.mark.parametrize("stride", [1000, 16384, 65536, 16 * 1024 * 4, 12345])
def test_first_overflowing_block_is_where_the_type_wraps(bits: int, signed: bool, wide: type, stride: int) -> None:
    block = kvcache.first_overflowing_block(stride, bits=bits, signed=signed)
    largest = np.iinfo(wide).max
    assert block * stride - 1 <= largest, "every offset of the block before is representable"
    assert (block + 1) * stride - 1 > largest, "the last offset of this block is not"


def test_a_32_bit_product_gives_zero_where_64_bits_do_not() -> None:
    # flashinfer 3136: page 262144 x stride 16384.
    assert kvcache.element_offset(262144, 0, 1, 16384) == 4294967296
    assert int(np.uint32(262144 * 16384 % 2**32)) == 0
    assert kvcache.first_overflowing_block(16384, signed=False) == 262144
    assert kvcache.first_overflowing_block(512 * 4) == 2**20  # vllm 1514 and kin: row 2**20 of 512 float32


def test_numpy_ids_do_not_narrow_the_arithmetic() -> None:
    assert kvcache.element_offset(np.int32(300000), 15, 16, np.int32(1024)) == 300000 * 16 * 1024 + 15 * 1024


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.uint32, np.int64])
def test_narrow_and_unsigned_counts_give_what_plain_ones_do(kind: type) -> None:
    # Negating an unsigned 100 gives 4294967196, and 120 * 120 is no int8.
    assert sizing.blocks_for(kind(100), kind(16), kind(28)) == 196
    assert sizing.last_block_used(kind(100), kind(16)) == 4
    assert sizing.wasted_slots(kind(100), kind(16)) == 12
    assert kvcache.pool_nbytes(kind(120), kind(120), kind(120), kind(4)) == 120**3 * 8
    assert sizing.slots_in(kind(100), kind(16)) == 6
    assert kvcache.token_nbytes(kind(120), kind(120), kind(2), v_dim=kind(0)) == 120 * 120 * 2
    assert kvcache.byte_offset(kind(120), kind(5), kind(120), kind(120), kind(4)) == (120 * 120 + 5) * 120 * 4
    assert kvcache.locate(kind(100), kind(16)) == (6, 4)
    assert kvcache.first_overflowing_block(kind(16), bits=kind(32)) == 2**27
    blocks, offsets = kvcache.slot_to_block(np.array([120 * 120 - 1]), kind(120), kind(120))
    assert (blocks.tolist(), offsets.tolist()) == ([119], [119])


@pytest.mark.parametrize("slot", [2**64 - 1, 2**63 + 5])
def test_an_unsigned_slot_beyond_64_signed_bits_is_no_skip(slot: int) -> None:
    with pytest.raises(ValueError, match=rf"slot_mapping\[0\] is {slot}; 4 blocks"):
        kvcache.slot_to_block(np.array([slot], np.uint64), 4, 4)


def test_no_slots_at_all() -> None:
    blocks, offsets = kvcache.slot_to_block([], 4, 4)
    assert (blocks.size, offsets.size) == (0, 0)


def test_slots_of_another_block_size_are_refused() -> None:
    # vllm 47056: slot 75849 was made with blocks of 16; read as blocks of 4 it is block 18962 of 16384.
    blocks, offsets = kvcache.slot_to_block(np.array([75849, -1]), 16, 16384)
    assert (blocks.tolist(), offsets.tolist()) == ([4740, -1], [9, -1])
    with pytest.raises(ValueError, match=r"slot_mapping\[0\] is 75849.*another block size"):
        kvcache.slot_to_block(np.array([75849]), 4, 16384)
    with pytest.raises(ValueError, match=r"slot_mapping\[1\] is -2"):
        kvcache.slot_to_block(np.array([0, -2]), 16, 4)


@pytest.mark.parametrize(
    "call",
    [
        lambda: address.locate(3, 0),
        lambda: address.locate(-1, 16),
        lambda: address.element_offset(0, 16, 16, 8),
        lambda: address.element_offset(-1, 0, 16, 8),
        lambda: address.first_overflowing_block(0),
        lambda: address.slot_to_block(np.zeros((2, 2), int), 16, 4),
        lambda: address.slot_to_block(np.zeros(2), 16, 4),
        lambda: sizing.blocks_for(-1, 16),
        lambda: sizing.blocks_for(1, 0),
        lambda: sizing.blocks_for(100.5, 16),
        lambda: sizing.last_block_used(-1, 16),
        lambda: sizing.block_nbytes(-16, 1024),
        lambda: sizing.pool_nbytes(-1, 16, 1024),
        lambda: sizing.slots_in(100, 0),
        lambda: address.locate(3.5, 16),
        lambda: address.locate("3", 16),
        lambda: address.byte_offset(3, 0, 16, 8, itemsize=-4),
        lambda: address.first_overflowing_block(0.5),
        lambda: address.first_overflowing_block(16, bits=0),
        lambda: address.slot_to_block(np.zeros(1, bool), 16, 4),
    ],
)
def test_wrong_input_is_refused(call) -> None:
    with pytest.raises(ValueError, match=r"must be (a whole number|integers)|has slots"):
        call()
