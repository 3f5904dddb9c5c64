// Attention over a paged cache on tensor cores, for prefill chunks. The same algorithm with plain arithmetic: paged.cu.
// Twin: `paged` of refsim/attention/paged.py.
#include "tensor_fold.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
paged_mma(const Call call, const T* q, const T* k_cache, const T* v_cache, const int* block_tables, const int* seq_lens,
          const int* cu_seqlens_q, const float* alibi_slopes, const float* sinks, T* out, float* lse) {
    extern __shared__ __align__(16) unsigned char memory[];
    TensorChip chip(call, memory);
    Rows rows;
    if (!find_rows(call, call.tile_tokens, call.query_tiles, cu_seqlens_q, nullptr, seq_lens, rows)) return;
    PagedKeys keys(call, rows, k_cache, v_cache, block_tables, chip.ids);
    attend(call, rows, keys, q, alibi_slopes, sinks, chip, out, lse);
}
