extern "C" __global__ void k(const float* x, float* y) {
#ifdef MENDED
    unsigned mask = 0xffffffff;
#else
    unsigned mask = 0x7fffffff;
#endif
    y[threadIdx.x] = __shfl_xor_sync(mask, x[threadIdx.x], 1);  // HERE
}
