"""What all programs of a tiled kernel do together: numbers that every byte and FLOP of it is a multiple of."""

from __future__ import annotations

from collections import Counter
from dataclasses import KW_ONLY, dataclass
from operator import add

from refsim.attention.plan import Plan, Sequence
from refsim.cost.closed_form.spans import Edge, Stretch, stretches
from refsim.variant import Band


@dataclass(frozen=True)
class Peaks:
    """The largest of any one program: its rows, its rows if it sees a key at all, and rows x keys of one key tile."""

    rows: int = 0
    folding_rows: int = 0
    scores: int = 0

    def __or__(self, other: Peaks) -> Peaks:
        return Peaks(
            max(self.rows, other.rows), max(self.folding_rows, other.folding_rows), max(self.scores, other.scores)
        )


@dataclass(frozen=True)
class Totals:
    """Sums over the programs of a kernel.

    rows: query rows.  key_tiles: key tiles folded.  keys: keys loaded.  entries: block table entries read.
    folds: rows, once for each key tile folded into them.  scores: rows x keys, one for each score computed.
    """

    programs: int = 0
    rows: int = 0
    key_tiles: int = 0
    keys: int = 0
    entries: int = 0
    folds: int = 0
    scores: int = 0
    _: KW_ONLY
    peaks: Peaks = Peaks()

    def __add__(self, other: Totals) -> Totals:
        return Totals(*map(add, self._sums(), other._sums()), peaks=self.peaks | other.peaks)

    def __mul__(self, times: int) -> Totals:
        return Totals(*(times * each for each in self._sums()), peaks=self.peaks)

    def _sums(self) -> tuple[int, ...]:
        return self.programs, self.rows, self.key_tiles, self.keys, self.entries, self.folds, self.scores


def totals_of(plan: Plan, *, num_splits: int | None = None, dense: bool = False) -> Totals:
    """The totals of a call, in time that doesn't depend on how long its sequences are.

    num_splits: each query tile has that many programs, which share out the keys of the sequence (`Plan.splits`).
    dense: every query is given every key, whatever the mask hides.
    """
    total = Totals()
    for (n, T), times in Counter((seq.n, seq.T) for seq in plan.sequences).items():
        seq = Sequence(0, 0, n, T)
        band = Band(n, T, 0, None, None) if dense else plan.band(seq)
        parts = Counter([(0, T)]) if num_splits is None else _splits(plan, seq, num_splits)
        for (low, high), alike in parts.items():
            total += _of_part(plan, n, band, low, high) * (times * alike)
    return total * plan.programs


def _splits(plan: Plan, seq: Sequence, num_splits: int) -> Counter[tuple[int, int]]:
    """`Plan.splits`, each with the number of times it occurs. Splits beyond the number of blocks are empty."""
    first, stop = plan.key_span(seq, range(max(seq.n, 1)))
    unit = plan.block_size or 1
    few = min(num_splits, max(1, -(-stop // unit) - first // unit))
    return Counter(plan.splits(seq, few)) + Counter({(stop, stop): num_splits - few})


def _of_part(plan: Plan, n: int, band: Band, low: int, high: int) -> Totals:
    """One program a query tile of one sequence, over its keys in [low, high)."""
    t = plan.tile_tokens
    full, rest = divmod(n, t)
    total = Totals(programs=full, rows=full * plan.Br, peaks=Peaks(rows=plan.Br if full else 0))
    for stretch in stretches(band, t, 0, full, low, high):
        total += _of_stretch(plan, stretch, plan.Br)
    if rest:
        rows = rest * plan.rho
        total += Totals(programs=1, rows=rows, peaks=Peaks(rows=rows))
        for stretch in stretches(band, rest, full * t, 1, low, high):
            total += _of_stretch(plan, stretch, rows)
    return total


def _of_stretch(plan: Plan, stretch: Stretch, rows: int) -> Totals:
    keys, key_tiles = stretch.keys(), stretch.tiles(plan.Bc, plan.unit)
    # A key tile of whole blocks reads an entry for each; a smaller one lies within one block and reads that one.
    entries = 0 if plan.block_size is None else stretch.tiles(plan.unit, plan.unit)
    longest = 0 if plan.variant.alibi_slopes is None else stretch.longest(plan.Bc, plan.unit)
    return Totals(
        key_tiles=key_tiles,
        keys=keys,
        entries=entries,
        folds=rows * key_tiles,
        scores=rows * keys,
        peaks=Peaks(folding_rows=rows, scores=rows * longest),
    )


def parts_of_blocks(plan: Plan, seq: Sequence) -> tuple[int, int, int]:
    """(parts, keys, keys of the longest part): the keys that a sequence sees, cut at multiples of `Plan.unit`."""
    if seq.n == 0:
        return 0, 0, 0
    first, stop = plan.key_span(seq, range(seq.n))
    if first >= stop:
        return 0, 0, 0
    span = Stretch(1, Edge(first, 0), Edge(stop, 0))
    return span.tiles(plan.unit, plan.unit), stop - first, span.longest(plan.unit, plan.unit)
