# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 3. Split-KV and the LSE reduction
#
# While a model generates, each sequence has *one* query a step and a long row of keys. FlashAttention shares work out by
# query tiles and heads, and with one query there is little to share: a few programs walk all keys while the rest of the
# GPU idles. Split-KV (flash-decoding) cuts the *keys* into parts, gives each to a program, and lets a second kernel
# reduce the partial answers. What a part must hand over for that, and what the parts gain, is the subject here.

# %%
import numpy as np

from refsim import attention, charts, cost, mistakes, oracle, softmax
from refsim.charts.filmstrip import draw_softmax_frame, filmstrip, softmax_frames
from refsim.notebook import Picture, Prose, player, table, verdict

rng = np.random.default_rng(0)
H, G, D, T = 8, 2, 64, 4096
q = rng.standard_normal((1, H, D), dtype=np.float32)
k, v = rng.standard_normal((2, T, G, D), dtype=np.float32)
out, lse = oracle.attention(q, k, v)

rows = []
for num_splits in (1, 4, 16, 64):
    result = attention.split_kv(q, k, v, num_splits=num_splits)
    np.testing.assert_allclose(result.out, out, atol=1e-6)
    np.testing.assert_allclose(result.lse, lse, atol=1e-5)
    rows.append(
        {
            "splits": num_splits,
            "programs that read keys": result.ledger.work["split_kv"].programs,
            "bytes of K and V": result.ledger.total(tensor="k") + result.ledger.total(tensor="v"),
            "bytes handed over": sum(result.ledger.total(tensor=t) for t in ("o_partial", "lse_partial")),
        }
    )
table(rows)

# %%
assert [row["programs that read keys"] for row in rows] == [G * row["splits"] for row in rows]
assert len({row["bytes of K and V"] for row in rows}) == 1
Prose(f"""One token, {T:,} keys, {H} query heads on {G} KV heads. Without splitting, {rows[0]["programs that read keys"]} programs
do everything. With {rows[-1]["splits"]} splits there are {rows[-1]["programs that read keys"]}, each key is still read once, and
the price is what the parts write for the reduction and the reduction reads back.""")

# %% [markdown]
# ## Watching it run
#
# A small case: one query, 24 keys, three splits, tiles of four keys. Each split starts from the empty state and measures
# against its *own* maximum. Then it hands over its answer and one number, its log-sum-exp. The reduction weighs the
# parts; in the last frame the bars are the softmax over all 24 keys.

# %%
small_q = 1.5 * rng.standard_normal((1, 1, 8))
small_k, small_v = rng.standard_normal((24, 1, 8)), rng.standard_normal((24, 1, 3))
walk = attention.split_kv.steps(small_q, small_k, small_v, num_splits=3, tile=(1, 4))
steps = list(walk)
frames = softmax_frames(steps)
assert len(frames) == 24 // 4 + 3 + 1  # a frame a tile, one a handover, and the reduction
Picture(filmstrip(frames, draw_softmax_frame), "each split's weights against its own maximum, and the reduced weights")

# %%
player(frames, draw_softmax_frame)

# %% [markdown]
# ## The reduction
#
# Part $i$ hands over $O_i$, its own finished answer, and $\mathrm{LSE}_i = m_i + \ln l_i$, the logarithm of its sum of
# exponentials. Then
#
# $$ \mathrm{LSE} = \ln \sum_i e^{\mathrm{LSE}_i} \qquad w_i = e^{\mathrm{LSE}_i - \mathrm{LSE}} \qquad O = \sum_i w_i O_i $$
#
# The weights sum to 1. Here are the three parts of the walk above, reduced by hand:

