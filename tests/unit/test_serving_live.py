"""Real values: whatever the cache does among requests, each output is what the request gives alone."""

import numpy as np
import pytest

from refsim import model
from refsim.serving import Request
from refsim.serving.live import LiveRequest, alone, ids_of_trace, run_live


@pytest.fixture(scope="module")
def decoder() -> model.Decoder:
    # Tied embeddings of random weights repeat the last token whatever the cache holds: they would prove nothing.
    return model.random_decoder(seed=3, num_layers=2)


def prompts(count: int, shared: int, own: int) -> list[tuple[int, ...]]:
    rng = np.random.default_rng(9)
    common = rng.integers(0, 256, shared).tolist()
    return [(*common, *rng.integers(0, 256, own).tolist()) for _ in range(count)]


def test_each_token_of_a_prompt_matters_to_its_output(decoder) -> None:
    """What the tests below rest on: an output that ignored part of the cache would hide any mistake in it."""
    prompt = prompts(1, 10, 5)[0]
    before = alone(decoder, LiveRequest(prompt, 12))
    assert len(set(before)) > 6
    for i in range(len(prompt)):
        other = (*prompt[:i], (prompt[i] + 1) % 256, *prompt[i + 1 :])
        assert alone(decoder, LiveRequest(other, 12)) != before, f"token {i}"


def check(decoder: model.Decoder, wants: list[LiveRequest], **run):
    result = run_live(decoder, wants, **run)
    assert len(result.ids) == sum(w.samples for w in wants)
    for (request, sample), ids in result.ids.items():
        assert ids == alone(decoder, wants[request], sample), (request, sample)
    return result


@pytest.mark.parametrize("attention", ["paged", "paged_gather", "split_kv"])
def test_everything_at_once_changes_no_output(decoder, attention) -> None:
    wants = [LiveRequest(p, 12, 1 + i % 2) for i, p in enumerate(prompts(6, 10, 5))]
    result = check(decoder, wants, num_blocks=20, block_size=4, max_tokens=24, attention=attention)
    assert result.preemptions > 0
    assert result.hit_tokens > 0
    assert result.copies > 0
    assert result.evictions > 0


@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_block_sizes(decoder, block_size) -> None:
    wants = [LiveRequest(p, 6, 2) for p in prompts(4, 17, 3)]
    check(decoder, wants, num_blocks=max(4, 90 // block_size), block_size=block_size, max_tokens=16)


def test_without_the_prefix_cache_nothing_is_hit(decoder) -> None:
    wants = [LiveRequest(p, 5) for p in prompts(4, 12, 2)]
    assert check(decoder, wants, num_blocks=40, block_size=4, prefix_cache=False).hit_tokens == 0


def test_the_same_prompt_of_whole_blocks_twice(decoder) -> None:
    # nano-vllm 144: a full hit may not leave an empty query.
    prompt = prompts(1, 16, 0)[0]
    result = check(decoder, [LiveRequest(prompt, 4), LiveRequest(prompt, 4)], num_blocks=16, block_size=4, max_seqs=1)
    assert result.hit_tokens == 12


def test_real_text_from_installed_weights() -> None:
    pytest.importorskip("glassllm")
    decoder = model.load()
    texts = ["Alice was beginning to", "Alice was beginning to get", "The Queen said"]
    wants = [LiveRequest(tuple(decoder.tokenizer.encode(t)), 8, 1 + (i == 0)) for i, t in enumerate(texts)]
    check(decoder, wants, num_blocks=24, block_size=4, max_tokens=12)


def test_what_cannot_be_held_is_refused(decoder) -> None:
    with pytest.raises(ValueError, match="larger than the pool"):
        run_live(decoder, [LiveRequest((1,) * 30, 5)], num_blocks=4, block_size=4)
    with pytest.raises(ValueError, match="longer than the model's context"):
        run_live(decoder, [LiveRequest((1,) * 510, 9)], num_blocks=400, block_size=4)
    with pytest.raises(ValueError, match="300 samples begin with as many ids"):
        run_live(decoder, [LiveRequest((1,), 2, samples=300)], num_blocks=400, block_size=4)
    with pytest.raises(ValueError, match="samples must be a whole number from 1, got 0"):
        LiveRequest((1,), 2, samples=0)


def test_trace_ids_are_equal_where_hashes_are() -> None:
    a = Request(0, 0.0, 8, 1, (5, 6), 4, 8)
    b = Request(1, 0.0, 8, 1, (5, 7), 4, 8)
    rng = np.random.default_rng(0)
    x, y = ids_of_trace(a, 100, rng), ids_of_trace(b, 100, rng)
    assert (x[:4] == y[:4]).all()
    assert (x[4:] != y[4:]).all()
    assert max(x.max(), y.max()) < 100
    assert ids_of_trace(Request(2, 0.0, 9, 1), 100, rng).size == 9
