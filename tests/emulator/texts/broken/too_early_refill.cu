#include "mma.cuh"
extern "C" __global__ void k(const float* x, float* y) {
    __shared__ __align__(16) float s[128];
    for (int half = 0; half < 2; half++) {
        cp_async_16(s + 4 * threadIdx.x, x + 128 * half + 4 * threadIdx.x);  // HERE
        cp_async_commit();
        cp_async_wait<0>();
        __syncthreads();
        for (int i = 0; i < 4; i++) y[128 * half + 32 * i + threadIdx.x] = s[127 - 32 * i - threadIdx.x];  // OTHER
#ifdef MENDED
        __syncthreads();
#endif
    }
}
