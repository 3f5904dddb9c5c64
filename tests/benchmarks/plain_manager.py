"""A block manager of the same features in plain Python, a dictionary and a deque a block at a time: the yardstick."""

from __future__ import annotations

from collections import OrderedDict, deque


class PlainManager:
    """Allocate with prefix hits, commit, free; chained hashes, ids compared, reference counts, LRU eviction."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.size = block_size
        self.free = deque(range(num_blocks))
        self.refs = [0] * num_blocks
        self.hash: list[int | None] = [None] * num_blocks
        self.ids: list[tuple[int, ...]] = [()] * num_blocks
        self.parent = [-1] * num_blocks
        self.by_hash: dict[int, int] = {}
        self.resting: OrderedDict[int, None] = OrderedDict()
        self.tables: dict[object, list[int]] = {}
        self.tokens: dict[object, list[int]] = {}

    def allocate(self, seq: object, ids: list[int]) -> int:
        table: list[int] = []
        previous = 0
        for i in range((len(ids) - 1) // self.size):
            content = tuple(ids[i * self.size : (i + 1) * self.size])
            previous = hash((previous, content))
            block = self.by_hash.get(previous)
            parent = table[-1] if table else -1
            if block is None or self.ids[block] != content or self.parent[block] != parent:
                break
            table.append(block)
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
        self.tables[seq], self.tokens[seq] = table, ids
        return hits * self.size

    def commit(self, seq: object) -> None:
        table, ids = self.tables[seq], self.tokens[seq]
        previous = 0
        for i in range(len(ids) // self.size):
            content = tuple(ids[i * self.size : (i + 1) * self.size])
            previous = hash((previous, content))
            block = table[i]
            if self.hash[block] is None and previous not in self.by_hash:
                self.by_hash[previous] = block
                self.hash[block], self.ids[block] = previous, content
                self.parent[block] = table[i - 1] if i else -1
                self.refs[block] += 1

    def free_sequence(self, seq: object) -> None:
        del self.tokens[seq]
        for block in reversed(self.tables.pop(seq)):
            self.refs[block] -= 1
            if self.refs[block] == 0:
                self.free.append(block)
            elif self.refs[block] == 1 and self.hash[block] is not None:
                self.resting[block] = None
