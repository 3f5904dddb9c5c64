extern "C" __global__ void k(const float* x, float* y) {
    float value = x[threadIdx.x];
    int any = 0;
#ifdef MENDED
    any = __any_sync(0xffffffff, value > 0.5f);
#else
    if (threadIdx.x % 2)
        any = __any_sync(0xffffffff, value > 0.5f);  // HERE
    else
        any = __all_sync(0xffffffff, value > 0.5f);  // OTHER
#endif
    y[threadIdx.x] = any;
}
