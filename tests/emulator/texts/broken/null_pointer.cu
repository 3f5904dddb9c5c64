extern "C" __global__ void k(const float* bias, float* y) {
#ifdef MENDED
    if (bias)
#endif
        y[threadIdx.x] += bias[threadIdx.x];  // HERE
}
