extern "C" __global__ void k(const float* x, float* y) {
    __shared__ float s[64];
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    float other = s[63 - threadIdx.x];  // OTHER
#ifdef MENDED
    __syncthreads();
#endif
    s[threadIdx.x] = 2 * other;  // HERE
    __syncthreads();
    y[threadIdx.x] = s[threadIdx.x];
}
