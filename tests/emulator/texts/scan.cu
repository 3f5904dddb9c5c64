// Inclusive prefix sums of one block's worth, doubling the reach at each step, between two halves of a buffer.
extern "C" __global__ void scan(const int* x, int* y, int n) {
    extern __shared__ int buffer[];
    int i = threadIdx.x, from = 0;
    buffer[i] = i < n ? x[i] : 0;
    __syncthreads();
    for (int reach = 1; reach < blockDim.x; reach *= 2) {
        int to = 1 - from;
        int value = buffer[from * blockDim.x + i];
        if (i >= reach) value += buffer[from * blockDim.x + i - reach];
        buffer[to * blockDim.x + i] = value;
        from = to;
        __syncthreads();
    }
    if (i < n) y[i] = buffer[from * blockDim.x + i];
}
