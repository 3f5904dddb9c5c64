extern "C" __global__ void k(const int* x, int* y) {
#ifdef MENDED
    y[threadIdx.x] = x[threadIdx.x] ? 100 / x[threadIdx.x] : 0;
#else
    y[threadIdx.x] = 100 / x[threadIdx.x];  // HERE
#endif
}
