"""A block manager of the same features in plain Python, a dictionary and a deque, a block at a time: the yardstick.

It is written to be quick too: ids are compared as tuples, hits are hashed once, and nothing is checked block by block.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable


class PlainManager:
    """Allocate with prefix hits, commit, free; chained hashes, ids compared, reference counts, LRU eviction.

    As in the manager it stands beside, salts part prefixes, a sequence id can't be live twice, a failed allocation
    changes nothing, and a block whose content is cached already is given back for its twin.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.size = block_size
        self.free = deque(range(num_blocks))
        self.refs = [0] * num_blocks
        self.hash: list[int | None] = [None] * num_blocks
        self.ids: list[tuple[int, ...]] = [()] * num_blocks
        self.parent: list[Hashable] = [None] * num_blocks
        self.by_hash: dict[int, int] = {}
        self.resting: OrderedDict[int, None] = OrderedDict()
        self.tables: dict[object, list[int]] = {}
        self.tokens: dict[object, list[int]] = {}
        self.done: dict[object, tuple[int, int, Hashable]] = {}  # blocks cached, the last one's hash, and itself

    def allocate(self, seq: object, ids: list[int], salt: int = 0) -> int:
        if seq in self.tables:
            raise ValueError(seq)
        table: list[int] = []
        parent: Hashable = ("salt", salt)
        previous = hash(parent)
        for i in range((len(ids) - 1) // self.size):
            content = tuple(ids[i * self.size : (i + 1) * self.size])
            key = hash((previous, content))
            block = self.by_hash.get(key)
            if block is None or self.ids[block] != content or self.parent[block] != parent:
                break
            table.append(block)
            parent, previous = block, key
        needed = -(-len(ids) // self.size) - len(table)
        idle = sum(b in self.resting for b in table)
        if needed > len(self.free) + len(self.resting) - idle:
            raise MemoryError
        for block in table:
            self.resting.pop(block, None)
            self.refs[block] += 1
        hits = len(table)
        for _ in range(needed):
            if not self.free:
                old, _ = self.resting.popitem(last=False)
                del self.by_hash[self.hash[old]]  # type: ignore[arg-type]
                self.hash[old] = None
                self.refs[old] -= 1
                self.free.append(old)
            block = self.free.popleft()
            self.refs[block] = 1
            table.append(block)
        self.tables[seq], self.tokens[seq], self.done[seq] = table, ids, (hits, previous, parent)
        return hits * self.size

    def commit(self, seq: object) -> None:
        table, ids = self.tables[seq], self.tokens[seq]
        first, previous, parent = self.done[seq]
        last = len(ids) // self.size
        for i in range(first, last):
            content = tuple(ids[i * self.size : (i + 1) * self.size])
            key = hash((previous, content))
            block = table[i]
            known = self.by_hash.get(key)
            if known is None:
                self.by_hash[key] = block
                self.hash[block], self.ids[block], self.parent[block] = key, content, parent
                self.refs[block] += 1
            elif self.ids[known] != content or self.parent[known] != parent or self.refs[block] > 1:
                last = i
                break
            elif known != block:
                self.resting.pop(known, None)
                self.refs[known] += 1
                self.refs[block] = 0
                self.free.append(block)
                table[i] = block = known
            parent, previous = block, key
        self.done[seq] = (last, previous, parent)

    def free_sequence(self, seq: object) -> None:
        table = self.tables.pop(seq)  # KeyError when it was freed before
        del self.tokens[seq], self.done[seq]
        for block in reversed(table):
            self.refs[block] -= 1
            if self.refs[block] == 0:
                self.free.append(block)
            elif self.refs[block] == 1 and self.hash[block] is not None:
                self.resting[block] = None
