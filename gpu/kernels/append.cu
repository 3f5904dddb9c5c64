// Write new keys and values to their slots of a paged cache: a program a token. Twin: refsim/kvcache/kernels.py.
#include "copy.cuh"

struct Append {
    long long k_token, k_head, v_token, v_head;                          // of the new rows, in elements
    long long k_block, k_slot, k_cache_head, v_block, v_slot, v_cache_head;  // of the caches
    int kv_heads, block_size;
};

extern "C" __global__ void __launch_bounds__(THREADS)
append(const Append call, const T* k, const T* v, const long long* slot_mapping, T* k_cache, T* v_cache) {
    __shared__ long long slot;
    if (threadIdx.x == 0) slot = read<SLOT_MAPPING>(&slot_mapping[blockIdx.x]);
    __syncthreads();
    if (slot < 0) return;  // padding: a row that belongs nowhere
    const long long row = blockIdx.x, block = slot / call.block_size, at = slot % call.block_size;
    copy_rows<K, HEAD_DIM>(k_cache + block * call.k_block + at * call.k_slot, call.k_cache_head, k + row * call.k_token,
                           call.k_head, call.kv_heads);
    copy_rows<V, V_HEAD_DIM>(v_cache + block * call.v_block + at * call.v_slot, call.v_cache_head, v + row * call.v_token,
                             call.v_head, call.kv_heads);
}
