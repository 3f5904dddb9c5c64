// Split-KV over contiguous keys, first kernel: blockIdx.z folds its share of the keys. Then reduce.cu.
// Twin: refsim/attention/split_kv.py.
#include "split.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
split_kv(const Call call, const T* q, const T* k, const T* v, const int* cu_seqlens_q, const int* cu_seqlens_k,
         const float* alibi_slopes, float* o_partial, float* lse_partial, float* m_partial, float* l_partial) {
    extern __shared__ __align__(16) unsigned char memory[];
    Chip chip(call, memory);
    Rows rows;
    if (!find_rows(call, call.tile_tokens, call.query_tiles, cu_seqlens_q, cu_seqlens_k, nullptr, rows)) return;
    ContiguousKeys keys(call, rows, k, v);
    fold_split(call, rows, keys, q, alibi_slopes, chip, {o_partial, lse_partial, m_partial, l_partial});
}
