extern "C" __global__ void k(const float* x, float* y) {
#ifdef MENDED
    __shared__ float s[65];
#else
    __shared__ float s[64];
#endif
    s[threadIdx.x + 1] = x[threadIdx.x];  // HERE
    __syncthreads();
    if (threadIdx.x > 0) y[threadIdx.x] = s[threadIdx.x];
}
