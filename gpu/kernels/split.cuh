// What one split of the keys leaves in HBM for the reduction. The same steps in NumPy: refsim/attention/split_kv.py.
#pragma once

#include "fold.cuh"

// o_partial (splits, tokens, heads, Dv), and a number or two for each row: lse_partial, or m_partial and l_partial,
// (splits, heads, tokens). With an LSE, o is divided already; with m and l it is the bare sum.
struct Partials {
    float *o, *lse, *m, *l;
};

__device__ inline void hand_over(const Call& call, const Rows& rows, const Chip& chip, Partials to) {
    const long long split_rows = blockIdx.z * call.tokens * call.heads;
    const bool by_lse = to.lse != nullptr;
    for (int i = threadIdx.x; i < rows.count * V_HEAD_DIM; i += THREADS) {
        const int row = i / V_HEAD_DIM, column = i % V_HEAD_DIM;
        float o = chip.o[row * DV_PADDED + column];
        if (by_lse) o /= positive(chip.l[row]);
        write<O_PARTIAL>(&to.o[split_rows * V_HEAD_DIM + out_at(call, rows, row) + column], o);
    }
    for (int row = threadIdx.x; row < rows.count; row += THREADS) {
        const long long at = split_rows + lse_at(call, rows, row);
        if (by_lse) {
            write<LSE_PARTIAL>(&to.lse[at], chip.m[row] + logf(positive(chip.l[row])));
        } else {
            write<M_PARTIAL>(&to.m[at], chip.m[row]);
            write<L_PARTIAL>(&to.l[at], chip.l[row]);
        }
    }
}

template <class Keys>
__device__ inline void fold_split(const Call& call, const Rows& rows, Keys keys, const T* q, const float* alibi_slopes,
                                  Chip& chip, Partials to) {
    load_per_head<ALIBI_SLOPES>(call, rows, alibi_slopes, chip.slopes);
    load_q<D_PADDED>(call, rows, q, chip.q);
    empty_state(call, rows, chip, false);  // sinks join once, in the reduction
    Output output;
    fold_keys(call, rows, split_span(call, rows, blockIdx.z), keys, alibi_slopes != nullptr, chip, output);
    output.gather(rows, chip);
    hand_over(call, rows, chip, to);
}
