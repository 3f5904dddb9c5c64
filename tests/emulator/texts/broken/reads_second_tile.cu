// Two copies in flight, one of them waited for, both read.
#include "mma.cuh"
extern "C" __global__ void k(const float4* x, float* y) {
    __shared__ __align__(16) float4 s[2][32];
    cp_async_16(&s[0][threadIdx.x], x + threadIdx.x);
    cp_async_commit();
    cp_async_16(&s[1][threadIdx.x], x + 32 + threadIdx.x);
    cp_async_commit();
#ifdef MENDED
    cp_async_wait<0>();
#else
    cp_async_wait<1>();
#endif
    __syncthreads();
    y[threadIdx.x] = s[0][threadIdx.x].x + s[1][threadIdx.x].x;  // HERE
    cp_async_wait_all();
}
