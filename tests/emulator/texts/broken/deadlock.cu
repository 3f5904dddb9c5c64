extern "C" __global__ void k(const float* x, float* y) {
    float value = x[threadIdx.x];
#ifdef MENDED
    value += __shfl_xor_sync(0xffffffff, value, 16);
    __syncthreads();
#else
    if (threadIdx.x < 16)
        value += __shfl_xor_sync(0xffffffff, value, 16);  // HERE
    else
        __syncthreads();
#endif
    y[threadIdx.x] = value;
}