# %%
parts = [step for step in steps if step.name == "hand over"]
outs = np.array([step.after["o_partial"][0, 0, 0] for step in parts])
lses = np.array([step.after["lse_partial"][0, 0, 0] for step in parts])
total = np.logaddexp.reduce(lses)
w = np.exp(lses - total)
np.testing.assert_allclose(w @ outs, walk.result.out[0, 0])
np.testing.assert_allclose(w.sum(), 1)
table(
    [
        {"split": i, "LSE": f"{lse_i:.3f}", "weight": f"{w_i:.3f}", "its answer": np.array2string(o_i, precision=3)}
        for i, (lse_i, w_i, o_i) in enumerate(zip(lses, w, outs, strict=True))
    ]
)

# %% [markdown]
# ## Overflow, shown
#
# Nothing above computes $e^{s}$ of a score as it is. One score of 120 is enough to see why. The table takes a single key
# with that score; the answer should be its value, 1. *Naive* divides $e^s v$ by $e^s$. The others keep $(m, l)$, or the LSE.

# %%
score = 120.0
overflow = mistakes.overflow_table(score)
table(
    [
        {
            "type": row.dtype,
            "largest number": f"{row.largest:.4g}",
            "e^120": f"{row.naive_sum:.4g}",
            "naive answer": f"{row.naive:g}",
            "m, l": f"{row.m:g}, {row.l:g}",
            "answer by (m, l)": f"{row.by_state:g}",
            "LSE": f"{row.lse:g}",
            "answer by LSE": f"{row.by_lse:g}",
        }
        for row in overflow
    ]
)

# %%
by_type = {row.dtype: row for row in overflow}
assert all(np.isinf(by_type[t].naive_sum) for t in ("float16", "bfloat16", "float32"))
assert all(row.by_state == row.by_lse == 1 for row in overflow)
assert np.isclose(by_type["float64"].naive_sum, 1.304e52, rtol=1e-3)
Prose(f"""$e^{{{score:g}}}$ is {by_type["float64"].naive_sum:.3e}. It overflows float16, whose largest number is
{by_type["float16"].largest:,.0f}, and bfloat16 and float32 as well, whose largest is about {by_type["float32"].largest:.1e}. Only
float64 holds it. The LSE of the row is just {by_type["float32"].lse:g}.

**A mistake that texts make** is to credit the LSE with this. Subtracting the maximum is what prevents the overflow, and
$(m, l)$ is every bit as safe, as the table says. What the LSE buys is one number fewer, and a reduction that needn't
know $m$.""")

# %% [markdown]
# The same on real attention. Scores around 120, in float32; a naive reduction adds up the exponentials of the LSEs:

# %%
hot_q = np.full((1, 1, 4), 60.0, np.float32)
hot_k = 1 + 0.02 * rng.standard_normal((64, 1, 4)).astype(np.float32)  # scores near 4 * 60 / 2
hot_v = rng.standard_normal((64, 1, 2), dtype=np.float32)
hot = list(attention.split_kv.steps(hot_q, hot_k, hot_v, num_splits=4))
hot_lses = np.array([step.after["lse_partial"].item() for step in hot if step.name == "hand over"], np.float32)
hot_outs = np.array([step.after["o_partial"][0, 0, 0] for step in hot if step.name == "hand over"])
with np.errstate(over="ignore", invalid="ignore"):
    weights = np.exp(hot_lses)
    naive = weights @ hot_outs / weights.sum()
exact = oracle.attention(hot_q, hot_k, hot_v)[0][0, 0]
reduced = softmax.reduce(hot_outs[:, None, None], hot_lses[:, None, None])[0][0, 0]
assert np.isnan(naive).all()
np.testing.assert_allclose(reduced, exact, atol=1e-4)
Prose(f"""LSEs of the parts: {", ".join(f"{x:.1f}" for x in hot_lses)}. Naive reduction: **{naive}**. LSE reduction:
**{reduced.round(4)}**, and the exact answer is {exact.round(4)}.""")

# %% [markdown]
# ## What the handover costs
#
# A part may hand over $(m, l, \mathrm{acc})$, where acc is not yet divided, or $(\mathrm{LSE}, O)$. That is $D_v + 2$ numbers
# for each split, row and head against $D_v + 1$. Both are built; the ledger counts them.

