// FlashAttention: query tiles outside, key tiles inside; S and P never leave the chip. Twin: refsim/attention/flash.py.
#include "fold.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
flash(const Call call, const T* q, const T* k, const T* v, const int* cu_seqlens_q, const int* cu_seqlens_k,
      const float* alibi_slopes, const float* sinks, T* out, float* lse) {
    extern __shared__ __align__(16) unsigned char memory[];
    Chip chip(call, memory);
    Rows rows;
    if (!find_rows(call, call.tile_tokens, call.query_tiles, cu_seqlens_q, cu_seqlens_k, nullptr, rows)) return;
    load_per_head<ALIBI_SLOPES>(call, rows, alibi_slopes, chip.slopes);
    load_per_head<SINKS>(call, rows, sinks, chip.sinks);
    load_q<D_PADDED>(call, rows, q, chip.q);
    __syncthreads();
    empty_state(call, rows, chip, sinks != nullptr);
    Output output;
    ContiguousKeys keys(call, rows, k, v);
    fold_keys(call, rows, key_span(rows), keys, alibi_slopes != nullptr, chip, output);
    output.gather(rows, chip);
    store(call, rows, chip, out, lse);
}
