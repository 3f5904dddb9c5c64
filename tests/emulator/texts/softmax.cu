// One warp a row: maximum, sum and division without shared memory.
extern "C" __global__ void softmax(const float* x, float* y, int rows, int columns) {
    int row = blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows) return;
    float top = __int_as_float(0xff800000), sum = 0.0f;
    for (int c = threadIdx.x; c < columns; c += 32) top = fmaxf(top, x[row * columns + c]);
    for (int o = 16; o > 0; o /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, o));
    for (int c = threadIdx.x; c < columns; c += 32) sum += __expf(x[row * columns + c] - top);
    for (int o = 16; o > 0; o /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, o);
    for (int c = threadIdx.x; c < columns; c += 32) y[row * columns + c] = __expf(x[row * columns + c] - top) / sum;
}
