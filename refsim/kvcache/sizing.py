"""How many blocks and bytes a sequence or a pool takes.

Source: the paged KV cache text, sizing. Units are in the names; tokens and blocks are plain counts.
"""

from __future__ import annotations

from refsim.checks import whole_number


def blocks_for(num_tokens: int, block_size: int, layers: int = 1) -> int:
    """Blocks for a sequence: `ceil(T/B)` a table, times the tables when each layer has its own.

    >>> blocks_for(100, 16), blocks_for(100, 16, layers=28)
    (7, 196)
    """
    num_tokens, block_size = whole_number("num_tokens", num_tokens, 0), whole_number("block_size", block_size, 1)
    return whole_number("layers", layers, 1) * -(-num_tokens // block_size)


def block_nbytes(block_size: int, kv_dim: int, itemsize: int = 4, *, v_dim: int | None = None) -> int:
    """Bytes of one block, K and V together, of one layer. `v_dim` is V's row length where it differs from K's.

    >>> block_nbytes(16, 1024, 4)
    131072
    """
    kv_dim = whole_number("kv_dim", kv_dim, 0)
    v_dim = kv_dim if v_dim is None else whole_number("v_dim", v_dim, 0)
    return whole_number("block_size", block_size, 0) * (kv_dim + v_dim) * whole_number("itemsize", itemsize, 0)


def pool_nbytes(num_blocks: int, block_size: int, kv_dim: int, itemsize: int = 4, *, v_dim: int | None = None) -> int:
    """Bytes of a pool, K and V together: `N * B * 2 * kv_dim * itemsize`.

    >>> pool_nbytes(196, 16, 1024, 4)
    25690112
    """
    return whole_number("num_blocks", num_blocks, 0) * block_nbytes(block_size, kv_dim, itemsize, v_dim=v_dim)


def token_nbytes(layers: int, kv_dim: int, itemsize: int = 2, *, v_dim: int | None = None) -> int:
    """Bytes of K and V a token takes over all layers.

    >>> token_nbytes(40, 5120, 2)  # OPT-13B in float16
    819200
    """
    return whole_number("layers", layers, 0) * block_nbytes(1, kv_dim, itemsize, v_dim=v_dim)


def slots_in(budget_nbytes: int, per_token_nbytes: int) -> int:
    """Tokens of K and V that fit in a memory budget.

    >>> slots_in(12 * 2**30, token_nbytes(40, 5120, 2))  # what OPT-13B leaves of a 40 GB GPU
    15728
    """
    return whole_number("budget_nbytes", budget_nbytes, 0) // whole_number("per_token_nbytes", per_token_nbytes, 1)


def last_block_used(num_tokens: int, block_size: int) -> int:
    """Slots in use in the last block (0 for an empty sequence).

    >>> last_block_used(100, 16), last_block_used(96, 16), last_block_used(0, 16)
    (4, 16, 0)
    """
    return int(num_tokens) - max(0, blocks_for(num_tokens, block_size) - 1) * int(block_size)


def wasted_slots(num_tokens: int, block_size: int) -> int:
    """Reserved but unused slots a table: at most `block_size - 1`.

    >>> wasted_slots(100, 16)
    12
    """
    return blocks_for(num_tokens, block_size) * int(block_size) - int(num_tokens)
