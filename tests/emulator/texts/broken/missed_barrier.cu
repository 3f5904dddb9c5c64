extern "C" __global__ void k(const float* x, float* y, int n) {
    __shared__ float s[64];
    int i = threadIdx.x;
#ifdef MENDED
    s[i] = i < n ? x[i] : 0.0f;
    __syncthreads();
#else
    if (i >= n) return;
    s[i] = x[i];
    __syncthreads();  // HERE
#endif
    if (i < n) y[i] = s[n - 1 - i];
}
