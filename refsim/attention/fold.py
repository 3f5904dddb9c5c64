"""The heart of every tiled algorithm here: a program keeps a tile of query rows and folds key tiles into its state."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Literal

import numpy as np

from refsim import softmax
from refsim.attention.call import Call
from refsim.attention.plan import Plan, Sequence
from refsim.attention.shares import Share, share_out
from refsim.machine import Kernel, Programs, Step, Watch, side_by_side
from refsim.machine.tile import Buffer
from refsim.softmax import State

# From so many rows on, NumPy is faster at row maxima and row sums of scores that lie column by column.
MANY_ROWS = 32


class OnChip:
    """What one program declares on chip: the tiles of q, k and v, the scores, and the softmax state."""

    def __init__(self, prog: Programs, call: Call, only: str = "qkvsmlo", *, sinks: bool = True) -> None:
        plan = call.plan
        acc, operand = plan.precision.accumulate, plan.operand_dtype
        self.prog, self.call, self.plan = prog, call, plan
        shapes: dict[str, tuple[tuple[int, ...], Any]] = {
            "q": ((plan.tile_tokens, plan.rho, plan.D), operand),
            "k": ((plan.Bc, plan.D), operand),
            "v": ((plan.Bc, plan.Dv), operand),
            "s": ((plan.rows, plan.Bc), acc),
            "p": ((plan.rows, plan.Bc), plan.precision.p),
            "m": ((plan.rows,), acc),
            "l": ((plan.rows,), acc),
            "o": ((plan.rows, plan.Dv), acc),
        }
        orders: dict[str, Literal["C", "F"]] = {"s": "F" if plan.rows >= MANY_ROWS else "C"}
        self._buffers = {name: prog.buffer(name, *shapes[name], order=orders.get(name, "C")) for name in only}
        self.slopes = self._load_per_head("alibi_slopes") if "s" in only else None
        self._sinks = self._load_per_head("sinks") if sinks and "m" in only else None

    def __getattr__(self, name: str) -> Buffer:
        """The buffer of that name, among those declared."""
        return self._buffers[name]

    def _load_per_head(self, name: str) -> Any:
        source = getattr(self.call, name)
        if source is None:
            return None
        return self.prog.load(source, ..., into=self.prog.buffer(name, (self.plan.rho,), source.dtype))

    def empty_state(self, rows: int) -> State:
        """The state that has seen no key; a sink is a key seen already, with weight e^0 and no value."""
        state = State(self.m.full(-np.inf, rows), self.l.full(0, rows), self.o.full(0, rows, self.plan.Dv))
        if self._sinks is not None:
            np.positive(self._sinks[..., np.arange(rows) % self.plan.rho], out=state.m)
            self.l.full(1, rows)
        return state

    def scores(self, q: Any, k: Any, seq: Sequence, tokens: range, keys: range) -> Any:
        """scale q k^T with softcap and ALiBi, -inf where a row doesn't see a key."""
        plan, variant = self.plan, self.plan.variant
        with np.errstate(invalid="ignore"):  # a hidden key may hold inf, and its score is replaced below
            sums = np.result_type(q.data.dtype, plan.precision.accumulate)  # by itself NumPy sums in the inputs' type
            s = np.matmul(q, k.mT, out=self.s.tile(*q.shape[:1], len(keys)), dtype=sums)
        if variant.softcap is None:
            np.multiply(s, variant.scale, out=s)
        else:
            np.multiply(s, variant.scale / variant.softcap, out=s)
            np.tanh(s, out=s)
            np.multiply(s, variant.softcap, out=s)
        if self.slopes is not None:
            rows = np.arange(s.shape[0])
            at = tokens.start + rows // plan.rho + plan.band(seq).offset
            distance = np.abs(at[:, None] - np.arange(keys.start, keys.stop)).astype(s.data.dtype)
            np.subtract(s, self.slopes[..., rows % plan.rho, None] * distance, out=s)
        if (hidden := hidden_keys(plan, seq, tokens, keys)) is not None:
            s.mask(hidden, -np.inf)
        return s

    def absorb(self, state: State, s: Any, v: Any) -> None:
        """Fold one key tile into the state."""
        softmax.absorb_in_place(
            state,
            s,
            v,
            mma=lambda p, v, o: self.prog.mma(p, v, acc=o),
            to_p=lambda p: p.round(self.plan.precision.p),
        )


def hidden_keys(plan: Plan, seq: Sequence, tokens: range, keys: range) -> np.ndarray | None:
    """(rows, keys) True where a row doesn't see a key; None where all see all, so that whole tiles skip the mask."""
    band = plan.band(seq)
    sees_first = band.left is None or keys[0] >= tokens[-1] + band.offset - band.left
    sees_last = band.right is None or keys[-1] <= tokens[0] + band.offset + band.right
    if sees_first and sees_last:
        return None
    hidden = band.hidden(np.arange(tokens.start, tokens.stop), np.arange(keys.start, keys.stop))
    return np.repeat(hidden, plan.rho, axis=0)


def fold_keys(
    watch: Watch,
    chip: OnChip,
    state: State,
    q: Any,
    seq: Sequence,
    tokens: range,
    span: tuple[int, int],
    kernel: str,
    index: dict[str, int],
) -> Generator[Step | None, None, None]:
    """Walk the key tiles of a span and fold each into the state; one step a tile."""
    in_hbm, prog = chip.call.keys, chip.prog
    for j, keys in enumerate(chip.plan.key_tiles(*span)):
        where = in_hbm.locate(prog, seq, keys)
        k = prog.load(in_hbm.k, where, into=chip.k)
        s = chip.scores(q, k, seq, tokens, keys)
        v = prog.load(in_hbm.v, where, into=chip.v)
        chip.absorb(state, s, v)
        at = index | {"key_tile": j, "first_key": keys.start, "stop_key": keys.stop}
        yield watch.step("absorb", chip.call.machine, kernel, at, m=state.m, l=state.l, o=state.o, p=s)


def attend(watch: Watch, call: Call, kernel_name: str) -> Generator[Step | None, None, None]:
    """One kernel, a program for each query tile (and head): fold all keys it sees, finish, write.

    Source: "FlashAttention-2", algorithm 1 (queries outside, keys and values inside).
    """
    with call.machine.kernel(kernel_name) as kernel:
        call.idle_programs(kernel)
        shares, threads = share_out(watch, call)
        yield from side_by_side([_attend(watch, kernel, share) for share in shares], threads)


def _attend(watch: Watch, kernel: Kernel, share: Share) -> Generator[Step | None, None, None]:
    call, seq, query_tile, tokens, _ = share
    index = {"sequence": seq.index, "query_tile": query_tile}
    with kernel.programs(*call.plan.grid) as prog:
        chip = OnChip(prog, call)
        q = call.load_q(prog, seq, tokens, chip.q)
        state = chip.empty_state(len(tokens) * call.plan.rho)
        span = call.plan.key_span(seq, tokens)
        yield from fold_keys(watch, chip, state, q, seq, tokens, span, kernel.name, index)
        out, lse = softmax.finish_in_place(state)
        call.store(prog, seq, tokens, out, lse)
        yield watch.step("write", call.machine, kernel.name, index, out=out, lse=lse)
