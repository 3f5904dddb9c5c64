// Attention over two sets of keys from the attention over each, by their LSEs: a program for ROWS tokens of a head.
// Twin: refsim/attention/merge.py.
#include "traffic.cuh"

const int THREADS = 128;

extern "C" __global__ void __launch_bounds__(THREADS)
merge(const T* out_a, const float* lse_a, const T* out_b, const float* lse_b, T* out, float* lse, long long tokens,
      int heads) {
    __shared__ float weight_a[ROWS], weight_b[ROWS];
    const long long first = (long long)blockIdx.x * ROWS, head = blockIdx.y;
    const int rows = (int)min((long long)ROWS, tokens - first);
    if (threadIdx.x < rows) {
        const long long at = head * tokens + first + threadIdx.x;
        const float a = read<LSE_A>(&lse_a[at]), b = read<LSE_B>(&lse_b[at]);
        const float m = fmaxf(a, b), shift = fmaxf(m, LOWEST);  // two empty sets: m is -inf, all weights 0
        const float l = positive(expf(a - shift) + expf(b - shift));
        weight_a[threadIdx.x] = expf(a - shift) / l;
        weight_b[threadIdx.x] = expf(b - shift) / l;
        write<LSE>(&lse[at], m + logf(l));
    }
    __syncthreads();
    for (int i = threadIdx.x; i < rows * V_HEAD_DIM; i += THREADS) {
        const int row = i / V_HEAD_DIM;
        const long long at = ((first + row) * heads + head) * V_HEAD_DIM + i % V_HEAD_DIM;
        const float a = to_float(read<OUT_A>(&out_a[at])), b = to_float(read<OUT_B>(&out_b[at]));
        // A weight of zero selects nothing, even where the value is NaN.
        const float from_a = weight_a[row] != 0 ? weight_a[row] * a : 0, from_b = weight_b[row] != 0 ? weight_b[row] * b : 0;
        write<OUT>(&out[at], to_storage(from_a + from_b));
    }
}
