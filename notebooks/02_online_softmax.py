# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 2. Online softmax, block by block
#
# A query's *score* with a key is their inner product, divided by $\sqrt{D}$ for vectors of $D$ numbers. Attention answers
# with a mean of the values, weighed by the softmax of the scores: $\sum_j e^{s_j} v_j / \sum_j e^{s_j}$. That seems to
# need *all* scores at once: their maximum, so that no exponential overflows, and the sum, to divide by. Online softmax
# takes the scores a block at a time and ends with the same answer. It is what lets FlashAttention keep the score matrix
# out of memory, and what lets a paged cache be read one block after another.

# %%
import itertools

import numpy as np

from refsim import SramOverflow, attention, charts, mistakes, oracle, softmax
from refsim.charts.filmstrip import draw_softmax_frame, filmstrip, softmax_frames
from refsim.notebook import Picture, Prose, player, table, verdict
from refsim.numerics import unit_roundoff

# %% [markdown]
# ## The state
#
# For the keys seen so far, keep three things: $m$, the largest score; $l = \sum_j e^{s_j - m}$; and
# $o = \sum_j e^{s_j - m} v_j$. The answer is $o / l$. A block of new keys changes them like this:
#
# $$ m' = \max(m, \max_j s_j) \qquad
#    l' = e^{m - m'}\, l + \sum_j e^{s_j - m'} \qquad
#    o' = e^{m - m'}\, o + \sum_j e^{s_j - m'} v_j $$
#
# The factor $e^{m - m'}$ makes the old sums *fade* when a larger score turns up. Before the first key the state is
# $(-\infty, 0, 0)$. Two blocks by hand, and the same with `softmax.absorb`:

# %%
s = np.array([1.0, 3.0, 2.0, 5.0])
v = np.array([10.0, 20.0, 30.0, 40.0])

m1 = s[:2].max()
l1, o1 = np.exp(s[:2] - m1).sum(), np.exp(s[:2] - m1) @ v[:2]
m2 = max(m1, s[2:].max())
fade = np.exp(m1 - m2)
l2, o2 = fade * l1 + np.exp(s[2:] - m2).sum(), fade * o1 + np.exp(s[2:] - m2) @ v[2:]

state = softmax.empty(1, head_dim=1)
for block in (slice(0, 2), slice(2, 4)):
    state = softmax.absorb(state, s[None, block], v[block, None])
np.testing.assert_allclose([x.item() for x in state], [m2, l2, o2])
direct = np.exp(s) @ v / np.exp(s).sum()
assert np.isclose(o2 / l2, direct)

table(
    [
        {"after": "keys 0 and 1", "m": m1, "l": f"{l1:.4f}", "o": f"{o1:.3f}", "o / l": f"{o1 / l1:.3f}"},
        {"after": "all four", "m": m2, "l": f"{l2:.4f}", "o": f"{o2:.3f}", "o / l": f"{o2 / l2:.3f}"},
    ]
)

# %%
Prose(f"""When the score {s[3]:g} arrives, the maximum rises from {m1:g} to {m2:g} and everything before fades to
$e^{{{m1 - m2:g}}} = {fade:.4f}$ of its weight. Softmax over all four at once: {direct:.3f}.""")

# %% [markdown]
# ## Merging
#
# Two states $a$ and $b$ over different keys merge by the same rule: both fade to the larger of their maxima.
#
# $$ m' = \max(m_a, m_b) \qquad
#    l' = e^{m_a - m'}\, l_a + e^{m_b - m'}\, l_b \qquad
#    o' = e^{m_a - m'}\, o_a + e^{m_b - m'}\, o_b $$
#
# It doesn't matter who made them, or in what order: merging is commutative and associative, and the empty state is its
# identity. That is what makes it safe to share the keys out among programs, which the next notebook does. Try every
# order and every way to put brackets:

# %%
rng = np.random.default_rng(0)
scores, values = 3 * rng.standard_normal((1, 12)), rng.standard_normal((12, 2))
parts = [
    softmax.absorb(softmax.empty(1, head_dim=2), scores[:, at], values[at])
    for at in (slice(0, 3), slice(3, 4), slice(4, 12))
]
parts.append(softmax.empty(1, head_dim=2))  # somebody who got no key at all


def trees(states):
    """Every result of merging these states, in every order and with every bracketing."""
    if len(states) == 1:
        yield states[0]
    for i, j in itertools.permutations(range(len(states)), 2):
        rest = [states[n] for n in range(len(states)) if n not in (i, j)]
        yield from trees([*rest, softmax.merge_states(states[i], states[j])])


answers = np.array([softmax.finish(tree)[0][0] for tree in trees(parts)])
weights = np.exp(scores[0]) / np.exp(scores[0]).sum()
spread = abs(answers - weights @ values).max()
assert spread < 1e-15 * 8
Prose(f"{len(answers)} ways to merge, and the largest difference from one softmax over all keys is {spread:.1e}.")

