"""The reference's algorithms as CUDA kernels: the same names, arguments and answers, by CuPy or by the emulator."""

from gpu.ops.flash import flash
from gpu.ops.paged import paged, paged_gather
from gpu.ops.split_kv import split_kv
from gpu.ops.standard import standard

__all__ = ["flash", "paged", "paged_gather", "split_kv", "standard"]
