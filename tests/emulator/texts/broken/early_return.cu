// Threads past the end leave before a barrier that the others wait at.
extern "C" __global__ void k(const float* x, float* y, int n) {
    __shared__ float s[64];
    int i = blockIdx.x * 64 + threadIdx.x;
#ifdef MENDED
    s[threadIdx.x] = i < n ? x[i] : 0.f;
#else
    if (i >= n) return;
    s[threadIdx.x] = x[i];
#endif
    __syncthreads();  // HERE
    if (i < n) y[i] = s[threadIdx.x ^ 1];
}
