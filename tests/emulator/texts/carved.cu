// Transposes a matrix and sums its columns; both arrays are carved out of dynamic shared memory.
extern "C" __global__ void transpose_and_sum(const float* in, float* out, float* sums, int rows, int columns) {
    extern __shared__ __align__(16) unsigned char pool[];
    float(*tile)[17] = reinterpret_cast<float(*)[17]>(pool);
    float* partial = reinterpret_cast<float*>(pool + 16 * 17 * sizeof(float));
    int c = blockIdx.x * 16 + threadIdx.x, r = blockIdx.y * 16 + threadIdx.y;
    tile[threadIdx.y][threadIdx.x] = (r < rows && c < columns) ? in[r * columns + c] : 0.f;
    __syncthreads();
    if (threadIdx.y == 0) {
        float s = 0;
        for (int i = 0; i < 16; i++) s += tile[i][threadIdx.x];
        partial[threadIdx.x] = s;
    }
    int row = blockIdx.x * 16 + threadIdx.y, column = blockIdx.y * 16 + threadIdx.x;
    if (row < columns && column < rows) out[row * rows + column] = tile[threadIdx.x][threadIdx.y];
    __syncthreads();
    if (threadIdx.y == 0 && c < columns) atomicAdd(&sums[c], partial[threadIdx.x]);
}
