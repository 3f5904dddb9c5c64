extern "C" __global__ void k(const float* x, float* y, int n) {
    int i = threadIdx.x;
#ifdef MENDED
    float value = i < n ? x[i] : 0.0f;
#else
    if (i >= n) return;
    float value = x[i];
#endif
    for (int o = 16; o > 0; o /= 2) value += __shfl_xor_sync(0xffffffff, value, o);  // HERE
    if (i == 0) y[0] = value;
}
