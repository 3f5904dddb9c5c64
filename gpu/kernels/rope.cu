// Rotary position embedding: a program a token turns all its heads by the same angles. Twin: refsim/model/rope_kernel.py.
#include "traffic.cuh"

const int THREADS = 128, PAIRS = HEAD_DIM / 2;

extern "C" __global__ void __launch_bounds__(THREADS)
rope(const T* x, const long long* positions, const double* inv_freq, T* out, int heads, int interleaved, double factor) {
    __shared__ float cosines[PAIRS], sines[PAIRS];
    __shared__ long long position;
    if (threadIdx.x == 0) position = read<POSITIONS>(&positions[blockIdx.x]);
    __syncthreads();
    for (int pair = threadIdx.x; pair < PAIRS; pair += THREADS) {
        const double angle = position * read<INV_FREQ>(&inv_freq[pair]);  // float32 loses it at long contexts
        cosines[pair] = (float)(cos(angle) * factor);
        sines[pair] = (float)(sin(angle) * factor);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < heads * PAIRS; i += THREADS) {
        const int head = i / PAIRS, pair = i % PAIRS;
        const long long row = ((long long)blockIdx.x * heads + head) * HEAD_DIM;
        // "half" pairs x[i] with x[i + d/2], "interleaved" x[2i] with x[2i + 1].
        const long long first = row + (interleaved ? 2 * pair : pair), second = first + (interleaved ? 1 : PAIRS);
        const float a = to_float(read<X>(&x[first])), b = to_float(read<X>(&x[second]));
        write<OUT>(&out[first], to_storage(a * cosines[pair] - b * sines[pair]));
        write<OUT>(&out[second], to_storage(b * cosines[pair] + a * sines[pair]));
    }
}
