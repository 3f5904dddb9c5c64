"""Any attention algorithm behind one call: by name, as a function, or as an `Attention` of your own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from refsim.kvcache import blocks_for
from refsim.model.caches import Cache, ContiguousCache
from refsim.model.paged_cache import PagedCache

if TYPE_CHECKING:
    from jaxtyping import Float, Int32

    from refsim.model.config import Config

NAMES = ("oracle", "standard", "flash", "paged_gather", "paged", "split_kv")


@dataclass(frozen=True)
class Attention:
    """An algorithm in one or both of two forms; each returns (out, lse), or a Result with `out` and `ledger`.

    contiguous(q, k, v, *, scale, causal, window): one sequence, q (n, H, D) at the end of its k, v (T, G, D).
    paged(q, k_cache, v_cache, block_tables, seq_lens, *, cu_seqlens_q, scale, causal, window): a ragged batch.
    """

    name: str
    contiguous: Callable[..., Any] | None = None
    paged: Callable[..., Any] | None = None

    def check_cache(self, cache: Cache) -> None:
        """Raise ValueError when the algorithm has no form that can read this cache."""
        if self.contiguous is None and not isinstance(cache, PagedCache):
            raise ValueError(f"attention {self.name!r} walks a block table; give it a PagedCache, not {cache!r}")

    def new_cache(self, config: Config, block_size: int, sequences: int, length: int) -> Cache:
        """The cache the algorithm reads best: paged, with room for `sequences` of `length` tokens, or contiguous."""
        if self.paged is None:
            return ContiguousCache(config.num_layers, config.num_kv_heads, config.head_dim)
        return PagedCache.of(config, sequences * blocks_for(max(length, 1), block_size), block_size)

    def __call__(
        self,
        q: Float[np.ndarray, "tokens heads d"],
        cache: Cache,
        layer: int,
        seqs: list[int],
        starts: Int32[np.ndarray, "seqs+1"],
        scale: float,
        window: tuple[int, int] | None,
    ) -> tuple[Float[np.ndarray, "tokens heads d"], list[Any]]:
        """Attend from the new tokens of `seqs` (rows starts[i] to starts[i+1] of q) to all their cached ones."""
        mask = {"scale": scale, "causal": True, "window": window}
        if self.paged is not None and isinstance(cache, PagedCache):
            tables, lengths = cache.kv.block_tables(seqs, layer), cache.kv.seq_lens(seqs)
            result = self.paged(q, *cache.kv.pools(layer), tables, lengths, cu_seqlens_q=starts, **mask)
            return self._parts(result, q)
        assert self.contiguous is not None
        outs, ledgers = [], []
        for i, seq in enumerate(seqs):
            k, v = cache.gather(layer, seq)
            rows = q[starts[i] : starts[i + 1]]
            out, ledger = self._parts(self.contiguous(rows, k, v, **mask), rows)
            outs.append(out)
            ledgers += ledger
        return outs[0] if len(outs) == 1 else np.concatenate(outs), ledgers

    def _parts(self, result: Any, q: np.ndarray) -> tuple[np.ndarray, list[Any]]:
        """The output and what was counted for it, of whatever an algorithm returns."""
        ledger = [result.ledger] if hasattr(result, "ledger") else []
        out = np.asarray(result[0] if isinstance(result, tuple) else getattr(result, "out", result))
        if np.shape(out) != q.shape:
            raise ValueError(f"attention {self.name!r} returned shape {np.shape(out)} for queries of shape {q.shape}")
        return out, ledger


def resolve(attention: str | Attention | Callable[..., Any], options: Mapping[str, Any]) -> Attention:
    """An `Attention` from a name of `NAMES`, a contiguous function, or one as it is; `options` go to every call.

    >>> resolve("oracle", {}).name
    'oracle'
    """
    if isinstance(attention, str):
        attention = _named(attention)
    elif not isinstance(attention, Attention):
        if not callable(attention):
            raise TypeError(f"attention must be one of {NAMES}, an Attention or a function; got {attention!r}")
        attention = Attention(getattr(attention, "__name__", "custom"), contiguous=attention)
    if not options:
        return attention
    forms = (form and partial(form, **options) for form in (attention.contiguous, attention.paged))
    return Attention(attention.name, *forms)


def _named(name: str) -> Attention:
    from refsim import attention as algorithms
    from refsim import oracle

    if name not in NAMES:
        raise ValueError(f"unknown attention {name!r}; choose one of {', '.join(NAMES)}")
    if name == "oracle":
        return Attention(name, contiguous=oracle.attention, paged=None)
    function = getattr(algorithms, name)
    reads_pages, reads_rows = name in ("paged_gather", "paged", "split_kv"), name in ("standard", "flash", "split_kv")
    return Attention(name, function if reads_rows else None, function if reads_pages else None)
