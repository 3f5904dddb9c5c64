// Write new keys and values to their slots of a paged cache: a program a token. Twin: refsim/kvcache/kernels.py.
#include "traffic.cuh"

const int THREADS = 128;

struct Append {
    long long k_token, k_head, v_token, v_head;                          // of the new rows, in elements
    long long k_block, k_slot, k_cache_head, v_block, v_slot, v_cache_head;  // of the caches
    int kv_heads, block_size;
};

template <int tensor, int SIZE>
__device__ inline void copy_heads(T* to, long long to_head, const T* from, long long from_head, int heads) {
#ifdef ALIGNED
    const int WIDTH = CHUNK;
    typedef uint4 Word;
#else
    const int WIDTH = 1;
    typedef T Word;
#endif
    for (int i = threadIdx.x; i < heads * (SIZE / WIDTH); i += THREADS) {
        const int head = i / (SIZE / WIDTH), column = i % (SIZE / WIDTH) * WIDTH;
        write<tensor>((Word*)&to[head * to_head + column], read<tensor>((const Word*)&from[head * from_head + column]));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
append(const Append call, const T* k, const T* v, const long long* slot_mapping, T* k_cache, T* v_cache) {
    __shared__ long long slot;
    if (threadIdx.x == 0) slot = read<SLOT_MAPPING>(&slot_mapping[blockIdx.x]);
    __syncthreads();
    if (slot < 0) return;  // padding: a row that belongs nowhere
    const long long row = blockIdx.x, block = slot / call.block_size, at = slot % call.block_size;
    copy_heads<K, HEAD_DIM>(k_cache + block * call.k_block + at * call.k_slot, call.k_cache_head, k + row * call.k_token,
                            call.k_head, call.kv_heads);
    copy_heads<V, V_HEAD_DIM>(v_cache + block * call.v_block + at * call.v_slot, call.v_cache_head, v + row * call.v_token,
                              call.v_head, call.kv_heads);
}
