// What a program reads and writes of its rows, whatever way it computes.
#pragma once

#include "keys.cuh"

// One number a query head of the program, where the call has any.
template <int tensor>
__device__ inline void load_per_head(const Call& call, const Rows& rows, const float* from, float* to) {
    if (from != nullptr)
        for (int i = threadIdx.x; i < call.rho; i += THREADS) to[i] = read<tensor>(&from[rows.head + i]);
}

template <int STRIDE>
__device__ inline void load_q(const Call& call, const Rows& rows, const T* q, T* to) {
    load_rows<Q, HEAD_DIM, STRIDE>(to, rows.count, [=](int row) {
        return q + (rows.start + rows.token(row, call.rho)) * call.q_token + (rows.head + row % call.rho) * call.q_head;
    });
}

// Where a row's first output column lies, and where its LSE does: out (tokens, heads, Dv), lse (heads, tokens).
__device__ inline long long out_at(const Call& call, const Rows& rows, int row) {
    const long long token = rows.start + rows.token(row, call.rho);
    return (token * call.heads + rows.head + row % call.rho) * V_HEAD_DIM;
}

__device__ inline long long lse_at(const Call& call, const Rows& rows, int row) {
    return (rows.head + row % call.rho) * call.tokens + rows.start + rows.token(row, call.rho);
}
