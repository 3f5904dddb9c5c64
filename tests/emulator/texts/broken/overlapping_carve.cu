// Two arrays carved out of one piece of dynamic shared memory, the second begun too early.
extern "C" __global__ void k(const float* x, const int* ids, float* y) {
    extern __shared__ __align__(16) unsigned char pool[];
#ifdef MENDED
    const int first = 64;
#else
    const int first = 32;
#endif
    float* values = reinterpret_cast<float*>(pool);
    int* keys = reinterpret_cast<int*>(pool + first * sizeof(float));
    values[threadIdx.x] = x[threadIdx.x];  // HERE
    keys[threadIdx.x] = ids[threadIdx.x];  // OTHER
    __syncthreads();
    y[threadIdx.x] = values[63 - threadIdx.x] + keys[threadIdx.x];
}
