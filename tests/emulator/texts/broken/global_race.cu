extern "C" __global__ void k(float* x, float* y) {
    int i = threadIdx.x;
    x[i] = i;  // OTHER
#ifdef MENDED
    __syncthreads();
#endif
    y[i] = x[(i + 1) % blockDim.x];  // HERE
}
