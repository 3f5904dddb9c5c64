// What the host says of an attention call, and what a program (thread block) finds out about its own part of it.
#pragma once

#include "traffic.cuh"

// Filled in by gpu/ops/call.py, field by field. Strides are in elements.
struct Call {
    long long q_token, q_head;
    long long k_block, k_token, k_head;  // contiguous keys have one block, and their tokens are its slots
    long long v_block, v_token, v_head;
    long long tokens;                        // query tokens of the whole batch
    int n, keys;                             // lengths of every sequence that no tensor gives
    int heads, rho;                          // query heads; those in one program
    int programs_per_kv_head;                // programs that share a KV head
    int tile_tokens, key_tile, query_tiles;  // tile: tokens and keys; tiles of the longest sequence
    int block_size, max_blocks;
    int num_splits;
    int left, right, top_left;  // the band: keys before and after a query's own position, -1 for no limit
    float scale, softcap;       // softcap 0: none
    float blocks_per_token;     // 1 / block_size
};

// The keys that a query sees, as `Band` of refsim/variant.py.
struct Band {
    long long offset;
    int keys, left, right;

    __device__ int clamp(long long key) const { return key < 0 ? 0 : key > keys ? keys : (int)key; }
    __device__ int first(int token) const { return left < 0 ? 0 : clamp(token + offset - left); }
    __device__ int stop(int token) const { return right < 0 ? keys : clamp(token + offset + right + 1); }
    __device__ bool hides(int token, int key) const {
        const long long at = token + offset;
        return (left >= 0 && key < at - left) || (right >= 0 && key > at + right);
    }
};

// One query tile: which rows the program works on. Row r is query token `first + r / rho`, head `head + r % rho`.
struct Rows {
    int sequence, first, tokens;  // its query tokens, counted within the sequence
    int head, kv_head, count;     // count: rows
    int n, keys;                  // lengths of the sequence
    long long start, key_start;   // its first query token in the batch, its first key among contiguous keys
    Band band;

    __device__ int token(int row, int rho) const { return first + row / rho; }
};

// Find this program's rows; false where its sequence has fewer tiles. Every length is read once a program, by one
// thread. blockIdx.x is sequence * query_tiles + tile, blockIdx.y the program among those of one query tile.
__device__ inline bool find_rows(const Call& call, int tile_tokens, int query_tiles, const int* cu_seqlens_q,
                                 const int* cu_seqlens_k, const int* seq_lens, Rows& rows) {
    __shared__ int lengths[4];
    rows.sequence = blockIdx.x / query_tiles;
    rows.first = (blockIdx.x % query_tiles) * tile_tokens;
    if (threadIdx.x == 0) {
        const bool ragged = cu_seqlens_q != nullptr;
        const int start = ragged ? read<CU_SEQLENS_Q>(&cu_seqlens_q[rows.sequence]) : rows.sequence * call.n;
        const int n = ragged ? read<CU_SEQLENS_Q>(&cu_seqlens_q[rows.sequence + 1]) - start : call.n;
        int key_start = 0, keys = call.keys;
        if (rows.first < n && cu_seqlens_k != nullptr) {
            key_start = read<CU_SEQLENS_K>(&cu_seqlens_k[rows.sequence]);
            keys = read<CU_SEQLENS_K>(&cu_seqlens_k[rows.sequence + 1]) - key_start;
        }
        if (rows.first < n && seq_lens != nullptr) keys = read<SEQ_LENS>(&seq_lens[rows.sequence]);
        lengths[0] = start;
        lengths[1] = n;
        lengths[2] = key_start;
        lengths[3] = keys;
    }
    __syncthreads();
    rows.start = lengths[0];
    rows.n = lengths[1];
    rows.key_start = lengths[2];
    rows.keys = lengths[3];
    if (rows.first >= rows.n) return false;
    rows.tokens = min(tile_tokens, rows.n - rows.first);
    rows.count = rows.tokens * call.rho;
    rows.kv_head = blockIdx.y / call.programs_per_kv_head;
    rows.head = blockIdx.y * call.rho;
    rows.band = {call.top_left ? 0 : (long long)rows.keys - rows.n, rows.keys, call.left, call.right};
    return true;
}

struct Span {
    int first, stop;
};

// The keys that any row of the tile sees.
__device__ inline Span key_span(const Rows& rows) {
    return {rows.band.first(rows.first), rows.band.stop(rows.first + rows.tokens - 1)};
}

// Split `split` of the keys that the sequence sees: even shares in whole blocks, as `Plan.splits`.
__device__ inline Span split_span(const Call& call, const Rows& rows, int split) {
    const long long unit = call.block_size;
    const long long first = rows.band.first(0), stop = rows.band.stop(rows.n - 1), origin = first / unit * unit;
    const long long share = (stop - origin + call.num_splits * unit - 1) / (call.num_splits * unit) * unit;
    const long long low = min(max(origin + split * share, first), stop);
    const long long high = min(max(origin + (split + 1) * share, first), stop);
    const Span seen = key_span(rows);
    return {max((int)low, seen.first), min((int)high, seen.stop)};
}
