"""An attention call on a machine: its plan, its tensors in HBM, and where its keys and values come from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from refsim.attention.plan import Plan, Sequence
from refsim.machine import HBMArray, Kernel, Ledger, Machine, Programs, Tile
from refsim.machine.tile import Buffer

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class Result:
    """out (tokens, H, Dv) in the inputs' type, lse (H, tokens) in the accumulation type, and what it cost."""

    out: Float[np.ndarray, "tokens H Dv"]
    lse: Float[np.ndarray, "H tokens"]
    ledger: Ledger


class Keys(ABC):
    """Where K and V lie in HBM, and how a program finds its tile of them."""

    k: HBMArray
    v: HBMArray

    @abstractmethod
    def load_lengths(self, prog: Programs, seq: Sequence) -> None:
        """Read what says how long the sequence is and where it starts."""

    @abstractmethod
    def locate(self, prog: Programs, seq: Sequence, keys: range) -> Any:
        """Where the keys of one tile lie in `k`, and their values in `v`; what says so is read here, once a tile."""

    def part(self, kv_heads: slice) -> Self:
        """Those of some KV heads; nothing is copied."""
        part = copy(self)
        part.k, part.v = self.k.part(kv_heads), self.v.part(kv_heads)
        return part


class Call:
    """Tensors of one call, viewed with the grid's axes in front: (G, programs per KV head, tokens, rho, ...)."""

    def __init__(self, plan: Plan, machine: Machine, keys: Keys, q: np.ndarray, *, cu_seqlens_q: Any = None) -> None:
        self.plan, self.keys = plan, keys
        self.machine = machine = machine.apart()
        acc = plan.precision.accumulate
        self._out = np.full((plan.tokens, plan.H, plan.Dv), np.nan, plan.precision.storage)
        self._lse = np.full((plan.H, plan.tokens), np.nan, acc)
        self.q = machine.hbm("q", self.by_program(q))
        self.out = machine.hbm("out", self.by_program(self._out), writable=True)
        self.lse = machine.hbm("lse", self.lse_by_program(self._lse), writable=True)
        self.cu_seqlens_q = None if cu_seqlens_q is None else machine.hbm("cu_seqlens_q", cu_seqlens_q)
        self.alibi_slopes = self._per_head("alibi_slopes", plan.variant.alibi_slopes)
        self.sinks = self._per_head("sinks", plan.variant.sinks)

    def part(self, kv_heads: slice) -> Call:
        """The same call for some of its KV heads; it reads and writes its part of the same tensors."""
        part = copy(self)
        part.plan, part.keys = self.plan.part(kv_heads), self.keys.part(kv_heads)
        part.q, part.out, part.lse = (tensor.part(kv_heads) for tensor in (self.q, self.out, self.lse))
        part.alibi_slopes, part.sinks = (
            None if per_head is None else per_head.part(kv_heads) for per_head in (self.alibi_slopes, self.sinks)
        )
        return part

    def by_program(self, x: np.ndarray) -> np.ndarray:
        """(..., tokens, H, D) as (..., G, A, tokens, rho, D), a view."""
        plan = self.plan
        *front, tokens, _, D = x.shape
        split = x.reshape(*front, tokens, *plan.grid, plan.rho, D)
        return np.moveaxis(split, len(front), -3)

    def lse_by_program(self, x: np.ndarray) -> np.ndarray:
        """(..., H, tokens) as (..., G, A, tokens, rho), a view."""
        plan = self.plan
        *front, _, tokens = x.shape
        return x.reshape(*front, *plan.grid, plan.rho, tokens).swapaxes(-1, -2)

    def _per_head(self, name: str, values: np.ndarray | None) -> HBMArray | None:
        if values is None:
            return None
        plan = self.plan
        return self.machine.hbm(name, values.astype(plan.precision.accumulate).reshape(*plan.grid, plan.rho))

    def tiles(self) -> Iterator[tuple[Sequence, int, range]]:
        """Every query tile of the call: its sequence, its number there, its query tokens."""
        for seq in self.plan.sequences:
            for i, tokens in enumerate(self.plan.query_tiles(seq)):
                yield seq, i, tokens

    def idle_programs(self, kernel: Kernel, *, splits: int = 1, tile_tokens: int | None = None) -> None:
        """The programs of a ragged launch that find no query tile: they read where their sequence starts, and stop.

        A launch has as many programs for every sequence as the longest one needs.
        """
        if self.cu_seqlens_q is None:
            return
        tiles = [-(-seq.n // (tile_tokens or self.plan.tile_tokens)) for seq in self.plan.sequences]
        for seq, count in zip(self.plan.sequences, tiles, strict=True):
            if count < max(tiles):
                with kernel.programs(*self.plan.grid, (max(tiles) - count) * splits) as prog:
                    prog.load_index(self.cu_seqlens_q, slice(seq.index, seq.index + 2))

    def load_q(self, prog: Programs, seq: Sequence, tokens: range, into: Buffer) -> Any:
        """The rows of one query tile (tokens * rho, D), after the lengths that a kernel needs to find them."""
        self.load_lengths(prog, seq)
        q = prog.load(self.q, np.s_[:, :, self.at(seq, tokens)], into=into)
        return q.reshape(len(tokens) * self.plan.rho, self.plan.D)

    def load_lengths(self, prog: Programs, seq: Sequence) -> None:
        """Read the sequence's entries of cu_seqlens_q and of the keys' lengths."""
        if self.cu_seqlens_q is not None:
            prog.load_index(self.cu_seqlens_q, slice(seq.index, seq.index + 2))
        self.keys.load_lengths(prog, seq)

    def store(self, prog: Programs, seq: Sequence, tokens: range, out: Tile, lse: Tile) -> None:
        """Write a finished query tile."""
        shape, at = (len(tokens), self.plan.rho), np.s_[:, :, self.at(seq, tokens)]
        prog.store(out.reshape(*shape, self.plan.Dv), self.out, at)
        prog.store(lse.reshape(*shape), self.lse, at)

    @staticmethod
    def at(seq: Sequence, tokens: range) -> slice:
        """Where the tokens of a sequence lie in the batch."""
        return slice(seq.start + tokens.start, seq.start + tokens.stop)

    def result(self) -> Result:
        """The answer and what this call added to the machine's ledger."""
        return Result(self._out, self._lse, self.machine.ledger())


class ContiguousKeys(Keys):
    """K (T, G, D) and V (T, G, Dv) of all sequences, one after another."""

    def __init__(
        self, machine: Machine, k: np.ndarray, v: np.ndarray, starts: list[int], cu_seqlens_k: Any = None
    ) -> None:
        self.k = machine.hbm("k", k.swapaxes(0, 1)[:, None])
        self.v = machine.hbm("v", v.swapaxes(0, 1)[:, None])
        self.starts = starts
        self.cu_seqlens_k = None if cu_seqlens_k is None else machine.hbm("cu_seqlens_k", cu_seqlens_k)

    def load_lengths(self, prog: Programs, seq: Sequence) -> None:
        """Two entries of cu_seqlens_k, where there is one."""
        if self.cu_seqlens_k is not None:
            prog.load_index(self.cu_seqlens_k, slice(seq.index, seq.index + 2))

    def locate(self, prog: Programs, seq: Sequence, keys: range) -> Any:
        """A slice of all tokens; nothing more has to be read."""
        start = self.starts[seq.index]
        return np.s_[:, :, start + keys.start : start + keys.stop]
