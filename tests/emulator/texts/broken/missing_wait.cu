#include "mma.cuh"
extern "C" __global__ void k(const float* x, float* y) {
    __shared__ __align__(16) float s[128];
    cp_async_16(s + 4 * threadIdx.x, x + 4 * threadIdx.x);
    cp_async_commit();
#ifdef MENDED
    cp_async_wait<0>();
#endif
    __syncthreads();
    for (int i = 0; i < 4; i++) y[4 * threadIdx.x + i] = s[127 - 4 * threadIdx.x - i];  // HERE
}
