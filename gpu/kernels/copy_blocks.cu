// Copy blocks of a paged cache to others, as copy-on-write does: a program for each pair and slot.
// Twin: refsim/kvcache/kernels.py.
#include "traffic.cuh"

const int THREADS = 128;

struct Copy {
    long long k_block, k_slot, k_head, v_block, v_slot, v_head;  // strides in elements
    int kv_heads;
};

template <int tensor, int SIZE>
__device__ inline void copy_slot(T* cache, long long to, long long from, long long head_stride, int heads) {
#ifdef ALIGNED
    const int WIDTH = CHUNK;
    typedef uint4 Word;
#else
    const int WIDTH = 1;
    typedef T Word;
#endif
    for (int i = threadIdx.x; i < heads * (SIZE / WIDTH); i += THREADS) {
        const long long at = i / (SIZE / WIDTH) * head_stride + i % (SIZE / WIDTH) * WIDTH;
        write<tensor>((Word*)&cache[to + at], read<tensor>((const Word*)&cache[from + at]));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
copy_blocks(const Copy call, const long long* block_mapping, T* k_cache, T* v_cache) {
    __shared__ long long pair[2];
    if (threadIdx.x < 2) pair[threadIdx.x] = read<BLOCK_MAPPING>(&block_mapping[2 * (long long)blockIdx.x + threadIdx.x]);
    __syncthreads();
    const long long slot = blockIdx.y, from = pair[0], to = pair[1];
    copy_slot<K, HEAD_DIM>(k_cache, to * call.k_block + slot * call.k_slot, from * call.k_block + slot * call.k_slot,
                           call.k_head, call.kv_heads);
    copy_slot<V, V_HEAD_DIM>(v_cache, to * call.v_block + slot * call.v_slot, from * call.v_block + slot * call.v_slot,
                             call.v_head, call.kv_heads);
}
