// A row of int8 weights times a vector, four at a time; one warp a row.
extern "C" __global__ void dequantise_dot(const char4* __restrict__ w, const float* __restrict__ scale,
                                          const float4* __restrict__ x, float* out, int n4) {
    int row = blockIdx.x * blockDim.y + threadIdx.y;
    float sum = 0;
    for (int i = threadIdx.x; i < n4; i += 32) {
        char4 q = w[row * n4 + i];
        float4 v = x[i];
        sum += q.x * v.x + q.y * v.y + q.z * v.z + q.w * v.w;
    }
#pragma unroll
    for (int m = 16; m; m >>= 1) sum += __shfl_xor_sync(0xffffffff, sum, m);
    if (threadIdx.x == 0) out[row] = sum * scale[row];
}
