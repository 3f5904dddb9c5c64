// The same fold on tensor cores: each of four warps keeps 16 or 32 query rows, and S and P live in its registers.
// Compare fold.cuh, which says the same without fragments. Needs 16-bit types and head sizes in multiples of 16.
//
// As on all tensor cores a weight of zero times NaN is NaN: unlike fold.cuh, a NaN in a key that one row of the tile
// sees reaches the tile's other rows. Keys that no row sees are never read.
#pragma once

#include "tensor_state.cuh"

// s = q k^T for this warp's rows and STEP keys from `key0` of the tile on.
__device__ inline void multiply_keys(const TensorChip& chip, const T* k, int key0, int row0,
                                     float s[ROW_TILES][STEP / 8][4]) {
    const int matrix = threadIdx.x % 32 / 8, line = threadIdx.x % 8;
#pragma unroll AHEAD
    for (int d = 0; d < HEAD_DIM; d += 16) {
        unsigned a[ROW_TILES][4];
#pragma unroll
        for (int i = 0; i < ROW_TILES; i++)
            ldmatrix_x4(a[i], &chip.q[(row0 + 16 * i + matrix % 2 * 8 + line) * D_STRIDE + d + matrix / 2 * 8]);
#pragma unroll
        for (int n = 0; n < STEP; n += 16) {
            unsigned b[4];
            ldmatrix_x4(b, &k[(key0 + n + matrix / 2 * 8 + line) * D_STRIDE + d + matrix % 2 * 8]);
#pragma unroll
            for (int i = 0; i < ROW_TILES; i++) {
                multiply(s[i][n / 8], a[i], b);
                multiply(s[i][n / 8 + 1], a[i], b + 2);
            }
        }
    }
}

// Scale, softcap, ALiBi and mask, in base 2. `whole`: every row sees every key.
__device__ inline void finish_scores(const Call& call, const Rows& rows, const TensorChip& chip, const TensorState& state,
                                     Tile tile, int key0, bool whole, bool alibi, float s[ROW_TILES][STEP / 8][4]) {
    const float factor = (call.softcap != 0 ? call.softcap : call.scale) * LOG2E;
    if (call.softcap != 0)
#pragma unroll
        for (int i = 0; i < ROW_TILES * STEP / 2; i++) {
            float& x = s[i / (STEP / 2)][i / 4 % (STEP / 8)][i % 4];
            x = tanhf(x * (call.scale / call.softcap));
        }
#pragma unroll
    for (int i = 0; i < ROW_TILES; i++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = state.row(i, half);
            const int token = whole && !alibi ? 0 : rows.token(row, call.rho);
            const float slope = alibi ? chip.slopes[row % call.rho] * LOG2E : 0;
#pragma unroll
            for (int n = 0; n < STEP / 8; n++)
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    float& x = s[i][n][2 * half + c];
                    const int key = tile.first + key0 + n * 8 + threadIdx.x % 4 * 2 + c;
                    x *= factor;
                    if (alibi) x -= slope * fabsf((float)(token + rows.band.offset - key));
                    if (!whole && (key >= tile.stop || rows.band.hides(token, key))) x = MINUS_INFINITY;
                }
        }
}

// s becomes P; m, l and o take the step in.
__device__ inline void absorb(const T* v, int key0, TensorState& state, float s[ROW_TILES][STEP / 8][4]) {
#pragma unroll
    for (int i = 0; i < ROW_TILES; i++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float m = state.m[i][half];
#pragma unroll
            for (int n = 0; n < STEP / 8; n++) m = fmaxf(m, fmaxf(s[i][n][2 * half], s[i][n][2 * half + 1]));
            m = fmaxf(m, __shfl_xor_sync(0xffffffff, m, 1));
            m = fmaxf(m, __shfl_xor_sync(0xffffffff, m, 2));
            const float shift = fmaxf(m, LOWEST), fade = exp2f(state.m[i][half] - shift);
            float sum = 0;
#pragma unroll
            for (int n = 0; n < STEP / 8; n++)
#pragma unroll
                for (int c = 2 * half; c < 2 * half + 2; c++) sum += s[i][n][c] = exp2f(s[i][n][c] - shift);
            state.m[i][half] = m;
            state.l[i][half] = state.l[i][half] * fade + sum;
#pragma unroll
            for (int n = 0; n < V_HEAD_DIM / 8; n++) {
                state.o[i][n][2 * half] *= fade;
                state.o[i][n][2 * half + 1] *= fade;
            }
        }
    const int matrix = threadIdx.x % 32 / 8, line = threadIdx.x % 8;
#pragma unroll
    for (int k = 0; k < STEP; k += 16) {
        unsigned p[ROW_TILES][4];  // what the product left in a lane is what the next product wants there
#pragma unroll
        for (int i = 0; i < ROW_TILES; i++) {
            const float *low = s[i][k / 8], *high = s[i][k / 8 + 1];
            p[i][0] = pack(low[0], low[1]);
            p[i][1] = pack(low[2], low[3]);
            p[i][2] = pack(high[0], high[1]);
            p[i][3] = pack(high[2], high[3]);
        }
#pragma unroll
        for (int n = 0; n < V_HEAD_DIM; n += 16) {
            unsigned b[4];
            ldmatrix_x4_trans(b, &v[(key0 + k + matrix % 2 * 8 + line) * DV_STRIDE + n + matrix / 2 * 8]);
#pragma unroll
            for (int i = 0; i < ROW_TILES; i++) {
                multiply(state.o[i][n / 8], p[i], b);
                multiply(state.o[i][n / 8 + 1], p[i], b + 2);
            }
        }
    }
}

