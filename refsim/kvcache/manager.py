"""The block manager: which physical blocks each sequence holds, with sharing and copy-on-write.

Source: the paged KV cache text (sharing, reference counts, copy-on-write, the request life); PagedAttention, SOSP 2023.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from refsim.checks import integers, whole_number
from refsim.kvcache.books import PoolBooks
from refsim.kvcache.chain import Chain, check_ids
from refsim.kvcache.errors import DuplicateSequence, OutOfBlocks, UnknownSequence
from refsim.kvcache.invariants import check_invariants
from refsim.kvcache.sequence import SequenceTable
from refsim.kvcache.sizing import blocks_for

if TYPE_CHECKING:
    from collections.abc import Hashable

    from numpy.typing import ArrayLike
_COUNT = (int, np.integer)


class BlockManager(PoolBooks):
    """Block tables of `block_size` tokens over a pool of `num_blocks`.

    `tables` is the number of block tables a sequence has: 1, shared by all layers, or the number of layers, and then
    all layers take their blocks from this pool. `prefix_cache=True` keeps full blocks for later sequences that begin
    with the same token ids; `host_blocks` adds a tier in host memory under it. `free_order` and `reserved` are
    BlockPool's. `record=True` keeps `events`.

    >>> m = BlockManager(8, 16, free_order=[0, 3, 5, 1, 2, 4, 6, 7])
    >>> m.allocate(1, 40), m.table(1)
    (0, array([0, 3, 5], dtype=int32))
    >>> m.adopt(2, m.table(1)[:2], 32)  # a shared prefix
    >>> m.allocate(3, 20), m.table(3), m.pool.refs
    (0, array([1, 2], dtype=int32), [2, 1, 1, 2, 0, 1, 0, 0])
    """

    def allocate(
        self,
        seq_id: Hashable,
        tokens: int | ArrayLike | Chain,
        *,
        upto: int | None = None,
        chunk: int | None = None,
        whole_must_fit: bool = False,
        salt: int = 0,
    ) -> int:
        """Start a sequence: blocks for its tokens, given as a count or as token ids. Returns the tokens found cached.

        With a prefix cache and token ids, leading full blocks that are cached are shared, but at least one token is
        left to compute. `chunk` takes blocks for that many tokens after the hit only, and `append` takes the rest; with
        `whole_must_fit` there must be room for the rest now. `salt` keeps the blocks apart from those of other salts.

        A `Chain` built before saves hashing the ids again; the manager goes on to extend it, until the sequence is
        freed, so that each sequence needs one of its own. It may know more ids than there are tokens yet: `upto` is
        then the number of tokens.

        Raises DuplicateSequence, OutOfBlocks, ValueError.
        """
        if seq_id in self._sequences:
            raise DuplicateSequence(seq_id)
        chain, total = self._chain(tokens, salt)
        if upto is not None:
            upto = whole_number("upto", upto, 0)
            if upto > total:
                raise ValueError(f"upto is {upto}; {total} tokens were given")
            total = upto
        if chunk is not None:
            chunk = whole_number("chunk", chunk, 0)
        hit, below = ([], []) if self.prefix is None or chain is None else self.prefix.match(chain, total)
        size = self.block_size
        found = (len(hit) + len(below)) * size
        length = total if chunk is None else min(total, found + chunk)
        must_fit = total if whole_must_fit else length
        needed = self.tables * -(-must_fit // size) - len(hit)
        available = self.available
        if self.prefix is not None and hit:
            available -= self.prefix.resting(hit)
        if needed > available:
            raise OutOfBlocks(needed, available, f"sequence {seq_id!r} of {must_fit} tokens")
        # Nothing below this line fails.
        columns = -(-length // size) - len(hit)
        if found:
            fresh = self._take_after_hits(seq_id, hit, below, columns)
        else:
            fresh = self._take(self.tables * columns, seq_id)
        rows = [hit + fresh] if hit else [fresh]
        if self.tables > 1:
            rows = [fresh[t * columns : (t + 1) * columns] for t in range(self.tables)]
        self._sequences[seq_id] = SequenceTable(rows, length, chain, found, len(hit) + len(below))
        return found

    def append(self, seq_id: Hashable, tokens: int | ArrayLike = 1) -> None:
        """Make room for further tokens (a count, or ids): new blocks where full, a copy first where the tail is shared.

        Raises UnknownSequence, OutOfBlocks, ValueError.
        """
        seq = self._sequences.get(seq_id) or self._get(seq_id)
        if type(tokens) is int and not seq.tail_shared and 0 <= tokens <= -seq.tokens % self.block_size:
            seq.tokens += tokens  # there is room in a block of its own: most tokens of a decode
            return
        ids = None if isinstance(tokens, _COUNT) else check_ids(tokens)
        count = whole_number("tokens", tokens, 0) if ids is None else ids.size
        if ids is not None and seq.chain is not None and seq.chain.known != seq.tokens:
            raise ValueError(
                f"sequence {seq_id!r} has {seq.tokens} tokens, ids are known for {seq.chain.known}; give a count here"
            )
        refs = self.pool.refs
        tails = seq.rows if count and seq.tokens % self.block_size else []
        shared = [row for row in tails if refs[row[-1]] > 1 or not seq.named_once(row[-1])]
        columns = -(-(seq.tokens + count) // self.block_size) - seq.blocks
        needed = columns * self.tables + len(shared)
        if needed:
            if needed > self.available:
                raise OutOfBlocks(needed, self.available, f"appending {count} token(s) to sequence {seq_id!r}")
            if shared:
                self._copy_on_write(seq_id, seq, shared)
            fresh = self._take(columns * self.tables, seq_id)
            for t, row in enumerate(seq.rows):
                row += fresh[t * columns : (t + 1) * columns]
        seq.tail_shared = seq.tail_shared and not count
        seq.tokens += count
        if ids is not None and seq.chain is not None:
            seq.chain.extend(ids)

    def truncate(self, seq_id: Hashable, num_tokens: int) -> None:
        """Take back a sequence's last tokens, so that `num_tokens` are left: what undoes an `append`.

        Whole blocks past the end are dropped, as `free` drops them. The block that the end now lies in stays; where
        somebody else holds it too (a fork, or the prefix cache), the next append copies it first. Ids of the tokens
        taken back are forgotten, but not those given ahead of the tokens (`upto`, `chunk`).

        Raises UnknownSequence; ValueError unless 0 <= num_tokens <= the sequence's tokens.

        >>> m = BlockManager(8, 4)
        >>> m.allocate("a", 10), m.truncate("a", 5), m.table("a"), m.pool.refs
        (0, None, array([0, 1], dtype=int32), [1, 1, 0, 0, 0, 0, 0, 0])
        """
        seq, num_tokens = self._get(seq_id), whole_number("num_tokens", num_tokens)
        if not 0 <= num_tokens <= seq.tokens:
            raise ValueError(
                f"num_tokens is {num_tokens}; sequence {seq_id!r} has {seq.tokens}: give 0 to {seq.tokens}"
            )
        if num_tokens == seq.tokens:
            return
        dropped = seq.cut(num_tokens, self.block_size)
        tails = [row[-1] for row in seq.rows] if num_tokens % self.block_size else []
        own = [block for block in tails if self.pool.refs[block] == 1 and seq.named_once(block)]
        seq.tail_shared = len(own) < len(tails)
        for trimmed in self._trimmed:
            trimmed(own, num_tokens % self.block_size)
        self._drop(seq_id, dropped)

    def fork(self, parent_id: Hashable, child_id: Hashable) -> None:
        """A second sequence that holds the parent's blocks; the first of them to write into the tail copies it."""
        parent = self._get(parent_id)
        if child_id in self._sequences:
            raise DuplicateSequence(child_id)
        self.pool.share(parent.holds())
        parent.tail_shared = True
        self._sequences[child_id] = parent.copy()
        self._note("share", child_id, parent.holds())

    def adopt(self, seq_id: Hashable, block_ids: ArrayLike, num_tokens: int) -> None:
        """A sequence over blocks that others hold already, its tokens written: sharing by hand.

        `block_ids` is (blocks,), or (tables, blocks). Raises ValueError when a block is not live or the count is wrong.
        """
        if self.prefix is not None:
            raise ValueError("sharing by hand would part blocks from their prefix; allocate with token ids shares them")
        if seq_id in self._sequences:
            raise DuplicateSequence(seq_id)
        ids, num_tokens = integers("block_ids", np.atleast_2d(block_ids), 2), whole_number("num_tokens", num_tokens)
        if ids.shape != (self.tables, blocks_for(num_tokens, self.block_size)):
            raise ValueError(
                f"block_ids is {ids.shape}; {num_tokens} tokens take "
                f"({self.tables}, {blocks_for(num_tokens, self.block_size)}) blocks"
            )
        seq = SequenceTable(ids.tolist(), num_tokens, computed=num_tokens)
        seq.repeats = len(set(seq.holds())) < ids.size
        seq.tail_shared = True
        self.pool.share(seq.holds())
        held = set(seq.holds())
        for other in self._sequences.values():  # who wrote on alone so far must copy first from now on
            other.tail_shared = other.tail_shared or any(row[-1] in held for row in other.rows if row)
        self._sequences[seq_id] = seq
        self._note("share", seq_id, seq.holds())

    def commit(self, seq_id: Hashable, computed: int | None = None) -> None:
        """Say that the K and V of the first `computed` tokens (all, by default) are written.

        With a prefix cache, full blocks of known ids enter it. Where the cache holds the same block already, the
        sequence's table is pointed at that one and the twin is freed.
        """
        seq = self._get(seq_id)
        computed = seq.tokens if computed is None else whole_number("computed", computed)
        if not seq.computed <= computed <= seq.tokens:
            raise ValueError(
                f"computed is {computed}; sequence {seq_id!r} has {seq.tokens} tokens, {seq.computed} computed before"
            )
        seq.computed = computed
        if self.prefix is None or seq.chain is None:
            return
        known = seq.chain.known
        full = (computed if computed < known else known) // self.block_size
        if full > seq.cached:
            entered: list[int] | None = None if self.events is None else []
            twins, seq.cached = self.prefix.insert(seq.chain, seq.rows[0], seq.cached, full, entered)
            if entered is not None:
                self._note("cache", seq_id, entered)
                self._note("share", seq_id, list(twins.values()))
                self._note("drop", seq_id, list(twins))
            if twins:
                self._tell_freed(seq_id, self.pool.drop(twins))

    def free(self, seq_id: Hashable) -> None:
        """End a sequence: its references are dropped, and blocks without holders are recycled.

        Raises UnknownSequence, also when it was freed before.
        """
        seq = self._sequences.pop(seq_id, None)
        if seq is None:
            raise UnknownSequence(seq_id)
        if seq.chain is not None:
            seq.chain.held = False
        self._drop(seq_id, seq.holds())

    def check_invariants(self) -> None:
        """Raise AssertionError unless counts, tables, free stack and prefix cache agree with a recount."""
        check_invariants(self)

    def _chain(self, tokens: int | ArrayLike | Chain, salt: int) -> tuple[Chain | None, int]:
        if type(tokens) is np.ndarray and tokens.ndim:
            chain = Chain(tokens, self.block_size, salt)
            return chain, chain.known
        if isinstance(tokens, Chain):
            if tokens.block_size != self.block_size:
                raise ValueError(
                    f"the chain has blocks of {tokens.block_size} tokens, the manager of {self.block_size}"
                )
            if tokens.held:
                raise ValueError("the chain is a live sequence's already, which extends it; give chain.copy()")
            return tokens, tokens.known
        if isinstance(tokens, _COUNT):
            return None, whole_number("tokens", tokens, 0)
        chain = Chain(tokens, self.block_size, salt)
        return chain, chain.known

    def _take_after_hits(self, seq_id: Hashable, hit: list[int], below: list[int], columns: int) -> list[int]:
        """Hold the hits first, so that making room can't evict them; then fill fresh blocks from the host tier."""
        assert self.prefix is not None
        self.prefix.hold(hit)
        self._note("hit", seq_id, hit)
        host = self.prefix.host
        brought = [host.take(key) for key in below] if host is not None else []
        fresh = self._take(columns, seq_id)
        if brought:
            self.prefix.restore(brought, fresh[: len(below)])
            self._note("load", seq_id, fresh[: len(below)])
        return fresh
