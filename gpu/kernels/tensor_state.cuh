// What the fold on tensor cores holds: tiles in shared memory, and each warp's state in its registers.
#pragma once

#include "rows.cuh"

const int BLOCKS = 2;  // that must fit on a multiprocessor
const int WARPS = THREADS / 32, ROW_TILES = ROWS / (16 * WARPS);  // ROW_TILES: 16-row tiles a warp
const int STEP = V_HEAD_DIM <= 64 ? 64 : 32;                      // keys at a time, so that S and O fit the registers
// Rows lie an odd number of chunks apart: the 8 rows of a matrix that ldmatrix reads fall in 8 different banks.
const int D_STRIDE = (HEAD_DIM / CHUNK | 1) * CHUNK, DV_STRIDE = (V_HEAD_DIM / CHUNK | 1) * CHUNK;
// Steps along the head that are loaded ahead: as many as each generation's compiler finds registers for.
#if __CUDA_ARCH__ >= 900
const int AHEAD = 2;
#else
const int AHEAD = 1;
#endif
const float LOG2E = 1.4426950408889634f, LN2 = 0.6931471805599453f;

__device__ inline void multiply(float d[4], const unsigned a[4], const unsigned b[2]) {
#ifdef BFLOAT16
    mma_bf16(d, a, b, d);
#else
    mma_f16(d, a, b, d);
#endif
}

// Two floats rounded to the storage type, in one word.
__device__ inline unsigned pack(float low, float high) {
    const T pair[2] = {to_storage(low), to_storage(high)};
    unsigned short bits[2];
    memcpy(bits, pair, 4);
    return bits[0] | (unsigned)bits[1] << 16;
}

// On-chip memory: q (and at the end the output), two tiles of k and of v, block ids. gpu/ops/tiles.py knows its size.
struct TensorChip {
    T *q, *out, *k, *v;
    float *slopes, *sinks;
    int *ids, keys;  // keys: of a tile, in whole steps

    __device__ TensorChip(const Call& call, unsigned char* memory) : keys(round_up(call.key_tile, STEP)) {
        q = (T*)memory;
        out = q;
        k = q + ROWS * max(D_STRIDE, DV_STRIDE);
        v = k + 2 * keys * D_STRIDE;
        slopes = (float*)(v + 2 * keys * DV_STRIDE);
        sinks = slopes + ROWS;
        ids = (int*)(sinks + ROWS);
    }

    __device__ T* k_of(Tile tile) const { return k + tile.number % 2 * keys * D_STRIDE; }
    __device__ T* v_of(Tile tile) const { return v + tile.number % 2 * keys * DV_STRIDE; }
};

// Zeros in the rows behind the last one loaded, up to a whole step: they are multiplied, by weights of zero.
template <int STRIDE>
__device__ inline void fill_up(T* tile, int rows, int up_to) {
    for (int i = threadIdx.x; i < (up_to - rows) * (STRIDE / CHUNK); i += THREADS)
        *(uint4*)&tile[rows * STRIDE + i * CHUNK] = make_uint4(0, 0, 0, 0);
}

// The state of a warp's rows. Lane i holds rows i / 4 and i / 4 + 8 of each 16-row tile, and of each 8 columns the pair
// 2 (i % 4); see mma.cuh. m counts in base 2, and l is this lane's share of the sum.
struct TensorState {
    float o[ROW_TILES][V_HEAD_DIM / 8][4];
    float m[ROW_TILES][2], l[ROW_TILES][2];
    int row0;  // of the warp

    __device__ TensorState(const Call& call, const TensorChip& chip, bool sinks) : o() {
        row0 = threadIdx.x / 32 * 16 * ROW_TILES;
#pragma unroll
        for (int i = 0; i < ROW_TILES; i++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                m[i][half] = sinks ? chip.sinks[row(i, half) % call.rho] * LOG2E : MINUS_INFINITY;
                l[i][half] = sinks && threadIdx.x % 4 == 0 ? 1 : 0;
            }
    }

    __device__ int row(int tile, int half) const { return row0 + 16 * tile + 8 * half + threadIdx.x % 32 / 4; }
};
