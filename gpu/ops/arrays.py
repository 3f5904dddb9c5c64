"""Arrays in and out: NumPy, CuPy, PyTorch or anything else with DLPack becomes the runtime's kind, and goes back."""

from __future__ import annotations

import sys
from typing import Any

import ml_dtypes
import numpy as np

from gpu.runtime import Runtime


def is_torch(x: Any) -> bool:
    """Is this a PyTorch tensor? PyTorch is not imported to find out."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def is_cupy(x: Any) -> bool:
    """Is this a CuPy array? CuPy is not imported to find out."""
    cupy = sys.modules.get("cupy")
    return cupy is not None and isinstance(x, cupy.ndarray)


def to_runtime(name: str, x: Any, runtime: Runtime) -> Any:
    """`x` as an array that the runtime's kernels can reach, without a copy where it lies there already.

    Strides are kept. Raises TypeError for what is no array, ValueError for a layout that no kernel here can walk.

    >>> from gpu import runtime
    >>> to_runtime("q", np.zeros((2, 3)), runtime.get("emulator")).shape
    (2, 3)
    """
    narrow = is_torch(x) and str(x.dtype) == "torch.bfloat16"
    if narrow:
        x = x.detach().view(sys.modules["torch"].int16)  # DLPack of NumPy knows no bfloat16
    elif is_torch(x):
        x = x.detach()
    if isinstance(x, np.generic):
        x = np.asarray(x)
    if not hasattr(x, "__dlpack__"):
        raise TypeError(f"{name} must be an array, got {type(x).__name__}")
    if runtime.name == "emulator":
        if is_cupy(x):
            x = x.get()
        array = x if isinstance(x, np.ndarray) else np.from_dlpack(x.cpu() if is_torch(x) else x)
    else:
        import cupy

        x = x.cuda() if is_torch(x) else x
        foreign = not isinstance(x, (np.ndarray, cupy.ndarray))
        array = cupy.from_dlpack(x) if foreign else runtime.asarray(x) if isinstance(x, np.ndarray) else x
    if narrow:
        array = array.view(ml_dtypes.bfloat16)
    if any(stride < 0 for stride in array.strides):
        raise ValueError(f"{name} has negative strides {array.strides} (a reversed view); pass a contiguous copy")
    return array


def like(given: Any, array: Any, runtime: Runtime) -> Any:
    """`array`, of the runtime's kind, as the kind of `given`."""
    if is_cupy(given):
        return array if is_cupy(array) else sys.modules["cupy"].asarray(array)
    if is_torch(given):
        torch = sys.modules["torch"]
        narrow = array.dtype == ml_dtypes.bfloat16
        bits = array.view(np.int16) if narrow else array
        tensor = torch.from_dlpack(bits).to(given.device)
        return tensor.view(torch.bfloat16) if narrow else tensor
    return runtime.to_numpy(array)


def to_host(x: Any) -> np.ndarray | None:
    """Integers that say where things lie, on the host: they are checked before a launch."""
    if x is None:
        return None
    if is_torch(x):
        return np.asarray(x.detach().cpu().numpy())
    if is_cupy(x) and x.dtype == ml_dtypes.bfloat16:
        return np.asarray(x.view(np.int16).get()).view(ml_dtypes.bfloat16)
    return np.asarray(x.get() if is_cupy(x) else x)


def strides(name: str, array: Any) -> tuple[int, ...]:
    """Strides in elements of all axes but the last, which must be contiguous.

    Raises ValueError, naming the array, for any other layout: it is never misread.

    >>> strides("q", np.zeros((4, 2, 8), np.float32))
    (16, 8)
    """
    itemsize = array.dtype.itemsize
    if array.shape[-1] > 1 and array.size and array.strides[-1] != itemsize:
        raise ValueError(
            f"{name} must be contiguous along its last axis (stride {itemsize} bytes), got strides {array.strides} for "
            f"shape {tuple(array.shape)}; pass a contiguous copy"
        )
    if any(stride % itemsize for stride in array.strides):
        raise ValueError(f"{name} has strides {array.strides} that are no multiples of its {itemsize}-byte elements")
    return tuple(int(stride) // itemsize for stride in array.strides[:-1])


def address(array: Any) -> int:
    """Where the array begins."""
    return int(array.data.ptr if is_cupy(array) else array.ctypes.data)


def aligned(*arrays: Any) -> bool:
    """Can all rows be read 16 bytes at a time?

    >>> aligned(np.zeros((4, 2, 6), np.float16))
    False
    """
    return all(
        address(a) % 16 == 0 and all(s % 16 == 0 for s in a.strides[:-1]) and a.shape[-1] * a.dtype.itemsize % 16 == 0
        for a in arrays
    )
