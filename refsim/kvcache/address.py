"""Where a token's K and V lie: position -> (logical block, slot) -> physical block -> offset -> bytes.

Source: the paged KV cache text, address arithmetic. All arithmetic is 64-bit or Python's own integers, because the
product `physical block x block stride` is what overflows 32 bits in large pools.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from refsim.checks import integers, whole_number

if TYPE_CHECKING:
    from jaxtyping import Int64


def locate(position: int, block_size: int) -> tuple[int, int]:
    """Logical block and slot of a token position: `(position // B, position % B)`.

    >>> locate(37, 16)
    (2, 5)
    """
    return divmod(whole_number("position", position, 0), whole_number("block_size", block_size, 1))


def element_offset(physical_block: int, slot: int, block_size: int, kv_dim: int) -> int:
    """Offset, in elements, of a token's K (or V) row in a layer's pool; `kv_dim = num_kv_heads * head_dim`.

    >>> element_offset(7, 5, 16, 1024)
    119808
    """
    block_size, slot = whole_number("block_size", block_size, 1), whole_number("slot", slot)
    physical_block, kv_dim = whole_number("physical_block", physical_block, 0), whole_number("kv_dim", kv_dim, 1)
    if not 0 <= slot < block_size:
        raise ValueError(f"slot is {slot}; a block of {block_size} has slots 0 to {block_size - 1}")
    return physical_block * block_size * kv_dim + slot * kv_dim


def byte_offset(physical_block: int, slot: int, block_size: int, kv_dim: int, itemsize: int = 4) -> int:
    """The same offset in bytes.

    >>> byte_offset(7, 5, 16, 1024, itemsize=4)
    479232
    """
    return element_offset(physical_block, slot, block_size, kv_dim) * whole_number("itemsize", itemsize, 1)


def first_overflowing_block(block_stride: int, *, bits: int = 32, signed: bool = True) -> int:
    """First physical block with an offset that `bits`-wide arithmetic can't hold.

    `block_stride` is the distance between blocks in the unit the kernel counts in (elements or bytes). Block b covers
    offsets `b*stride .. (b+1)*stride - 1`; the answer is the first block of which any offset is beyond the type.

    >>> first_overflowing_block(16384, signed=False)  # 262144 * 16384 = 2**32, which 32 bits turn into 0
    262144
    >>> first_overflowing_block(16 * 1024 * 4)  # bytes, block of 16 tokens, kv_dim 1024, float32
    32768
    """
    block_stride, bits = whole_number("block_stride", block_stride, 1), whole_number("bits", bits, 1)
    return 2 ** (bits - 1 if signed else bits) // block_stride


def slot_to_block(
    slot_mapping: Int64[np.ndarray, "tokens"], block_size: int, num_blocks: int
) -> tuple[Int64[np.ndarray, "tokens"], Int64[np.ndarray, "tokens"]]:
    """Split slots (`block * block_size + offset`) into blocks and offsets; -1 (skip) gives (-1, -1).

    Raises ValueError for any other slot outside the pool, which is what a slot made with another block size looks like.

    >>> slot_to_block(np.array([75849, -1]), 16, 16384)
    (array([4740,   -1]), array([ 9, -1]))
    """
    block_size, num_blocks = whole_number("block_size", block_size, 1), whole_number("num_blocks", num_blocks, 0)
    slots = integers("slot_mapping", slot_mapping, 1)
    bad = (slots < -1) | (slots >= num_blocks * block_size)
    if bad.any():
        row = int(np.argmax(bad))
        raise ValueError(
            f"slot_mapping[{row}] is {slots[row]}; {num_blocks} blocks of {block_size} have slots 0 to "
            f"{num_blocks * block_size - 1} (and -1 to skip a row). Was it made with another block size?"
        )
    slots = slots.astype(np.int64)  # not before: the largest unsigned number would become -1
    skip = slots == -1
    return np.where(skip, -1, slots // block_size), np.where(skip, -1, slots % block_size)


def check_no_slot_twice(slots: Int64[np.ndarray, "written"]) -> None:
    """Raise ValueError where two rows would be written to one slot."""
    if np.unique(slots).size < slots.size:
        raise ValueError("slot_mapping names a slot twice; which row should it keep?")
