# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 1. Block tables
#
# A language model keeps the keys and values of every token it has seen. A paged cache keeps them in *blocks* of a few
# tokens each, anywhere in a pool, and a *block table* says where. In this notebook you follow one token's address from
# its position to its byte, watch a pool fill, share and copy, and see what reading through a table costs.
#
# Every number in the text is computed or asserted by the code beside it. Nothing here needs a GPU.

# %%
import numpy as np

from refsim import attention, charts, kvcache, oracle
from refsim.charts.filmstrip import filmstrip
from refsim.charts.lookup import block_lookup
from refsim.charts.pool_film import PoolFilm
from refsim.kvcache import BlockManager, PagedKV, sizing
from refsim.notebook import Picture, Prose, player, table, verdict

# %% [markdown]
# ## From a position to a byte
#
# With blocks of `B` tokens, position `p` is slot `p % B` of logical block `p // B`. The table turns a logical block into
# a physical one. A layer has two pools of the same shape, one of keys and one of values; a token's row in either holds
# `num_kv_heads * head_dim` numbers.

# %%
B, num_kv_heads, head_dim, itemsize = 16, 8, 128, 4  # float32
kv_dim = num_kv_heads * head_dim
block_table = [3, 9, 7]
position = 37

logical, slot = kvcache.locate(position, B)
physical = block_table[logical]
offset = kvcache.element_offset(physical, slot, B, kv_dim)
nbytes = kvcache.byte_offset(physical, slot, B, kv_dim, itemsize)
Picture(
    block_lookup(block_table, position, block_size=B, num_blocks=10), "the path of a position through a block table"
)

# %%
Prose(f"""Position {position} is slot {slot} of logical block {logical}, and the table says P{physical}:

$$ \\text{{offset}} = {physical} \\cdot {B} \\cdot {kv_dim} + {slot} \\cdot {kv_dim} = {offset:,} \\text{{ elements}}
= {nbytes:,} \\text{{ bytes.}} $$""")

# %% [markdown]
# Is that where NumPy puts it? Ask a real array for the address of that row.

