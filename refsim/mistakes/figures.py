"""E3 to E5: figures that are claimed, beside those that are counted, computed and looked up."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from refsim.numerics import carrier, dtype_of, largest, round_to


@dataclass(frozen=True)
class HandoverSaving:
    """What (LSE, O) saves over (m, l, acc), as a share: of the scalars, and of all bytes that splits hand over.

    `state_nbytes` and `lse_nbytes` are counted: what the splits wrote to HBM for the reduction.
    """

    of_scalars: float
    of_traffic: float
    state_nbytes: int
    lse_nbytes: int


def saving_of_the_lse_handover(head_dim_v: int = 128, *, num_splits: int = 4) -> HandoverSaving:
    """E3: "the LSE halves the traffic". It halves the scalars; the vector beside them dwarfs both.

    Split-KV runs both ways on one query and its ledger is read: Dv + 2 numbers a split and row against Dv + 1.

    Source: the LSE reduction text.

    >>> saving = saving_of_the_lse_handover(128)
    >>> saving.of_scalars, round(1 / saving.of_traffic)
    (0.5, 130)
    """
    from refsim.attention import split_kv

    rng = np.random.default_rng(0)
    q, k = rng.standard_normal((1, 1, 8)), rng.standard_normal((4 * num_splits, 1, 8))
    v = rng.standard_normal((4 * num_splits, 1, head_dim_v))

    def handed_over(how: str) -> tuple[int, int]:
        ledger = split_kv(q, k, v, num_splits=num_splits, handover=how).ledger
        written = {
            t: ledger.total(tensor=t, direction="write") for t in ("o_partial", "lse_partial", "m_partial", "l_partial")
        }
        return sum(written.values()), sum(written.values()) - written["o_partial"]

    (state, state_scalars), (lse, lse_scalars) = handed_over("state"), handed_over("lse")
    return HandoverSaving(1 - lse_scalars / state_scalars, 1 - lse / state, state, lse)


@dataclass(frozen=True)
class OverflowRow:
    """One number type facing one large score whose value is 1: three ways to the answer, each rounded to the type.

    naive_sum is e^score and naive its answer; (m, l) and `lse` are what the two safe ways keep.
    """

    dtype: str
    largest: float
    naive_sum: float
    naive: float
    m: float
    l: float
    by_state: float
    lse: float
    by_lse: float


def overflow_table(
    score: float = 120.0, dtypes: tuple[str, ...] = ("float16", "bfloat16", "float32", "float64")
) -> list[OverflowRow]:
    """E4: "the LSE is what prevents overflow". Subtracting the maximum does: (m, l) is as safe, in every type.

    What the LSE buys is one scalar less and a merge that needs no m. And e^120 overflows float32 too, not just the
    16-bit types; float64 holds it, up to a score of 709.

    Raises ValueError for a score that a type can't hold at all, TypeError for an unknown type.

    Source: the LSE reduction text, for a score of 120.

    >>> [(row.dtype, row.naive, row.by_state, row.lse) for row in overflow_table()][2:]
    [('float32', nan, 1.0, 120.0), ('float64', 1.0, 1.0, 120.0)]
    """
    rows = []
    for name in dtypes:
        dtype = dtype_of(name)
        with np.errstate(over="ignore"):
            s = round_to(np.array([score], carrier(dtype)), dtype)
        if not np.isfinite(s.item()):
            raise ValueError(f"{name} holds no score of {score:g}, up to {largest(dtype):g}: nothing can be kept of it")
        with np.errstate(over="ignore", invalid="ignore"):
            naive_sum = round_to(np.exp(s), dtype)
            naive = naive_sum * 1.0 / naive_sum
        m = s
        l = round_to(np.exp(s - m), dtype)
        lse = round_to(m + np.log(l), dtype)
        rows.append(
            OverflowRow(
                dtype=name,
                largest=largest(dtype),
                naive_sum=naive_sum.item(),
                naive=naive.item(),
                m=m.item(),
                l=l.item(),
                by_state=(np.exp(m - m) * 1.0 / l).item(),
                lse=lse.item(),
                by_lse=np.exp(s - lse).item(),
            )
        )
    return rows


@dataclass(frozen=True)
class Bandwidths:
    """HBM bytes a second: what the text gives for both, and what each of the two A100s has."""

    claimed: float
    a100_40: float
    a100_80: float


def bandwidth_of_an_a100() -> Bandwidths:
    """E5: "2 TB/s for HBM of 40 to 80 GB". Only the 80 GB card comes near; the 40 GB one has a quarter less.

    Source: the attention-stack text; the devices' figures and their sources are in refsim/cost/devices.toml.

    >>> a100 = bandwidth_of_an_a100()
    >>> a100.a100_40 / 1e12, a100.a100_80 / 1e12
    (1.555, 2.039)
    """
    from refsim.cost import devices

    return Bandwidths(2e12, devices.get("A100-40").hbm_bytes_per_s, devices.get("A100-80").hbm_bytes_per_s)
