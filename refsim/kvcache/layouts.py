"""Other people's cache layouts, by name, converted at the edge to ours: (num_blocks, block_size, heads, head_dim).

| name | K and V | who |
|---|---|---|
| `nhd` | ours, two arrays | vLLM flash (NHC), FlashAttention paged |
| `hnd` | (blocks, heads, block_size, D), two arrays | FlashInfer HND, TensorRT-LLM |
| `x-packed` | K (blocks, heads, D/x, block_size, x), x in 16 bytes; V (blocks, heads, D, block_size) | vLLM v0 |
| `interleaved` | one array (blocks, 2, block_size, heads, D): K and V are strided views | FlashInfer single tensor |
| `stacked` | one array (2, blocks, block_size, heads, D) | vLLM flash |
| `token-pool` | (tokens, heads, D), two arrays, blocks of one token | SGLang |
| `mla` | latent (blocks, block_size, 512) and rotary key (blocks, block_size, 64) | FlashInfer MLA |
| `mla-fused` | one array (blocks, block_size, 1, 576), V its first 512 | FlashMLA, vLLM |

For the two latent ones, `k` is the (…, 1, 576) row and `v` the first 512 of it. Converting from a layout copies where
the shapes need it and never changes the caller's arrays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np

from refsim.checks import one_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import Float, UInt8

    Arrays = tuple[np.ndarray, ...]

LATENT = 512
_TILE = 128


def from_layout(name: str, *arrays: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """K and V in our layout from the arrays of another. Raises ValueError for arrays that the layout can't be.

    >>> k, v = np.arange(12.0).reshape(3, 2, 2, 1), -np.arange(12.0).reshape(3, 2, 2, 1)
    >>> back = from_layout("hnd", *to_layout("hnd", k, v))
    >>> bool((back[0] == k).all() and (back[1] == v).all())
    True
    """
    _, read, shapes = _layout(name)
    if [a.ndim for a in arrays] != shapes:
        raise ValueError(
            f"layout {name!r} got arrays of shapes {[a.shape for a in arrays]}; expected {shapes} dimensions"
        )
    k, v = read(*arrays)
    if k.shape[:3] != v.shape[:3]:
        raise ValueError(
            f"layout {name!r} got arrays of shapes {[a.shape for a in arrays]}: K {k.shape} and V {v.shape} in "
            "(num_blocks, block_size, heads, head_dim) are not of the same slots"
        )
    return k, v


def to_layout(name: str, k: np.ndarray, v: np.ndarray) -> Arrays:
    """The arrays of another layout from K and V in ours. Raises ValueError for what that layout can't hold."""
    write, _, _ = _layout(name)
    if k.ndim != 4 or v.ndim != 4 or k.shape[:3] != v.shape[:3]:
        raise ValueError(f"k {k.shape} and v {v.shape}; expected (num_blocks, block_size, heads, head_dim) each")
    return write(k, v)


def quantise_latent(
    rows: Float[np.ndarray, "blocks block_size 1 576"],
) -> UInt8[np.ndarray, "blocks block_size 656"]:
    """`fp8_ds_mla`: 512 e4m3 numbers, four float32 scales (one for 128 of them), 64 bfloat16 rotary ones; 656 bytes."""
    if rows.ndim != 4 or rows.shape[2:] != (1, LATENT + 64):
        raise ValueError(f"rows are {rows.shape}; expected (num_blocks, block_size, 1, {LATENT + 64})")
    latent = rows[:, :, 0, :LATENT].astype(np.float32).reshape(*rows.shape[:2], LATENT // _TILE, _TILE)
    top = float(ml_dtypes.finfo(ml_dtypes.float8_e4m3fn).max)
    scales = np.abs(latent).max(axis=-1, keepdims=True) / np.float32(top)
    scales = np.where(scales == 0, np.float32(1), scales)
    quantised = (latent / scales).astype(ml_dtypes.float8_e4m3fn)
    parts = [
        quantised.reshape(*rows.shape[:2], LATENT),
        scales[..., 0],
        rows[:, :, 0, LATENT:].astype(ml_dtypes.bfloat16),
    ]
    return np.concatenate([np.ascontiguousarray(p).view(np.uint8) for p in parts], axis=-1)


def dequantise_latent(
    packed: UInt8[np.ndarray, "blocks block_size 656"],
) -> Float[np.ndarray, "blocks block_size 1 576"]:
    """The float32 rows that `fp8_ds_mla` bytes stand for."""
    if packed.ndim != 3 or packed.shape[2] != 656 or packed.dtype != np.uint8:
        raise ValueError(f"packed is {packed.dtype}{list(packed.shape)}; expected uint8 (num_blocks, block_size, 656)")
    latent = np.ascontiguousarray(packed[..., :LATENT]).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    scales = np.ascontiguousarray(packed[..., LATENT : LATENT + 16]).view(np.float32)
    rotary = np.ascontiguousarray(packed[..., LATENT + 16 :]).view(ml_dtypes.bfloat16).astype(np.float32)
    latent = (latent.reshape(*packed.shape[:2], -1, _TILE) * scales[..., None]).reshape(*packed.shape[:2], LATENT)
    return np.concatenate([latent, rotary], axis=-1)[:, :, None, :]


def _hnd(k: np.ndarray, v: np.ndarray) -> Arrays:
    return k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3)


