"""The reference's algorithms as CUDA kernels: the same names, arguments and answers, by CuPy or by the emulator."""

from gpu.ops.cache import append, copy_blocks
from gpu.ops.flash import flash
from gpu.ops.merge import merge
from gpu.ops.paged import paged
from gpu.ops.paged_gather import paged_gather
from gpu.ops.rope import rope
from gpu.ops.split_kv import split_kv
from gpu.ops.standard import standard

__all__ = ["append", "copy_blocks", "flash", "merge", "paged", "paged_gather", "rope", "split_kv", "standard"]
