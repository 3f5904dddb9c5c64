extern "C" __global__ void k(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
#ifdef MENDED
    if (i < n) y[i] = x[i];
#else
    y[i] = x[i];  // HERE
#endif
}
