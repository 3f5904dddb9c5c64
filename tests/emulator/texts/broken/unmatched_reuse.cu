// Shared memory is filled again while others still read what was there: one barrier a round is not enough.
extern "C" __global__ void k(const float* x, float* y, int tiles) {
    __shared__ float s[64];
    float sum = 0;
    for (int t = 0; t < tiles; t++) {
        s[threadIdx.x] = x[t * 64 + threadIdx.x];  // HERE
        __syncthreads();
        sum += s[63 - threadIdx.x];  // OTHER
#ifdef MENDED
        __syncthreads();
#endif
    }
    y[threadIdx.x] = sum;
}