def _to_x_packed(k: np.ndarray, v: np.ndarray) -> Arrays:
    blocks, size, heads, dim = k.shape
    x = 16 // k.dtype.itemsize
    if x == 0 or dim % x:
        raise ValueError(f"head_dim {dim} of {k.dtype} doesn't divide into packs of {x} (16 bytes)")
    return k.reshape(blocks, size, heads, dim // x, x).transpose(0, 2, 3, 1, 4), v.transpose(0, 2, 3, 1)


def _from_x_packed(k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    blocks, heads, packs, size, x = k.shape
    return k.transpose(0, 3, 1, 2, 4).reshape(blocks, size, heads, packs * x), v.transpose(0, 3, 1, 2)


def _to_one(k: np.ndarray, v: np.ndarray, axis: int) -> Arrays:
    if k.shape != v.shape:
        raise ValueError(f"k {k.shape} and v {v.shape}; expected equal head sizes where one array holds both")
    return (np.stack([k, v], axis),)


def _from_one(kv: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    if kv.shape[axis] != 2:
        raise ValueError(
            f"the array is {kv.shape}; expected 2, K and V, on axis {axis}: 'interleaved' has them on axis 1, "
            "'stacked' on axis 0"
        )
    k, v = np.moveaxis(kv, axis, 0)  # views: a strided pool keeps its strides
    return k, v


def _to_token_pool(k: np.ndarray, v: np.ndarray) -> Arrays:
    return k.reshape(-1, *k.shape[2:]), v.reshape(-1, *v.shape[2:])


def _to_latent(k: np.ndarray, v: np.ndarray) -> Arrays:
    _check_latent(k, v)
    return k[:, :, 0, :LATENT], k[:, :, 0, LATENT:]


def _from_latent(latent: np.ndarray, rotary: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if latent.shape[-1] != LATENT or latent.shape[:2] != rotary.shape[:2]:
        raise ValueError(
            f"latent is {latent.shape} and rotary {rotary.shape}; expected (num_blocks, block_size, {LATENT}), and the "
            "rotary key of the same slots after it"
        )
    k = np.concatenate([latent, rotary], axis=-1)[:, :, None, :]
    return k, k[..., :LATENT]


def _from_fused(kv: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if kv.shape[2] != 1 or kv.shape[3] <= LATENT:
        raise ValueError(f"the array is {kv.shape}; expected (num_blocks, block_size, 1, more than {LATENT})")
    return kv, kv[..., :LATENT]


def _to_fused(k: np.ndarray, v: np.ndarray) -> Arrays:
    _check_latent(k, v)
    return (k,)


def _check_latent(k: np.ndarray, v: np.ndarray) -> None:
    fits = k.shape[2] == 1 and k.shape[3] > LATENT == v.shape[3]
    if not fits or not np.array_equal(k[..., :LATENT], v, equal_nan=True):  # unused slots may hold NaN
        raise ValueError(f"k {k.shape} and v {v.shape}; a latent cache has one head, and v is the first {LATENT} of k")


def _layout(name: str) -> tuple[Callable[..., Arrays], Callable[..., tuple[np.ndarray, np.ndarray]], list[int]]:
    return _LAYOUTS[one_of("layout", name, _LAYOUTS)]


# name: (from ours, to ours, dimensions of its arrays)
_LAYOUTS: dict[str, tuple[Callable[..., Arrays], Callable[..., tuple[np.ndarray, np.ndarray]], list[int]]] = {
    "nhd": (lambda k, v: (k, v), lambda k, v: (k, v), [4, 4]),
    "hnd": (_hnd, _hnd, [4, 4]),  # type: ignore[dict-item]
    "x-packed": (_to_x_packed, _from_x_packed, [5, 4]),
    "interleaved": (lambda k, v: _to_one(k, v, 1), lambda kv: _from_one(kv, 1), [5]),
    "stacked": (lambda k, v: _to_one(k, v, 0), lambda kv: _from_one(kv, 0), [5]),
    "token-pool": (_to_token_pool, lambda k, v: (k[:, None], v[:, None]), [3, 3]),
    "mla": (_to_latent, _from_latent, [3, 3]),
    "mla-fused": (_to_fused, _from_fused, [4]),
}
