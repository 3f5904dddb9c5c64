// Copy blocks of a paged cache to others, as copy-on-write does: a program for each pair and slot.
// Twin: refsim/kvcache/kernels.py.
#include "copy.cuh"

struct Copy {
    long long k_block, k_slot, k_head, v_block, v_slot, v_head;  // strides in elements
    int kv_heads;
};

extern "C" __global__ void __launch_bounds__(THREADS)
copy_blocks(const Copy call, const long long* block_mapping, T* k_cache, T* v_cache) {
    __shared__ long long pair[2];
    if (threadIdx.x < 2) pair[threadIdx.x] = read<BLOCK_MAPPING>(&block_mapping[2 * (long long)blockIdx.x + threadIdx.x]);
    __syncthreads();
    const long long slot = blockIdx.y, from = pair[0], to = pair[1];
    copy_rows<K, HEAD_DIM>(k_cache + to * call.k_block + slot * call.k_slot, call.k_head,
                           k_cache + from * call.k_block + slot * call.k_slot, call.k_head, call.kv_heads);
    copy_rows<V, V_HEAD_DIM>(v_cache + to * call.v_block + slot * call.v_slot, call.v_head,
                             v_cache + from * call.v_block + slot * call.v_slot, call.v_head, call.kv_heads);
}
