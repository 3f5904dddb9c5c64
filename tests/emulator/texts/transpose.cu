template <int PAD>
__device__ void transpose(const float* in, float* out, int n) {
    __shared__ float tile[32][32 + PAD];
    int x = threadIdx.x, column = blockIdx.x * 32, row = blockIdx.y * 32;
    for (int y = threadIdx.y; y < 32; y += blockDim.y) tile[y][x] = in[(row + y) * n + column + x];
    __syncthreads();
    for (int y = threadIdx.y; y < 32; y += blockDim.y) out[(column + y) * n + row + x] = tile[x][y];
}

extern "C" __global__ void conflicts(const float* in, float* out, int n) { transpose<0>(in, out, n); }
extern "C" __global__ void padded(const float* in, float* out, int n) { transpose<1>(in, out, n); }
