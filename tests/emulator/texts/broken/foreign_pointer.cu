extern "C" __global__ void k(float* y, unsigned long long address) {
#ifdef MENDED
    const float* x = y;
#else
    const float* x = (const float*)address;
#endif
    y[threadIdx.x] = 2 * x[threadIdx.x];  // HERE
}
