"""What an attention call computes, whatever algorithm computes it: scale, mask, softcap, ALiBi, sinks.

Every mask here is a *band*: query i sees the keys from `i + offset - left` to `i + offset + right`. Causal is right=0,
a sliding window sets left (and right), and the alignment sets the offset.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from refsim.checks import check_array, is_finite, one_of, whole_number, yes_or_no

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

Align = Literal["bottom-right", "top-left"]

LONGEST = 2**31 - 1  # tokens of a sequence: kernels read lengths as int32


@dataclass(frozen=True)
class Band:
    """The visible keys of `n` queries over `T` keys: `left` before and `right` after position `i + offset`.

    None means unlimited on that side.
    """

    n: int
    T: int
    offset: int
    left: int | None
    right: int | None

    def first(self, i: Any) -> Any:
        """First key that query i sees (an int, or an array of them for an array), clipped to [0, T]."""
        if self.left is None:
            return np.zeros_like(i)
        return np.clip(i + self.offset - self.left, 0, self.T)

    def stop(self, i: Any) -> Any:
        """One past the last key that query i sees, clipped to [0, T]."""
        return (
            np.clip(i + self.offset + self.right + 1, 0, self.T) if self.right is not None else np.full_like(i, self.T)
        )

    def hidden(self, queries: Int[np.ndarray, " r"], keys: Int[np.ndarray, " c"]) -> Bool[np.ndarray, "r c"]:
        """True where a query doesn't see a key."""
        at = queries[:, None] + self.offset
        hide = np.zeros((len(queries), len(keys)), bool)
        if self.left is not None:
            hide |= keys < at - self.left
        if self.right is not None:
            hide |= keys > at + self.right
        return hide


@dataclass(frozen=True)
class Variant:
    """The keywords of an attention call, checked. Build it with `Variant.of`."""

    scale: float
    causal: bool
    align: Align
    window: tuple[int | None, int | None]
    softcap: float | None
    alibi_slopes: Float[np.ndarray, " H"] | None
    sinks: Float[np.ndarray, " H"] | None

    def part(self, kv_heads: slice, group: int) -> Variant:
        """The keywords for some of the KV heads, each read by `group` query heads."""

        def those(per_head: np.ndarray | None) -> np.ndarray | None:
            return None if per_head is None else per_head.reshape(-1, group)[kv_heads].reshape(-1)

        return replace(self, alibi_slopes=those(self.alibi_slopes), sinks=those(self.sinks))

    @classmethod
    def of(
        cls,
        heads: int,
        head_dim: int,
        *,
        scale: float | None = None,
        causal: bool = False,
        align: Align = "bottom-right",
        window: tuple[int | None, int | None] | None = None,
        softcap: float | None = None,
        alibi_slopes: Any = None,
        sinks: Any = None,
        **unknown: Any,
    ) -> Variant:
        """Check the keywords and fill in the defaults (scale 1/sqrt(head_dim)).

        window: keys (before, after) a query's own position; None or -1 is unlimited, as is what no sequence is long
            enough for.
        softcap: scores become `softcap * tanh(s / softcap)`; None or 0 leaves them.
        alibi_slopes: (H,); a key at distance d gets `-slope * d`.
        sinks: (H,); one more logit in each row's denominator, with no value behind it.

        >>> Variant.of(8, 64, window=(15, -1)).window
        (15, None)
        """
        if unknown:
            known = ", ".join(name for name in cls.__dataclass_fields__)
            raise TypeError(
                f"an attention call has no keyword {', '.join(unknown)}; what it computes is said by {known}"
            )
        if scale is None:
            scale = head_dim**-0.5
        if not is_finite(scale):
            raise ValueError(f"scale must be a finite number, got {scale!r}")
        if softcap is not None and not (is_finite(softcap) and softcap >= 0):
            raise ValueError(f"softcap must be a positive number, or None for no cap, got {softcap!r}")
        return cls(
            scale=float(scale),
            causal=yes_or_no("causal", causal),
            align=one_of("align", align, ("bottom-right", "top-left")),
            window=_window(window),
            softcap=float(softcap) if softcap else None,
            alibi_slopes=_per_head("alibi_slopes", alibi_slopes, heads),
            sinks=_per_head("sinks", sinks, heads),
        )

    def band(self, n: int, T: int) -> Band:
        """The mask of n queries over T keys. Under bottom-right alignment query i sits at key position T - n + i."""
        left, right = self.window
        if self.causal:
            right = 0
        return Band(n, T, T - n if self.align == "bottom-right" else 0, left, right)


def _window(window: Any) -> tuple[int | None, int | None]:
    if window is None:
        return (None, None)
    try:
        left, right = window
    except (TypeError, ValueError):
        raise ValueError(f"window must be (keys before, keys after) or None, got {window!r}") from None
    sides = []
    for side, size in (("before", left), ("after", right)):
        whole = isinstance(size, float | np.floating) and size.is_integer()  # also where it is written as a float
        keys = -1 if size is None else int(size) if whole else size
        keys = whole_number(f"window: keys {side}", keys, -1, or_else="None, which is unlimited as -1 is")
        sides.append(None if keys == -1 or keys >= LONGEST else keys)
    return (sides[0], sides[1])


def _per_head(name: str, values: Any, heads: int) -> np.ndarray | None:
    if values is None:
        return None
    try:
        array = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must hold numbers, one a query head, got {values!r}") from None
    if array.shape != (heads,):
        raise ValueError(f"{name} must hold one number a query head, shape ({heads},), got {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite, got {array}")
    return array


def check_qkv(q: Any, k: Any, v: Any) -> tuple[int, int, int, int, int, int]:
    """Check q (n, H, D), k (T, G, D), v (T, G, Dv) and return (n, H, D, T, G, Dv).

    Raises TypeError for a type that isn't floating, ValueError for shapes that don't fit together.
    """
    for name, array in (("q", q), ("k", k), ("v", v)):
        check_array(name, array)
        if len(array.shape) != 3:
            raise ValueError(f"{name} must have 3 axes (tokens, heads, head_dim), got shape {tuple(array.shape)}")
    n, H, D = q.shape
    T, G, Dk = k.shape
    if v.shape[:2] != (T, G):
        raise ValueError(f"k and v must agree in tokens and heads, got k {tuple(k.shape)} and v {tuple(v.shape)}")
    check_heads(H, G, D, Dk)
    return n, H, D, T, G, v.shape[2]


def check_heads(H: int, G: int, D: int, Dk: int) -> None:
    """Check that H query heads share G KV heads evenly and that queries and keys have one size."""
    if D != Dk:
        raise ValueError(f"q and k must have one head_dim, got {D} and {Dk}")
    if D == 0:
        raise ValueError("head_dim is 0; queries and keys need at least one number")
    if G == 0 or H == 0 or H % G:
        raise ValueError(f"{H} query heads can't share {G} KV heads evenly; query heads must be a multiple of KV heads")