# %%
Dv, splits = 128, 4
saving = mistakes.saving_of_the_lse_handover(Dv, num_splits=splits)
assert (saving.state_nbytes, saving.lse_nbytes) == (splits * (Dv + 2) * 8, splits * (Dv + 1) * 8)  # float64
assert saving.of_scalars == 0.5
assert np.isclose(saving.of_traffic, 1 / 130)
table(
    [
        {"handover": "m, l, acc", "numbers a split": Dv + 2, "bytes written": saving.state_nbytes},
        {"handover": "LSE, O", "numbers a split": Dv + 1, "bytes written": saving.lse_nbytes},
    ]
)

# %%
Prose(f"""**A mistake that texts make** is to say that the LSE halves the traffic. It halves the *scalars*, by
{saving.of_scalars:.0%}. All that a part hands over shrinks by 1/{1 / saving.of_traffic:.0f}, which is {saving.of_traffic:.2%}.""")

# %% [markdown]
# ## The largest LSE is not the global LSE
#
# **A third mistake** is to call $\max_i \mathrm{LSE}_i$ the global LSE, and to weigh by $e^{\mathrm{LSE}_i - \max}$ without
# dividing by the sum of these weights. The maximum is a fine shift against overflow, but the weights don't sum to 1.

# %%
compared = mistakes.largest_lse_as_the_global_one(outs, lses)
undivided = np.exp(lses - lses.max()).sum()
np.testing.assert_allclose(compared.wrong, undivided * compared.right)
assert undivided > 1
Prose(f"""The weights sum to {undivided:.3f}, and every output is {undivided:.3f} times too large: {compared.wrong.round(3)}
in place of {compared.right.round(3)}.""")

# %% [markdown]
# ## Parts with nothing in them
#
# The number of splits is often fixed while sequences are short, so some parts get no key. Such a part hands over
# $O_i = 0$ and $\mathrm{LSE}_i = -\infty$: the identity of the reduction, weight zero.

# %%
few = 5
short = list(attention.split_kv.steps(small_q, small_k[:few], small_v[:few], num_splits=8))
handed = [(step.index["split"], step.after["lse_partial"].item()) for step in short if step.name == "hand over"]
empty = [split for split, value in handed if value == -np.inf]
whole = attention.flash(small_q, small_k[:few], small_v[:few])
np.testing.assert_allclose(short[-1].after["out"][0, 0], whole.out[0], atol=1e-12)
assert len(handed) == 8
assert len(empty) == 8 - few
Prose(
    f"{few} keys in {len(handed)} splits leave splits {', '.join(map(str, empty))} empty. The answer is that of one program."
)

# %% [markdown]
# Two more ways to go wrong, both seen in production code. An empty part's *values* may be anything, NaN too, if nobody
# wrote them. A weight of zero must then select, not multiply, since $0 \cdot \mathrm{NaN}$ is NaN:

# %%
garbage = np.array([np.nan, 5.0]).reshape(2, 1, 1, 1)
garbage_lse = np.array([-np.inf, 2.0]).reshape(2, 1, 1)
merged, merged_lse = softmax.reduce(garbage, garbage_lse)
multiplied = np.exp(garbage_lse - 2.0).ravel() @ garbage.ravel()
assert (merged.item(), merged_lse.item()) == (5, 2)
assert np.isnan(multiplied)
Prose(f"Multiplied: {multiplied}. Selected: {merged.item():g}.")

# %% [markdown]
# And some libraries report the LSE in base 2, or +inf for an empty row. refsim's LSEs are natural logarithms and −inf.
# A base-2 LSE fed into a natural reduction gives a plausible, wrong answer; +inf is refused.

# %%
one, zero = np.ones((1, 1, 1)), np.zeros((1, 1, 1))


def merge(lse_a, lse_b):
    return softmax.merge(one, np.array([[lse_a]]), zero, np.array([[lse_b]]))[0].item()


