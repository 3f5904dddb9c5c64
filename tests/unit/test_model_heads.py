"""Projection, head split and the grouped map."""

import numpy as np
import pytest

from refsim import oracle
from refsim.model import heads


def test_neighbouring_query_heads_share_a_kv_head():
    assert heads.kv_head_of(8, 2).tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    # 64 query heads over 8 KV heads: heads 0 to 7 read KV head 0, and so on.
    assert heads.kv_head_of(64, 8).tolist() == [h // 8 for h in range(64)]
    assert heads.kv_head_of(4, 4).tolist() == [0, 1, 2, 3]
    assert heads.kv_head_of(4, 1).tolist() == [0, 0, 0, 0]


def test_the_map_is_the_one_that_attention_uses():
    """With as many values as KV heads, each query head's output names the KV head it read."""
    v = np.arange(2.0).reshape(1, 2, 1)
    out, _ = oracle.attention(np.ones((1, 8, 1)), np.ones((1, 2, 1)), v)
    assert out.ravel().tolist() == heads.kv_head_of(8, 2).tolist()


def test_split_and_merge_are_inverse_and_keep_heads_together():
    x = np.arange(2 * 6).reshape(2, 6)
    split = heads.split_heads(x, 3)
    assert split.shape == (2, 3, 2)
    assert split[1, 2].tolist() == [10, 11]
    np.testing.assert_array_equal(heads.merge_heads(split), x)


@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(4, 4), (6, 2), (4, 1)])
def test_multi_head_attention_is_the_papers_formula(num_heads, num_kv_heads):
    rng = np.random.default_rng(num_kv_heads)
    n, dim, d = 5, 7, 3
    x = rng.standard_normal((n, dim))
    wq, wo = rng.standard_normal((dim, num_heads * d)), rng.standard_normal((num_heads * d, dim))
    wk, wv = rng.standard_normal((2, dim, num_kv_heads * d))
    found = heads.multi_head_attention(x, wq, wk, wv, wo, num_heads, num_kv_heads, oracle.attention, causal=True)

    concat = []
    for h in range(num_heads):
        g = h // (num_heads // num_kv_heads)
        q, k, v = (x @ w[:, i * d : (i + 1) * d] for w, i in ((wq, h), (wk, g), (wv, g)))
        s = np.where(np.tri(n, dtype=bool), q @ k.T / np.sqrt(d), -np.inf)
        p = np.exp(s)
        concat.append(p / p.sum(axis=1, keepdims=True) @ v)
    np.testing.assert_allclose(found, np.concatenate(concat, axis=1) @ wo, rtol=1e-10)


@pytest.mark.parametrize("counts", [(8, 3), (2, 4), (0, 1), (4, 0), (4, -1)])
def test_head_counts_that_do_not_divide_are_refused(counts):
    with pytest.raises(ValueError, match=f"{counts[0]} query heads and {counts[1]} KV heads"):
        heads.kv_head_of(*counts)


def test_a_width_that_does_not_divide_is_refused():
    with pytest.raises(ValueError, match="7 numbers a token cannot be cut in 2 heads"):
        heads.split_heads(np.zeros((1, 7)), 2)
