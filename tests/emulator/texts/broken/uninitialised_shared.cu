extern "C" __global__ void k(const float* x, float* y) {
    __shared__ float s[64];
#ifndef MENDED
    if (threadIdx.x < 63)
#endif
        s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = s[63 - threadIdx.x];  // HERE
}
