extern "C" __global__ void k(const float* x, float* y) {
    float value = x[threadIdx.x];
    if (threadIdx.x < 16) {
#ifdef MENDED
        value += __shfl_down_sync(0x0000ffff, value, 8, 16);
#else
        value += __shfl_down_sync(0x0000ffff, value, 8);  // HERE
#endif
    }
    y[threadIdx.x] = value;
}
