// A grid-stride sum: registers, then shuffles, then one value a warp in shared memory, then one atomic a block.
extern "C" __global__ void sum(const float* __restrict__ x, float* out, int n) {
    __shared__ float partial[32];
    float total = 0.0f;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) total += x[i];
    for (int offset = warpSize / 2; offset > 0; offset /= 2) total += __shfl_down_sync(0xffffffff, total, offset);
    int lane = threadIdx.x % warpSize, warp = threadIdx.x / warpSize;
    if (lane == 0) partial[warp] = total;
    __syncthreads();
    if (warp == 0) {
        total = lane < blockDim.x / warpSize ? partial[lane] : 0.0f;
        for (int offset = warpSize / 2; offset > 0; offset /= 2) total += __shfl_down_sync(0xffffffff, total, offset);
        if (lane == 0) atomicAdd(out, total);
    }
}
