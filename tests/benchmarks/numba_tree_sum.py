"""A tree sum for numba's CUDA simulator, which finds `cuda` among the globals of a kernel's module and nowhere else."""

from numba import cuda, float32


@cuda.jit
def tree_sum(x, y):
    s = cuda.shared.array(128, float32)
    t = cuda.threadIdx.x
    s[t] = x[cuda.blockIdx.x * 128 + t]
    cuda.syncthreads()
    half = 64
    while half > 0:
        if t < half:
            s[t] += s[t + half]
        cuda.syncthreads()
        half //= 2
    if t == 0:
        y[cuda.blockIdx.x] = s[0]
