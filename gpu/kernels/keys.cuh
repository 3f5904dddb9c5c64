// Where keys and values lie, and how a program brings a tile of them to shared memory: `Keys` of refsim/attention.
#pragma once

#include "call.cuh"

const int THREADS = 128;

// Keys `first` to `stop`. `start` is where the tile would begin if all its keys were seen: at a block, or an even part
// of one. `number` counts tiles.
struct Tile {
    int start, first, stop, number;
};

__device__ inline Tile tile_at(const Call& call, Span span, long long start, int number) {
    const long long stop = min(start + call.key_tile, (long long)span.stop);
    return {(int)start, (int)max(start, (long long)span.first), (int)stop, number};
}

__device__ inline Tile first_tile(const Call& call, Span span) {
    const int unit = min(call.block_size, call.key_tile);
    return tile_at(call, span, span.first / unit * unit, 0);
}

// Copy rows of SIZE elements to shared memory, STRIDE apart; row r lies at from(r). Without -DALIGNED, one element at a
// time, and zeros up to the next whole chunk.
template <int tensor, int SIZE, int STRIDE, class From>
__device__ inline void load_rows(T* to, int rows, From from) {
#ifdef ALIGNED
    for (int i = threadIdx.x; i < rows * (SIZE / CHUNK); i += THREADS) {
        const int row = i / (SIZE / CHUNK), column = i % (SIZE / CHUNK) * CHUNK;
        copy_chunk<tensor>(&to[row * STRIDE + column], from(row) + column);
    }
#else
    const int WIDTH = round_up(SIZE, CHUNK);
    for (int i = threadIdx.x; i < rows * WIDTH; i += THREADS) {
        const int row = i / WIDTH, column = i % WIDTH;
        to[row * STRIDE + column] = column < SIZE ? read<tensor>(from(row) + column) : to_storage(0.0f);
    }
#endif
}

struct ContiguousKeys {
    const Call& call;
    const T *k, *v;  // of the sequence and KV head, its first key

    __device__ ContiguousKeys(const Call& call, const Rows& rows, const T* k, const T* v)
        : call(call),
          k(k + rows.key_start * call.k_token + rows.kv_head * call.k_head),
          v(v + rows.key_start * call.v_token + rows.kv_head * call.v_head) {}

    __device__ int block_of(Tile) const { return 0; }
    __device__ void keep_block(Tile, int) {}
    template <int STRIDE>
    __device__ void load_k(T* to, Tile tile) const {
        load_rows<K, HEAD_DIM, STRIDE>(to, tile.stop - tile.first,
                               [=](int row) { return k + (long long)(tile.first + row) * call.k_token; });
    }
    template <int STRIDE>
    __device__ void load_v(T* to, Tile tile) const {
        load_rows<V, V_HEAD_DIM, STRIDE>(to, tile.stop - tile.first,
                                 [=](int row) { return v + (long long)(tile.first + row) * call.v_token; });
    }
};

// Block ids are read once a tile, one by each of the first threads, while the tile before is still in use.
struct PagedKeys {
    const Call& call;
    const T *k, *v;    // of the KV head, block 0
    const int* table;  // of the sequence
    int* ids;          // in shared memory: the ids of two tiles

    __device__ PagedKeys(const Call& call, const Rows& rows, const T* k_cache, const T* v_cache,
                         const int* block_tables, int* ids)
        : call(call),
          k(k_cache + rows.kv_head * call.k_head),
          v(v_cache + rows.kv_head * call.v_head),
          table(block_tables + (long long)rows.sequence * call.max_blocks),
          ids(ids) {}

    __device__ int block_of(Tile tile) const {
        const int block = tile.start / call.block_size + threadIdx.x;
        return (long long)block * call.block_size < tile.stop ? read<BLOCK_TABLES>(&table[block]) : 0;
    }
    __device__ void keep_block(Tile tile, int id) { ids[tile.number % 2 * THREADS + threadIdx.x] = id; }

    __device__ long long offset(Tile tile, int row, long long block_stride, long long token_stride) const {
        const int key = tile.first + row - tile.start / call.block_size * call.block_size;
        const int block = (int)((key + 0.5f) * call.blocks_per_token);  // key / block_size, exact for the few keys of a tile
        const int slot = key - block * call.block_size;
        return ids[tile.number % 2 * THREADS + block] * block_stride + slot * token_stride;
    }
    template <int STRIDE>
    __device__ void load_k(T* to, Tile tile) const {
        load_rows<K, HEAD_DIM, STRIDE>(to, tile.stop - tile.first,
                               [=](int row) { return k + offset(tile, row, call.k_block, call.k_token); });
    }
    template <int STRIDE>
    __device__ void load_v(T* to, Tile tile) const {
        load_rows<V, V_HEAD_DIM, STRIDE>(to, tile.stop - tile.first,
                                 [=](int row) { return v + offset(tile, row, call.v_block, call.v_token); });
    }
};
