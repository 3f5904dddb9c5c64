extern "C" __global__ void k(const float* x, float* y, int n) {
    int i = threadIdx.x;
#ifdef MENDED
    float left = i > 0 ? x[i - 1] : 0.0f;
#else
    float left = x[i - 1];  // HERE
#endif
    y[i] = left;
}