# %% [markdown]
# **The trap.** The empty state holds $m = -\infty$, and $(-\infty) - (-\infty)$ is NaN. A row with nothing to see is
# common: a causal mask with more queries than keys, padding, a split beyond the end. The remedy is to shift by a finite
# number where $m'$ is $-\infty$; no branch is needed.

# %%
nothing = softmax.empty(1, head_dim=1)
with np.errstate(invalid="ignore"):
    naive = np.exp(nothing.m - np.maximum(nothing.m, nothing.m)) * nothing.l
ours = softmax.merge_states(nothing, nothing)
out, lse = softmax.finish(ours)
assert np.isnan(naive).all()
assert (ours.m.item(), ours.l.item(), out.item(), lse.item()) == (-np.inf, 0, 0, -np.inf)
Prose(
    f"By the formula as it stands, two empty sums merge to {naive.item()}. Here they merge to m = {ours.m.item()}, "
    f"l = {ours.l.item():g}, and finish as out {out.item():g} with LSE {lse.item()}."
)

# %% [markdown]
# ## Watching it run
#
# `attention.flash` is written once, as steps on a machine that counts bytes. Calling it gives the answer; `.steps` walks
# it. Here one query looks at 24 keys in tiles of 4, and each frame shows what every key seen so far weighs:
# $e^{s_j - m}$, so that the largest is 1. Keys of the new tile are orange, older ones blue, and those to come a dot. Watch
# the blue bars shrink whenever an orange one sets a new maximum.

# %%
q = 1.5 * rng.standard_normal((1, 1, 8))
k, v = rng.standard_normal((24, 1, 8)), rng.standard_normal((24, 1, 3))
order = np.argsort((k[:, 0] @ q[0, 0]) + 4.0 * rng.standard_normal(24))  # rising on the whole, with steps back
k, v = k[order], v[order]

walk = attention.flash.steps(q, k, v, tile=(1, 4))
steps = list(walk)
frames = softmax_frames(steps)
assert len(frames) == 24 // 4 + 1  # a frame a tile, and the write
Picture(
    filmstrip(frames, draw_softmax_frame), "weights of the keys after each tile: old ones fade as the maximum rises"
)

# %%
player(frames, draw_softmax_frame)

# %% [markdown]
# The last frame divides by $l$: the weights are shares of 1 now. Beside the answer the kernel writes one number a row,
# the log-sum-exp, $\mathrm{LSE} = m + \ln l$. Where $m$ jumps, $\ln l$ may fall back, but their sum only grows:

# %%
l = [frame.l for frame in frames if frame.name == "absorb"]
lses = [frame.lse for frame in frames if frame.name == "absorb"]
assert min(np.diff(l)) < 0 < min(np.diff(lses))
ax = charts.softmax_walk(steps)
ax.set_xticks(range(0, 25, 4))
Picture(ax, "m, ln l and their sum over the keys seen")

# %%
out, lse = oracle.attention(q, k, v)
np.testing.assert_allclose(walk.result.out, out, atol=1e-12)
np.testing.assert_allclose(walk.result.lse, lse, atol=1e-12)
step = steps[2]
table(
    [
        {
            "step": f"{step.name}, keys {step.index['first_key']} to {step.index['stop_key'] - 1}",
            "source": f"`{step.line.split(':')[0]}`",  # its line is in step.line, too
            "bytes from HBM": step.delta.hbm_nbytes,
            "matrix FLOPs": step.delta.matmul_flops,
            "exponentials": step.delta.exponentials,
        }
        for step in steps[:3]
    ]
)

# %%
tile_nbytes = 4 * (8 + 3) * 8  # keys x (head_dim + value head_dim) x float64
assert steps[1].delta.hbm_nbytes == tile_nbytes
assert steps[0].delta.hbm_nbytes == tile_nbytes + 8 * 8  # and the query, once
assert steps[1].delta.exponentials == 4 + 1  # one a key, one for the fade
Prose(f"""A step reads {tile_nbytes} bytes, its tile of keys and values, and nothing else; the first reads the query, too.
It takes {steps[1].delta.exponentials} exponentials: one a key, and one for the fade.""")

# %% [markdown]
# ## What it saves
#
# Standard attention writes the matrix of scores, S, to HBM, reads it back for the softmax, writes the weights, P, and
# reads those. With $n$ tokens that is $4 n^2$ numbers a head, while $Q$, $K$, $V$ and the answer have $n$ times the head
# size each.

# %%
n, D = 512, 64
x = [rng.standard_normal((n, 1, D), dtype=np.float32) for _ in range(3)]
standard, flash = attention.standard(*x), attention.flash(*x)
np.testing.assert_allclose(standard.out, flash.out, atol=1e-5)
Picture(
    charts.traffic_by_algorithm({"standard": standard.ledger, "flash": flash.ledger}),
    "bytes through HBM of standard attention and FlashAttention",
)

