extern __shared__ float s[];
extern "C" __global__ void k(const float* x, float* y) {
#ifdef MENDED
    if (threadIdx.x < 32) s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = s[31 - threadIdx.x % 32];
#else
    s[threadIdx.x] = x[threadIdx.x];  // HERE
    __syncthreads();
    y[threadIdx.x] = s[63 - threadIdx.x];
#endif
}
