// Standard attention: three kernels, with S and P written to HBM and read back. Twin: refsim/attention/standard.py.
#include "fold.cuh"

// S and P: a matrix (n, keys) for each head, one head after another; every sequence has room for the longest.
__device__ inline long long matrix_at(const Call& call, const Rows& rows, long long sequence_stride, int row) {
    return rows.sequence * sequence_stride + ((long long)rows.head * rows.n + rows.first + row) * rows.keys;
}

__device__ inline Tile tile_from(const Call& call, const Rows& rows, int start) {
    return {start, start, min(start + call.key_tile, rows.keys), start / call.key_tile};
}

// S = scale q k^T, hidden scores and all.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
scores(const Call call, const T* q, const T* k, const int* cu_seqlens_q, const int* cu_seqlens_k,
       const float* alibi_slopes, T* s, long long sequence_stride) {
    extern __shared__ __align__(16) unsigned char memory[];
    Chip chip(call, memory);
    Rows rows;
    if (!find_rows(call, call.tile_tokens, call.query_tiles, cu_seqlens_q, cu_seqlens_k, nullptr, rows)) return;
    load_per_head<ALIBI_SLOPES>(call, rows, alibi_slopes, chip.slopes);
    load_q<D_PADDED>(call, rows, q, chip.q);
    ContiguousKeys keys(call, rows, k, nullptr);
    for (int start = 0; start < rows.keys; start += call.key_tile) {
        const Tile tile = tile_from(call, rows, start);
        const int width = tile.stop - tile.first;
        keys.load_k<D_PADDED>(chip.k, tile);
        cp_async_commit();
        cp_async_wait<0>();
        __syncthreads();
        score_tile(call, rows, chip, tile, alibi_slopes != nullptr);
        __syncthreads();
        for (int i = threadIdx.x; i < rows.count * width; i += THREADS) {
            const int row = i / width, key = i % width;
            write<S>(&s[matrix_at(call, rows, sequence_stride, row) + start + key],
                     to_storage(chip.s[row * chip.s_stride + key]));
        }
    }
}

// P = softmax(S), a warp a row. Rows of S stay on chip between the sums and P where `columns` of them fit; otherwise S
// is read twice.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
softmax(const Call call, const int* cu_seqlens_q, const int* cu_seqlens_k, const float* sinks, const T* s, T* p,
        float* lse, long long sequence_stride, int tile_rows, int row_tiles, int columns) {
    extern __shared__ __align__(16) unsigned char memory[];
    float* held = (float*)memory;  // (tile_rows, columns), if at all
    __shared__ float sink;
    Rows rows;
    if (!find_rows(call, tile_rows, row_tiles, cu_seqlens_q, cu_seqlens_k, nullptr, rows)) return;
    load_per_head<SINKS>(call, rows, sinks, &sink);
    __syncthreads();
    const int lane = threadIdx.x % 32;
    for (int row = threadIdx.x / 32; row < rows.count; row += WARPS) {
        const T* from = &s[matrix_at(call, rows, sequence_stride, row)];
        float* kept = &held[row * columns];
        float m = sinks != nullptr ? sink : MINUS_INFINITY, l = 0;
        for (int key = lane; key < rows.keys; key += 32) {
            const float score = to_float(read<S>(&from[key]));
            if (columns > 0) kept[key] = score;
            const float m_new = fmaxf(m, score), shift = fmaxf(m_new, LOWEST);
            l = l * expf(m - shift) + expf(score - shift);
            m = m_new;
        }
        const float m_row = max_over_warp(m), shift = fmaxf(m_row, LOWEST);
        l = sum_over_warp(l * expf(m - shift));
        if (sinks != nullptr) l += expf(sink - shift);
        const float some = positive(l);
        T* to = &p[matrix_at(call, rows, sequence_stride, row)];
        for (int key = lane; key < rows.keys; key += 32) {
            const float score = columns > 0 ? kept[key] : to_float(read<S>(&from[key]));
            write<P>(&to[key], to_storage(expf(score - shift) / some));
        }
        if (lane == 0) write<LSE>(&lse[lse_at(call, rows, row)], m_row + logf(some));
    }
}

// out = P V.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
output(const Call call, const T* p, const T* v, const int* cu_seqlens_q, const int* cu_seqlens_k, T* out,
       long long sequence_stride) {
    extern __shared__ __align__(16) unsigned char memory[];
    Chip chip(call, memory);
    Rows rows;
    if (!find_rows(call, call.tile_tokens, call.query_tiles, cu_seqlens_q, cu_seqlens_k, nullptr, rows)) return;
    for (int row = threadIdx.x; row < rows.count; row += THREADS) chip.fade[row] = 1;
    Output output;
    ContiguousKeys keys(call, rows, nullptr, v);
    for (int start = 0; start < rows.keys; start += call.key_tile) {
        const Tile tile = tile_from(call, rows, start);
        const int width = round_up(tile.stop - tile.first, 4);
        keys.load_v<DV_PADDED>(chip.v, tile);
        cp_async_commit();
        for (int i = threadIdx.x; i < rows.count * width; i += THREADS) {
            const int row = i / width, key = i % width;
            chip.s[row * chip.s_stride + key] =
                start + key < tile.stop ? to_float(read<P>(&p[matrix_at(call, rows, sequence_stride, row) + start + key])) : 0;
        }
        cp_async_wait<0>();
        __syncthreads();
        output.absorb_values(rows, chip, tile);
        __syncthreads();
    }
    output.gather(rows, chip);
    for (int i = threadIdx.x; i < rows.count * V_HEAD_DIM; i += THREADS) {
        const int row = i / V_HEAD_DIM, column = i % V_HEAD_DIM;
        write<OUT>(&out[out_at(call, rows, row) + column], to_storage(chip.o[row * DV_PADDED + column]));
    }
}