# %%
s_and_p = sum(standard.ledger.total(tensor=t) for t in "sp")
assert s_and_p == 4 * n * n * 4
assert flash.ledger.total(tensor="s") == flash.ledger.total(tensor="p") == 0
Prose(f"""At {n} tokens of {D} numbers, one head, S and P account for {s_and_p:,} of standard attention's
{standard.ledger.hbm_nbytes:,} bytes. FlashAttention moves {flash.ledger.hbm_nbytes:,} in all,
{standard.ledger.hbm_nbytes / flash.ledger.hbm_nbytes:.1f} times fewer. Their answers differ by
{abs(standard.out - flash.out).max():.0e} at most: the sums are the same, taken in another order.""")

# %% [markdown]
# How large may such a difference be before it is a bug? Rounding in float32 has a size of its own, and the number of
# tiles hardly matters:

# %%
exact, _ = oracle.attention(*x)
errors = {Bc: abs(attention.flash(*x, tile=(64, Bc)).out - exact).max() for Bc in (4, 16, 64, 128)}
u = unit_roundoff("float32")
assert max(errors.values()) < 16 * u
table([{"keys a tile": Bc, "largest error": f"{e:.1e}"} for Bc, e in errors.items()])

# %%
Prose(f"""A float32 is rounded by up to {u:.1e} of its size. The answers are of size {abs(exact).max():.1f} and less, sums of {n} terms;
with any of these tiles they are off by less than 16 such roundings.""")

# %% [markdown]
# So why not one large tile? Because a *program* (what a GPU calls a thread block: here, one tile of queries that walks all
# keys) must hold its tiles of $q$, $k$, $v$ and of the scores on chip together, and the machine holds algorithms to
# that. Its answer to a tile that is too large names every buffer, in bytes:

# %%
try:
    attention.flash(*x, tile=(64, 256))
except SramOverflow as error:
    too_large = str(error)
Prose(f"> {too_large}")

# %% [markdown]
# ## A mistake that texts make
#
# Some texts take the new block's weights against the block's *own* maximum, $e^{s_j - m_b}$, and then add $P V$ as it is.
# The factor $e^{m_b - m'}$ is missing. The mistake hides well: as long as every block brings a new maximum, the factor
# is 1.

# %%
s = np.array([0.0, 1.0, 2.0, 3.0])
v = np.array([[1.0], [2.0], [3.0], [4.0]])
rising = mistakes.merge_without_the_blocks_factor(s, v, block=2)
falling = mistakes.merge_without_the_blocks_factor(s[::-1], v[::-1], block=2)
np.testing.assert_allclose(rising.wrong, rising.right)
assert abs(falling.wrong - falling.right) > 0.5
table(
    [
        {"scores": name, "without the factor": f"{x.wrong.item():.4f}", "right": f"{x.right.item():.4f}"}
        for name, x in (("rising", rising), ("falling", falling))
    ]
)

# %% [markdown]
# The keys and values are the same in both rows, only their order differs. Attention doesn't know an order: an answer
# that depends on it is wrong. Here it is not even an average any more:

# %%
assert falling.wrong.item() > v.max()
Prose(f"{falling.wrong.item():.4f} is larger than the largest value, {v.max():g}.")

# %% [markdown]
# ## Predict, then run
#
# 64 keys are absorbed in blocks of 8. In how many of the blocks do old sums fade, because the new block raises a maximum
# that an earlier one had set? Write down three numbers: if the scores are sorted so that they *fall*, if they *rise*,
# and, on average, if their order is *random*. The cell takes the one for rising scores.

# %%
prediction = None


# %%
def fades(scores, block=8):
    walk = softmax_frames(
        attention.flash.steps(np.ones((1, 1, 1)), scores[:, None, None], scores[:, None, None], tile=(1, block))
    )
    maxima = [frame.m for frame in walk if frame.name == "absorb"]
    return sum(a < b for a, b in itertools.pairwise(maxima))


rising = np.sort(rng.standard_normal(64))
outcome, fallen = fades(rising), fades(rising[::-1].copy())
orders = rng.permuted(np.tile(rising, (10_000, 1)), axis=1)
maxima = np.maximum.accumulate(orders.reshape(-1, 8, 8).max(axis=2), axis=1)  # (orders, blocks): m after each block
shuffled = (np.diff(maxima, axis=1) > 0).sum(axis=1)
assert shuffled[0] == fades(orders[0])
chance = sum(1 / b for b in range(2, 9))
assert (outcome, fallen) == (7, 0)
assert abs(shuffled.mean() - chance) < 0.05
verdict(prediction, outcome)

# %%
Prose(f"""<details><summary>Why?</summary>

When the scores rise, each block but the first sets a new maximum: **{outcome}**. When they fall, the first block holds the
largest score of all, and nothing ever fades: **{fallen}**. In random order, block $b$ holds the largest score of the first
$b$ blocks with probability $1/b$, so it is $1/2 + 1/3 + … + 1/8 = {chance:.2f}$ on average; {len(orders):,} shuffles gave
**{shuffled.mean():.2f}**. The longer the sequence, the rarer a fade that changes anything. The work is the same all the
while: the fade is computed and multiplied in for every block, be it 1 or not.

</details>""")

# %% [markdown]
# Next: [3. Split-KV](03_split_kv.ipynb), where many programs make such states side by side.
