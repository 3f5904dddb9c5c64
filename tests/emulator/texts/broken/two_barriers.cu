extern "C" __global__ void k(const float* x, float* y) {
    __shared__ float s[64];
    s[threadIdx.x] = x[threadIdx.x];
#ifdef MENDED
    __syncthreads();
#else
    if (threadIdx.x < 32) {
        __syncthreads();  // HERE
    } else {
        __syncthreads();  // OTHER
    }
#endif
    y[threadIdx.x] = s[63 - threadIdx.x];
}
