extern "C" __global__ void k(const float* x, float* y) {
#ifdef MENDED
    y[threadIdx.x] = 0.0f;
#endif
    y[threadIdx.x] += x[threadIdx.x];  // HERE
}
