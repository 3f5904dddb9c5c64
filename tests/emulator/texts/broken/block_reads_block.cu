extern "C" __global__ void k(float* x, float* y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    x[i] = i;  // OTHER
#ifdef MENDED
    y[i] = x[i];
#else
    y[i] = x[(i + blockDim.x) % (gridDim.x * blockDim.x)];  // HERE
#endif
}
