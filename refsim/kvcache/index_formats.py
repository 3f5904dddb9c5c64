"""How a batch's blocks are named: padded tables with lengths, CSR pages, token lists; and what a kernel relies on.

Our own is `block_tables` int32 (sequences, max_blocks) padded with -1 beside `seq_lens`. Converters work at the edge.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from refsim.checks import integers, whole_number

if TYPE_CHECKING:
    from jaxtyping import Int, Int32
    from numpy.typing import ArrayLike


class CSR(NamedTuple):
    """FlashInfer's pages: `indices[indptr[i]:indptr[i+1]]` are sequence i's; the last holds `last_page_len` tokens."""

    indptr: Int32[np.ndarray, "sequences_plus_1"]
    indices: Int32[np.ndarray, "pages"]
    last_page_len: Int32[np.ndarray, "sequences"]


def check_tables(
    block_tables: Int[np.ndarray, "sequences max_blocks"],
    seq_lens: Int[np.ndarray, "sequences"],
    block_size: int,
    num_blocks: int,
) -> None:
    """Raise ValueError unless every table entry that would be read is a block of the pool. Padding is not looked at.

    >>> check_tables(np.array([[0], [-1]]), np.array([4, 0]), 4, 1)  # an empty sequence reads no table
    >>> check_tables(np.array([[0]]), np.array([257]), 256, 1)
    Traceback (most recent call last):
    ...
    ValueError: seq_lens[0] is 257; a table of 1 columns of 256 holds at most 256 tokens
    """
    _checked(block_tables, seq_lens, whole_number("block_size", block_size, 1), num_blocks)


def _checked(
    block_tables: ArrayLike, seq_lens: ArrayLike, block_size: int, num_blocks: int
) -> tuple[np.ndarray, np.ndarray]:
    """Tables and int64 lengths as arrays, once `check_tables` has nothing to say."""
    tables, lens = integers("block_tables", block_tables, 2), integers("seq_lens", seq_lens, 1, np.int64)
    if (lens < 0).any():
        row = int(np.argmax(lens < 0))
        raise ValueError(f"seq_lens[{row}] is {lens[row]}; a length is 0 or more")
    if len(tables) != len(lens):
        raise ValueError(f"block_tables has {len(tables)} rows and seq_lens {len(lens)} lengths; one each a sequence")
    room = tables.shape[1] * block_size
    if (lens > room).any():
        row = int(np.argmax(lens > room))
        raise ValueError(
            f"seq_lens[{row}] is {lens[row]}; a table of {tables.shape[1]} columns of {block_size} holds at most "
            f"{room} tokens"
        )
    read = np.arange(tables.shape[1]) < -(-lens // block_size)[:, None]
    bad = read & ((tables < 0) | (tables >= num_blocks))
    if bad.any():
        row, column = np.argwhere(bad)[0]
        raise ValueError(
            f"block_tables[{row}, {column}] is {tables[row, column]}, and would be read; blocks go from 0 to "
            f"{num_blocks - 1}"
        )
    return tables, lens


def to_csr(
    block_tables: Int[np.ndarray, "sequences max_blocks"], seq_lens: Int[np.ndarray, "sequences"], block_size: int
) -> CSR:
    """Padded tables as CSR pages. An empty sequence has no pages and a last page of 0 tokens.

    >>> to_csr(np.array([[3, 5], [-1, -1]]), np.array([5, 0]), 4)
    CSR(indptr=array([0, 2, 2], dtype=int32), indices=array([3, 5], dtype=int32),
        last_page_len=array([1, 0], dtype=int32))
    """
    block_size = whole_number("block_size", block_size, 1)
    tables, lens = _checked(block_tables, seq_lens, block_size, np.iinfo(np.int32).max)
    pages = -(-lens // block_size)
    indices = tables[np.arange(tables.shape[1]) < pages[:, None]]
    last = np.where(lens > 0, (lens - 1) % block_size + 1, 0)
    return CSR(
        np.concatenate([[0], np.cumsum(pages)]).astype(np.int32), indices.astype(np.int32), last.astype(np.int32)
    )


def from_csr(
    indptr: ArrayLike, indices: ArrayLike, last_page_len: ArrayLike, page_size: int
) -> tuple[Int32[np.ndarray, "sequences max_blocks"], Int32[np.ndarray, "sequences"]]:
    """CSR pages as padded tables and lengths, `(pages - 1) * page_size + last_page_len`.

    Raises ValueError when the pointers fall or don't fit the indices, when an index is no int32 from 0 up, and when a
    last page holds 0 or more than `page_size` tokens. A sequence without pages is empty, whatever its last page says.

    >>> from_csr([0, 0, 9], np.arange(9), [0, 1], 16)[1]
    array([  0, 129], dtype=int32)
    """
    page_size = whole_number("page_size", page_size, 1)
    ptr, ids, last = (
        integers(name, array, 1, np.int64)
        for name, array in (("indptr", indptr), ("indices", indices), ("last_page_len", last_page_len))
    )
    if ptr.size == 0 or ptr[0] != 0 or (np.diff(ptr) < 0).any() or ptr[-1] != ids.size:
        raise ValueError(f"indptr {ptr.tolist()} must rise from 0 to the number of indices, {ids.size}")
    pages = np.diff(ptr)
    if last.shape != pages.shape:
        raise ValueError(f"last_page_len has shape {last.shape}; expected one for each of {pages.size} sequences")
    bad = (pages > 0) & ((last < 1) | (last > page_size))
    if bad.any():
        row = int(np.argmax(bad))
        raise ValueError(
            f"last_page_len[{row}] is {last[row]}; a page of {page_size} ends with 1 to {page_size} tokens"
        )
    out = (ids < 0) | (ids > np.iinfo(np.int32).max)
    if out.any():
        raise ValueError(f"indices[{int(np.argmax(out))}] is {ids[np.argmax(out)]}; expected a page, 0 to 2**31 - 1")
    tables = np.full((pages.size, int(pages.max(initial=0))), -1, np.int32)
    tables[np.arange(tables.shape[1]) < pages[:, None]] = ids
    return tables, np.where(pages > 0, (pages - 1) * page_size + last, 0).astype(np.int32)


def to_token_list(
    block_tables: Int[np.ndarray, "sequences max_blocks"], seq_lens: Int[np.ndarray, "sequences"], block_size: int
) -> tuple[Int32[np.ndarray, "sequences_plus_1"], Int32[np.ndarray, "tokens"]]:
    """Tables as SGLang's pool of single tokens sees them: `kv_indptr`, and each token's slot in `kv_indices`.

    >>> to_token_list(np.array([[3, 1]]), np.array([3]), 2)
    (array([0, 3], dtype=int32), array([6, 7, 2], dtype=int32))
    """
    block_size = whole_number("block_size", block_size, 1)
    tables, lens = _checked(block_tables, seq_lens, block_size, np.iinfo(np.int32).max // block_size)
    positions = np.arange(tables.shape[1] * block_size)
    slots = tables[:, positions // block_size].astype(np.int64) * block_size + positions % block_size
    return (
        np.concatenate([[0], np.cumsum(lens)]).astype(np.int32),
        slots[positions < lens[:, None]].astype(np.int32),
    )


def max_query_len(cu_seqlens: ArrayLike) -> int:
    """The longest query of a ragged batch: the largest difference of the bounds, not the largest bound.

    >>> max_query_len([0, 3, 5])
    3
    """
    return int(np.diff(np.asarray(cu_seqlens)).max(initial=0))
