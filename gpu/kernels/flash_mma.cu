// FlashAttention on tensor cores. The same algorithm with plain arithmetic: flash.cu. Twin: refsim/attention/flash.py.
#include "tensor_fold.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
flash_mma(const Call call, const T* q, const T* k, const T* v, const int* cu_seqlens_q, const int* cu_seqlens_k,
          const float* alibi_slopes, const float* sinks, T* out, float* lse) {
    extern __shared__ __align__(16) unsigned char memory[];
    TensorChip chip(call, memory);
    Rows rows;
    if (!find_rows(call, call.tile_tokens, call.query_tiles, cu_seqlens_q, cu_seqlens_k, nullptr, rows)) return;
    ContiguousKeys keys(call, rows, k, v);
    attend(call, rows, keys, q, alibi_slopes, sinks, chip, out, lse);
}
