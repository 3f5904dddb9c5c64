extern "C" __global__ void k(const float* x, float* total) {
    float value = x[blockIdx.x * blockDim.x + threadIdx.x];
    for (int o = 16; o > 0; o /= 2) value += __shfl_down_sync(0xffffffff, value, o);
#ifdef MENDED
    if (threadIdx.x == 0) atomicAdd(total, value);
#else
    if (threadIdx.x == 0) *total += value;  // HERE
#endif
}