natural, mixed_up = merge(4.0, 2.0), merge(4.0 / np.log(2), 2.0 / np.log(2))
assert round(natural, 4) == 0.8808
assert round(mixed_up, 4) == 0.9471
try:
    merge(np.inf, 2.0)
except ValueError as error:
    refused = str(error)
Prose(f"""Values 1 and 0 with LSEs 4 and 2 merge to **{natural:.4f}**. With the same LSEs in base 2: **{mixed_up:.4f}**. If you see
that ratio, look at the base.

> {refused}""")

# %% [markdown]
# ## How many splits?
#
# More splits feed more programs, and hand over more. The keys are read once whatever the number; the query is read once
# a split, and each split's answer is written and read back:

# %%
ledgers = {
    f"{n} splits" if n > 1 else "1 split": attention.split_kv(q, k[:1024], v[:1024], num_splits=n).ledger
    for n in (1, 8, 32, 128)
}
Picture(
    charts.traffic_by_algorithm(ledgers), "bytes through HBM by number of splits: the same keys, and a growing handover"
)

# %% [markdown]
# What does it buy? Time, as long as part of the GPU has nothing to do. The cost model gives every multiprocessor an even
# share of HBM's bandwidth, and lets it run one program after another; it calls a round of them a *wave*. Eight query
# heads on two KV heads as above, but 131,072 keys in float16, on an A100:

# %%
for n, ledger in zip((1, 8, 32, 128), ledgers.values(), strict=True):
    assert ledger.total(tensor="q") == n * q.nbytes
    assert ledger.total(tensor="k") == k[:1024].nbytes
    assert ledger.total(tensor="o_partial") == 2 * n * q.nbytes  # written and read back

device = cost.devices.get("A100-80")
plan = attention.Plan.of([(1, 131072)], H=H, G=G, D=D, dtype="float16", tile=(H // G, 64), packed=True)
times = {}
for n in (1, 4, 16, 54, 64, 256, 1024):
    ledger = cost.closed_form.split_kv(plan, num_splits=n)
    times[n] = cost.estimate(ledger, device), ledger.hbm_nbytes
table(
    [
        {
            "splits": n,
            "programs": time.kernels[0].programs,
            "waves": time.kernels[0].waves,
            "bytes through HBM": nbytes,
            "microseconds": f"{1e6 * time.total_s:.0f}",
        }
        for n, (time, nbytes) in times.items()
    ]
)

# %%
best = min(times, key=lambda n: times[n][0].total_s)
seconds = {n: time.total_s for n, (time, _) in times.items()}
assert best * G == device.multiprocessors
assert times[64][0].kernels[0].waves == 2
assert seconds[54] < seconds[64] < seconds[1024]
Prose(f"""The A100 has {device.multiprocessors} multiprocessors. {best} splits make a program for each of them, and take
{seconds[1] / seconds[best]:.0f} times less time than one split, though they move more bytes. With 64 splits there are
{64 * G} programs: all wait for a second wave of {64 * G - device.multiprocessors}. With many more, the handover tells.
It is a plain model; [what a call costs](../docs/cost.md) says what it assumes and leaves out.""")

# %% [markdown]
# ## Predict, then run
#
# One query with one head, a value head size of 64, float32. Eight splits hand over $(\mathrm{LSE}, O)$. How many bytes do
# the *splits* write to memory?

# %%
prediction = None

# %%
x = rng.standard_normal((1000, 1, 64), dtype=np.float32)
outcome = attention.split_kv(x[:1], x, x, num_splits=8).ledger.total(kernel="split_kv", direction="write")
assert outcome == 8 * (64 + 1) * 4
verdict(prediction, outcome)

# %% [markdown]
# <details><summary>Why?</summary>
#
# Each split writes its answer and its LSE, one number more than the value head size, in the type in which sums are kept.
# The number of keys doesn't enter.
#
# </details>
#
# These three ideas, block tables, the online softmax and the LSE reduction, carry all the rest. `refsim step split_kv`
# walks the same steps in a terminal; [the documentation](../docs/README.md) leads on from here.
