// Split-KV over a paged cache, first kernel: blockIdx.z folds its share of the blocks. Then reduce.cu.
// Twin: refsim/attention/split_kv.py.
#include "split.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
split_kv_paged(const Call call, const T* q, const T* k_cache, const T* v_cache, const int* block_tables,
               const int* seq_lens, const int* cu_seqlens_q, const float* alibi_slopes, float* o_partial,
               float* lse_partial, float* m_partial, float* l_partial) {
    extern __shared__ __align__(16) unsigned char memory[];
    Chip chip(call, memory);
    Rows rows;
    if (!find_rows(call, call.tile_tokens, call.query_tiles, cu_seqlens_q, nullptr, seq_lens, rows)) return;
    PagedKeys keys(call, rows, k_cache, v_cache, block_tables, chip.ids);
    fold_split(call, rows, keys, q, alibi_slopes, chip, {o_partial, lse_partial, m_partial, l_partial});
}