// Does every row of the query tile see every key of the step, with none missing?
__device__ inline bool sees_all(const Rows& rows, Tile tile, int key0) {
    const int first = tile.first + key0, last = first + STEP - 1;
    return last < tile.stop && !rows.band.hides(rows.first, last) && !rows.band.hides(rows.first + rows.tokens - 1, first);
}

// Walk the key tiles of a span; the next tile is on its way while one is folded.
template <class Keys>
__device__ inline void fold_keys(const Call& call, const Rows& rows, Span span, Keys keys, bool alibi, TensorChip& chip,
                                 TensorState& state) {
    if (span.first >= span.stop) return;
    Tile tile = first_tile(call, span);
    Tile next = tile_at(call, span, (long long)tile.start + call.key_tile, 1);
    keys.keep_block(tile, keys.block_of(tile));
    if (next.start < span.stop) keys.keep_block(next, keys.block_of(next));
    __syncthreads();
    keys.template load_k<D_STRIDE>(chip.k_of(tile), tile);
    keys.template load_v<DV_STRIDE>(chip.v_of(tile), tile);
    cp_async_commit();
    while (true) {
        const int count = tile.stop - tile.first;
        T *k = chip.k_of(tile), *v = chip.v_of(tile);
        const bool more = next.start < span.stop;
        if (more) {
            keys.template load_k<D_STRIDE>(chip.k_of(next), next);
            keys.template load_v<DV_STRIDE>(chip.v_of(next), next);
        }
        cp_async_commit();
        const Tile after = tile_at(call, span, (long long)next.start + call.key_tile, next.number + 1);
        const int id = more && after.start < span.stop ? keys.block_of(after) : 0;
        fill_up<D_STRIDE>(k, count, round_up(count, STEP));
        fill_up<DV_STRIDE>(v, count, round_up(count, STEP));
        cp_async_wait<1>();
        __syncthreads();  // the tile is here
        for (int key0 = 0; key0 < count; key0 += STEP) {
            float s[ROW_TILES][STEP / 8][4] = {};
            multiply_keys(chip, k, key0, state.row0, s);
            finish_scores(call, rows, chip, state, tile, key0, sees_all(rows, tile, key0), alibi, s);
            absorb(v, key0, state, s);
        }
        if (!more) return;
        if (after.start < span.stop) keys.keep_block(after, id);
        tile = next;
        next = after;
        __syncthreads();  // its memory is free
    }
}

// out = o / l and lse = m + ln l: by way of shared memory, so that whole rows are written at once.
__device__ inline void store(const Call& call, const Rows& rows, TensorChip& chip, TensorState& state, T* out, float* lse) {
    __syncthreads();  // all warps are done with q
#pragma unroll
    for (int i = 0; i < ROW_TILES; i++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float l = state.l[i][half];
            l += __shfl_xor_sync(0xffffffff, l, 1);
            l += __shfl_xor_sync(0xffffffff, l, 2);
            l = positive(l);
            const int row = state.row(i, half);
            if (threadIdx.x % 4 == 0 && row < rows.count)
                write<LSE>(&lse[lse_at(call, rows, row)], (state.m[i][half] + log2f(l)) * LN2);
#pragma unroll
            for (int n = 0; n < V_HEAD_DIM / 8; n++)
                *(unsigned*)&chip.out[row * DV_STRIDE + n * 8 + threadIdx.x % 4 * 2] =
                    pack(state.o[i][n][2 * half] / l, state.o[i][n][2 * half + 1] / l);
        }
    __syncthreads();
    for (int i = threadIdx.x; i < rows.count * (V_HEAD_DIM / CHUNK); i += THREADS) {
        const int row = i / (V_HEAD_DIM / CHUNK), column = i % (V_HEAD_DIM / CHUNK) * CHUNK;
        write<OUT>((uint4*)&out[out_at(call, rows, row) + column], *(const uint4*)&chip.out[row * DV_STRIDE + column]);
    }
}

template <class Keys>
__device__ inline void attend(const Call& call, const Rows& rows, Keys keys, const T* q, const float* alibi_slopes,
                              const float* sinks, TensorChip& chip, T* out, float* lse) {
    load_per_head<ALIBI_SLOPES>(call, rows, alibi_slopes, chip.slopes);
    load_per_head<SINKS>(call, rows, sinks, chip.sinks);
    load_q<D_STRIDE>(call, rows, q, chip.q);
    cp_async_commit();
    fill_up<D_STRIDE>(chip.q, rows.count, ROWS);
    __syncthreads();
    TensorState state(call, chip, sinks != nullptr);
    fold_keys(call, rows, key_span(rows), keys, alibi_slopes != nullptr, chip, state);
    store(call, rows, chip, state, out, lse);
}
