// Split-KV, second kernel: lse = ln sum e^lse_i, out = sum e^(lse_i - lse) o_i; a sink joins here, once.
// With m and l in place of the LSE, a split weighs e^(m_i - m), its sum is l_i and its o_i is not yet divided.
// Twin: `_reduce` of refsim/attention/split_kv.py.
#include "fold.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
reduce(const Call call, const int* cu_seqlens_q, const int* cu_seqlens_k, const int* seq_lens, const float* sinks,
       const float* o_partial, const float* lse_partial, const float* m_partial, const float* l_partial, T* out,
       float* lse) {
    extern __shared__ __align__(16) unsigned char memory[];
    float* weights = (float*)memory;  // (splits, rows)
    Rows rows;
    if (!find_rows(call, call.tile_tokens, call.query_tiles, cu_seqlens_q, cu_seqlens_k, seq_lens, rows)) return;
    float* held = weights + call.num_splits * rows.count;
    load_per_head<SINKS>(call, rows, sinks, held);
    const long long split_rows = call.tokens * call.heads;
    for (int i = threadIdx.x; i < call.num_splits * rows.count; i += THREADS) {
        const long long at = i / rows.count * split_rows + lse_at(call, rows, i % rows.count);
        weights[i] = lse_partial != nullptr ? read<LSE_PARTIAL>(&lse_partial[at]) : read<M_PARTIAL>(&m_partial[at]);
    }
    __syncthreads();
    for (int row = threadIdx.x; row < rows.count; row += THREADS) {
        float m = sinks != nullptr ? held[row % call.rho] : MINUS_INFINITY;
        for (int split = 0; split < call.num_splits; split++) m = fmaxf(m, weights[split * rows.count + row]);
        const float shift = fmaxf(m, LOWEST);
        float l = sinks != nullptr ? expf(held[row % call.rho] - shift) : 0;
        for (int split = 0; split < call.num_splits; split++) {
            float& weight = weights[split * rows.count + row];
            weight = expf(weight - shift);
            if (lse_partial != nullptr)
                l += weight;
            else
                l += weight * read<L_PARTIAL>(&l_partial[split * split_rows + lse_at(call, rows, row)]);
        }
        l = positive(l);
        for (int split = 0; split < call.num_splits; split++) weights[split * rows.count + row] /= l;
        write<LSE>(&lse[lse_at(call, rows, row)], m + logf(l));
    }
    __syncthreads();
    for (int i = threadIdx.x; i < rows.count * V_HEAD_DIM; i += THREADS) {
        const int row = i / V_HEAD_DIM;
        const long long at = out_at(call, rows, row) + i % V_HEAD_DIM;
        float o = 0;
#pragma unroll 4
        for (int split = 0; split < call.num_splits; split++)
            o += weights[split * rows.count + row] * read<O_PARTIAL>(&o_partial[split * split_rows * V_HEAD_DIM + at]);
        write<OUT>(&out[at], to_storage(o));
    }
}