# %%
pool = np.zeros((10, B, num_kv_heads, head_dim), np.float32)
row = pool[physical, slot]
assert row.ctypes.data - pool.ctypes.data == nbytes
assert (position // B, position % B) == (logical, slot)

# %% [markdown]
# ## Where 32 bits end
#
# `physical * B * kv_dim` is the product that overflows. A kernel that computes it in 32 bits reads a wrong block, without
# an error, as soon as the pool is large enough. `first_overflowing_block` says from which block on.

# %%
stride = B * kv_dim
rows = [
    {
        "arithmetic": f"{'signed' if signed else 'unsigned'} 32 bits, in {unit}",
        "first wrong block": kvcache.first_overflowing_block(stride * size, signed=signed),
    }
    for unit, size in (("elements", 1), ("bytes", itemsize))
    for signed in (True, False)
]
table(rows)

# %%
first = kvcache.first_overflowing_block(stride, signed=False)
with np.errstate(over="ignore"):
    wrong = int(np.uint32(first) * np.uint32(stride))
right = int(np.int64(first) * stride)
assert (right, wrong) == (2**32, 0)
Prose(
    f"Block {first:,} times a stride of {stride:,} is {right:,}. In unsigned 32 bits it is **{wrong}**: block 0's data."
)

# %% [markdown]
# ## How many blocks, how many bytes
#
# Take a model of 28 layers and a text of 100 tokens. A block now means its keys *and* its values.

# %%
T, layers = 100, 28
per_layer, blocks = sizing.blocks_for(T, B), sizing.blocks_for(T, B, layers)
block_nbytes, pool_nbytes = sizing.block_nbytes(B, kv_dim, itemsize), sizing.pool_nbytes(blocks, B, kv_dim, itemsize)
assert (per_layer, blocks, block_nbytes, pool_nbytes) == (7, 196, 131072, 25690112)
waste = max(sizing.wasted_slots(tokens, B) for tokens in range(1, 1000))
assert waste == B - 1

Prose(f"""{T} tokens take {per_layer} blocks a layer and {blocks} in {layers} layers. A block of K and V is
{block_nbytes:,} bytes, so all of them are {pool_nbytes:,} bytes, {pool_nbytes / 2**20} MiB. The last block of each layer
uses {sizing.last_block_used(T, B)} of its {B} slots. However long a sequence is, at most {waste} slots a layer are reserved
for nothing.""")

# %% [markdown]
# ## A pool at work
#
# A `BlockManager` hands out blocks and counts references; a `PagedKV` holds the values. This one has eight blocks of
# four tokens and hands them out in a scrambled order, as a pool does that has been in use for a while. We keep a frame
# after each thing that happens.

# %%
manager = BlockManager(8, 4, free_order=[0, 3, 5, 1, 2, 4, 6, 7], record=True)
kv = PagedKV(manager, layers=1, num_kv_heads=2, head_dim=4)
assert (manager.pool.usable, manager.block_size) == (8, 4)
rng = np.random.default_rng(0)
written = {}  # what each sequence should read back
film = PoolFilm(manager)


def fill(seq, start):
    """Write random K and V for the tokens of a sequence from `start` on."""
    count = manager.length(seq) - start
    k, v = rng.standard_normal((2, count, 2, 4), dtype=np.float32)
    kv.write(kv.slot_mapping(seq, start, count), k, v)
    before = written.get(seq, (k[:0], v[:0]))
    written[seq] = tuple(np.concatenate([old[:start], new]) for old, new in zip(before, (k, v), strict=True))


manager.allocate("1", 10)
fill("1", 0)
film.keep("1 arrives\nwith 10 tokens")

manager.adopt("2", manager.table("1")[:2], 8)  # its table begins as a copy of 1's; nothing is computed or written
written["2"] = tuple(x[:8] for x in written["1"])
film.keep("2 has the same\nfirst 8 tokens")

manager.allocate("3", 8)
fill("3", 0)
film.keep("3 arrives\nwith 8 tokens")

tables = {seq: manager.table(seq).tolist() for seq in manager.sequences}
assert tables == {"1": [0, 3, 5], "2": [0, 3], "3": [1, 2]}
assert [manager.pool.refs[block] for block in (0, 3)] == [2, 2]
table([{"request": seq, "block table": ", ".join(f"P{b}" for b in blocks)} for seq, blocks in tables.items()])

# %% [markdown]
# Requests 1 and 2 hold P0 and P3 together: their first tokens are the same, so their keys and values are, too. The pool
# counts two references on each.
#
# ## Copy-on-write
#
# Now request 1 *forks*: a second continuation of the same text, as beam search or parallel sampling make. A fork copies
# no data. But the last block has room left, and whoever writes into it first would change what the other one reads. So
# a write to a block with more than one reference takes a new block, copies the old one, drops a reference, and then
# writes. The table below lists what the manager did: *drop* is a reference that goes, *free* a block that lost its last.

# %%
manager.fork("1", "1b")
written["1b"] = written["1"]
film.keep("1 forks")

before = len(manager.events)
manager.append("1b", 1)
fill("1b", 10)
film.keep("the fork writes:\nits tail is copied")

manager.append("1", 1)
fill("1", 10)
film.keep("1 writes:\nno copy any more")

manager.free("1")
written.pop("1")
film.keep("1 ends")
assert [manager.pool.refs[block] for block in (0, 3, 5)] == [2, 2, 0]

manager.free("2")
written.pop("2")
film.keep("2 ends")

manager.check_invariants()
table(
    [
        {
            "what": event.kind,
            "request": event.seq_id,
            "blocks": ", ".join(f"P{b}" for b in event.blocks) + ("" if not event.onto else f" to P{event.onto[0]}"),
        }
        for event in manager.events[before:]
    ]
)


# %%
Picture(filmstrip(film.frames, film.draw, size=(2.6, 1.9)), "the pool after each step: who holds which block")

# %%
player(film.frames, film.draw, size=(4, 2.6))

# %% [markdown]
# When request 1 ended, P0 and P3 stayed: others held them. They go back on the free stack when their *last* holder ends.
#
# Does every request still read what it wrote? That is the test that matters: a manager can keep perfect books and still
# give two requests one slot to write in.

# %%
for seq, (k, v) in written.items():
    got_k, got_v = kv.gather(seq)
    np.testing.assert_array_equal(got_k, k)
    np.testing.assert_array_equal(got_v, v)
Prose(f"Requests {', '.join(written)} read back exactly what they wrote.")

# %% [markdown]
# ## Attention through the table, and what a copy costs
#
# There are two ways to attend to a paged cache. *Stage A* gathers a sequence's blocks to a contiguous copy and runs
# ordinary attention on it. *Stage B* walks the table and folds each block into a running softmax, in place. Both give
# the same answer, and differ in what they move.
#
# A GPU keeps large arrays in its main memory, *HBM*, and computes on chip, where some hundred kilobytes fit. The machine
# here works likewise, and writes every byte that goes to or from HBM in a *ledger*. Stage A reads the blocks, writes the
# copy, and reads the copy.

# %%
big = BlockManager(64, 16, free_order=rng.permutation(64))
cache = PagedKV(big, layers=1, num_kv_heads=2, head_dim=64)
lengths = {"short": 33, "long": 700}
for seq, n in lengths.items():
    big.allocate(seq, n)
    cache.write(cache.slot_mapping(seq, 0, n), *rng.standard_normal((2, n, 2, 64), dtype=np.float32))

q = rng.standard_normal((2, 8, 64), dtype=np.float32)  # one query a sequence; four query heads read each KV head
k_pool, v_pool = cache.pools()
call = (q, k_pool, v_pool, cache.block_tables(list(lengths)), cache.seq_lens(list(lengths)))
stage_a, stage_b = attention.paged_gather(*call), attention.paged(*call)
out, lse = oracle.paged(*call)
for result in (stage_a, stage_b):
    np.testing.assert_allclose(result.out, out, atol=1e-5)
    np.testing.assert_allclose(result.lse, lse, atol=1e-5)
Picture(
    charts.traffic_by_algorithm({"stage A: gather, then attend": stage_a.ledger, "stage B: in place": stage_b.ledger}),
    "bytes through HBM of stage A and stage B",
)

# %%
kv_nbytes = sum(lengths.values()) * 2 * 2 * 64 * 4
gathered = sum(stage_a.ledger.total(kernel="gather", tensor=t) for t in ("k", "v", "k_cache", "v_cache"))
assert gathered == 2 * kv_nbytes
assert sum(stage_a.ledger.total(kernel="flash", tensor=t) for t in ("k", "v")) == kv_nbytes
read_in_place = sum(stage_b.ledger.total(tensor=t) for t in ("k_cache", "v_cache"))
assert read_in_place == kv_nbytes
metadata = [
    sum(result.ledger.total(tensor=t) for t in ("block_tables", "seq_lens", "cu_seqlens_k"))
    for result in (stage_a, stage_b)
]
Prose(f"""K and V of both sequences are {kv_nbytes:,} bytes. Stage B reads them once. Stage A reads its copy once, too,
and to make the copy moves {gathered:,} bytes more. Both read tables and lengths to know where to look:
{metadata[0]:,} bytes in stage A, {metadata[1]:,} in stage B.""")

# %% [markdown]
# ## What is not read can't hurt
#
# The cache above is *poisoned*: every slot that no token was written to holds NaN, and the tail of the table is -1. A
# kernel that reads one slot too many, or multiplies a hidden value by a weight of zero, would give NaN.

# %%
poisoned = int(np.isnan(k_pool).all(axis=(2, 3)).sum())
assert poisoned == 64 * 16 - sum(lengths.values())
assert np.isfinite([stage_a.out, stage_b.out]).all()
absurd = call[3].copy()
assert (absurd == -1).any()
absurd[absurd < 0] = 2147480000  # padding may be anything
np.testing.assert_array_equal(attention.paged(*call[:3], absurd, call[4]).out, stage_b.out)

try:
    cache.write(np.array([75849]), *np.zeros((2, 1, 2, 64), np.float32))
except ValueError as error:
    refused = str(error)
Prose(f"{poisoned:,} slots of NaN, and no NaN in the answer. Writing out of range is refused: *{refused}*")

# %% [markdown]
# ## Predict, then run
#
# A sequence of six tokens in blocks of four forks twice, so that three sequences hold the same two blocks. Then each of
# the three appends one token. How many blocks does the pool hand out for that? Write your number down first.

# %%
prediction = None

# %%
m = BlockManager(16, 4)
m.allocate("a", 6)
m.fork("a", "b")
m.fork("a", "c")
free_before = m.pool.free
for seq in "abc":
    m.append(seq, 1)
outcome = free_before - m.pool.free
assert outcome == 2
verdict(prediction, outcome)

# %% [markdown]
# <details><summary>Why?</summary>
#
# The first writer finds references besides its own on the tail, takes a block and copies. So does the second. When the
# third writes, nobody else holds the old tail any more, and it writes in place. Full blocks are never written again, so
# they stay shared for good.
#
# </details>
#
# Next: [2. Online softmax](02_online_softmax.ipynb), which is how stage B folds one block after another.
