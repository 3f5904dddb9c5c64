// The heart of every tiled kernel here: a program keeps a tile of query rows and folds key tiles into its state.
// The same steps in NumPy: refsim/attention/fold.py and refsim/softmax.py.
#pragma once

#include "rows.cuh"

const int D_PADDED = round_up(HEAD_DIM, CHUNK), DV_PADDED = round_up(V_HEAD_DIM, CHUNK);
const int WARPS = THREADS / 32;
const int BLOCKS = ROWS <= 16 ? 3 : 2;  // that must fit on a multiprocessor: what is left bounds a thread's registers

// How threads share the product P V: `LANES` threads hold a row of V together, a chunk each. Several such groups share
// the rows of the query tile; where there are few rows, several share the keys as well and add up at the end.
constexpr __device__ int power_of_two(int x) { return x <= 1 ? 1 : 2 * power_of_two((x + 1) / 2); }
const int V_CHUNKS = DV_PADDED / CHUNK, LANES = power_of_two(V_CHUNKS), GROUPS = THREADS / LANES;
const int ROW_GROUPS = GROUPS < ROWS / 4 ? GROUPS : ROWS / 4, KEY_GROUPS = GROUPS / ROW_GROUPS;
const int ROWS_EACH = ROWS / ROW_GROUPS;

// On-chip memory of one program, carved out of the launch's dynamic shared memory. gpu/ops/tiles.py knows its size.
struct Chip {
    T *q, *k, *v;
    float *o;  // lies over k and v, which are not needed any more once it is
    float *s, *m, *l, *fade, *slopes, *sinks;
    int* ids;
    int s_stride;  // rows of s keep to 16 bytes, and four neighbours lie in different banks

    __device__ Chip(const Call& call, unsigned char* memory) : s_stride(round_up(call.key_tile, 4) + 4) {
        const int tiles = call.key_tile * (D_PADDED + DV_PADDED) * (int)sizeof(T);
        q = (T*)memory;
        k = q + ROWS * D_PADDED;
        v = k + call.key_tile * D_PADDED;
        o = (float*)k;
        s = (float*)((unsigned char*)k + max(tiles, ROWS * DV_PADDED * (int)sizeof(float)));
        m = s + ROWS * s_stride;
        l = m + ROWS;
        fade = l + ROWS;
        slopes = fade + ROWS;
        sinks = slopes + ROWS;
        ids = (int*)(sinks + ROWS);
    }
};

// The state that has seen no key; a sink is a key seen already, with weight e^0 and no value.
__device__ inline void empty_state(const Call& call, const Rows& rows, Chip& chip, bool sinks) {
    for (int row = threadIdx.x; row < rows.count; row += THREADS) {
        chip.m[row] = sinks ? chip.sinks[row % call.rho] : MINUS_INFINITY;
        chip.l[row] = sinks ? 1.0f : 0.0f;
    }
}

// Four numbers, each summed over a team of 8 lanes: afterwards lane L of the team holds the sum of number L / 2.
__device__ inline float sum_over_team(const float x[4]) {
    const bool upper = threadIdx.x & 4, odd = threadIdx.x & 2;
    const float low = (upper ? x[2] : x[0]) + __shfl_xor_sync(0xffffffff, upper ? x[0] : x[2], 4);
    const float high = (upper ? x[3] : x[1]) + __shfl_xor_sync(0xffffffff, upper ? x[1] : x[3], 4);
    const float sum = (odd ? high : low) + __shfl_xor_sync(0xffffffff, odd ? low : high, 2);
    return sum + __shfl_xor_sync(0xffffffff, sum, 1);
}

// scale q k with softcap and ALiBi, -inf where the row doesn't see the key.
__device__ inline float score(const Call& call, const Rows& rows, const float* slopes, float product, int row, int key) {
    float s = product * call.scale;
    if (call.softcap != 0) s = call.softcap * tanhf(product * (call.scale / call.softcap));
    const int token = rows.token(row, call.rho);
    if (slopes != nullptr) s -= slopes[row % call.rho] * fabsf((float)(token + rows.band.offset - key));
    return rows.band.hides(token, key) ? MINUS_INFINITY : s;
}

// s = q k^T. A team of 8 lanes shares each key's row, a chunk a lane; it works on 4 rows and 4 keys at a time, so that
// a chunk loaded is used four times.
__device__ inline void score_tile(const Call& call, const Rows& rows, const Chip& chip, Tile tile, bool alibi) {
    const int TEAMS = THREADS / 8, team = threadIdx.x / 8, lane = threadIdx.x % 8;
    const int keys = tile.stop - tile.first;
    for (int key0 = 0; key0 < keys; key0 += 4 * TEAMS) {
        for (int row0 = 0; row0 < rows.count; row0 += 4) {
            float sums[4][4] = {};  // keys, rows
            for (int chunk = lane; chunk < D_PADDED / CHUNK; chunk += 8) {
                float q[4][CHUNK] = {};
#pragma unroll
                for (int i = 0; i < 4; i++)
                    if (row0 + i < rows.count) load_chunk(&chip.q[(row0 + i) * D_PADDED + chunk * CHUNK], q[i]);
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const int key = key0 + j * TEAMS + team;
                    if (key >= keys) break;
                    float k[CHUNK];
                    load_chunk(&chip.k[key * D_PADDED + chunk * CHUNK], k);
#pragma unroll
                    for (int i = 0; i < 4; i++)
#pragma unroll
                        for (int c = 0; c < CHUNK; c++) sums[j][i] += q[i][c] * k[c];
                }
            }
#pragma unroll
            for (int j = 0; j < 4; j++) {
                if (key0 + j * TEAMS >= keys) break;
                const float product = sum_over_team(sums[j]);
                const int row = row0 + lane / 2, key = key0 + j * TEAMS + team;
                if (lane % 2 == 0 && row < rows.count && key < keys)
                    chip.s[row * chip.s_stride + key] =
                        score(call, rows, alibi ? chip.slopes : nullptr, product, row, tile.first + key);
            }
        }
    }
}

__device__ inline float max_over_warp(float x) {
    for (int lanes = 16; lanes > 0; lanes /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, lanes));
    return x;
}

__device__ inline float sum_over_warp(float x) {
    for (int lanes = 16; lanes > 0; lanes /= 2) x += __shfl_xor_sync(0xffffffff, x, lanes);
    return x;
}

// s becomes P, in the storage type's precision; m and l take the tile in, and `fade` is what is left of older weights.
__device__ inline void absorb_scores(const Rows& rows, Chip& chip, Tile tile) {
    const int keys = tile.stop - tile.first;
    for (int row = threadIdx.x / 32; row < rows.count; row += WARPS) {
        float* s = &chip.s[row * chip.s_stride];
        const float m = chip.m[row], l = chip.l[row];
        float m_new = m;
        for (int key = threadIdx.x % 32; key < keys; key += 32) m_new = fmaxf(m_new, s[key]);
        m_new = max_over_warp(m_new);
        const float shift = fmaxf(m_new, LOWEST);
        float sum = 0;
        for (int key = threadIdx.x % 32; key < round_up(keys, 4); key += 32) {
            const float p = key < keys ? expf(s[key] - shift) : 0;
            sum += p;
            s[key] = to_float(to_storage(p));
        }
        sum = sum_over_warp(sum);
        __syncwarp();  // all lanes have read m and l
        if (threadIdx.x % 32 == 0) {
            const float fade = expf(m - shift);
            chip.m[row] = m_new;
            chip.l[row] = l * fade + sum;
            chip.fade[row] = fade;
        }
    }
}

// This thread's part of o: a chunk of columns of ROWS_EACH rows.
struct Output {
    float o[ROWS_EACH][CHUNK];
    int lane, row0, key_group;

    __device__ Output() : o() {
        const int group = threadIdx.x / LANES;
        lane = threadIdx.x % LANES;
        row0 = group % ROW_GROUPS * ROWS_EACH;
        key_group = group / ROW_GROUPS;
    }

    // A weight of zero selects nothing, even where the value is NaN.
    __device__ void add(int i, float p, const float v[CHUNK]) {
        if (p != 0)
#pragma unroll
            for (int c = 0; c < CHUNK; c++) o[i][c] += p * v[c];
    }

    // o = fade o + P V
    __device__ void absorb_values(const Rows& rows, const Chip& chip, Tile tile) {
        const int keys = tile.stop - tile.first;
        if (lane >= V_CHUNKS) return;
#pragma unroll
        for (int i = 0; i < ROWS_EACH; i++) {
            const float fade = row0 + i < rows.count ? chip.fade[row0 + i] : 0;
#pragma unroll
            for (int c = 0; c < CHUNK; c++) o[i][c] *= fade;
        }
        for (int key = 4 * key_group; key < keys; key += 4 * KEY_GROUPS) {
            float v[4][CHUNK] = {};
#pragma unroll
            for (int j = 0; j < 4; j++)
                if (key + j < keys) load_chunk(&chip.v[(key + j) * DV_PADDED + lane * CHUNK], v[j]);
#pragma unroll
            for (int i = 0; i < ROWS_EACH; i++) {
                if (row0 + i >= rows.count) break;
                const float4 p = *(const float4*)&chip.s[(row0 + i) * chip.s_stride + key];
                add(i, p.x, v[0]);
                add(i, p.y, v[1]);
                add(i, p.z, v[2]);
                add(i, p.w, v[3]);
            }
        }
    }

    // Bring the parts together in shared memory, one key group after the other.
    __device__ void gather(const Rows& rows, Chip& chip) const {
        for (int group = 0; group < KEY_GROUPS; group++) {
            __syncthreads();
            if (key_group != group || lane >= V_CHUNKS) continue;
#pragma unroll
            for (int i = 0; i < ROWS_EACH; i++) {
                if (row0 + i >= rows.count) break;
                float4* to = (float4*)&chip.o[(row0 + i) * DV_PADDED + lane * CHUNK];
#pragma unroll
                for (int c = 0; c < CHUNK; c += 4) {
                    const float4 before = group == 0 ? make_float4(0, 0, 0, 0) : to[c / 4];
                    to[c / 4] = make_float4(before.x + o[i][c], before.y + o[i][c + 1], before.z + o[i][c + 2],
                                            before.w + o[i][c + 3]);
                }
            }
        }
        __syncthreads();
    }
};

// Walk the key tiles of a span and fold each into the state. While a tile's scores are computed its values are on
// their way, and while its values are added the next tile's keys are.
template <class Keys>
__device__ inline void fold_keys(const Call& call, const Rows& rows, Span span, Keys keys, bool alibi, Chip& chip,
                                 Output& output) {
    if (span.first >= span.stop) return;
    Tile tile = first_tile(call, span);
    keys.keep_block(tile, keys.block_of(tile));
    __syncthreads();
    keys.template load_k<D_PADDED>(chip.k, tile);
    cp_async_commit();
    while (true) {
        keys.template load_v<DV_PADDED>(chip.v, tile);
        cp_async_commit();
        const Tile next = tile_at(call, span, (long long)tile.start + call.key_tile, tile.number + 1);
        const bool more = next.start < span.stop;
        const int id = more ? keys.block_of(next) : 0;
        cp_async_wait<1>();
        __syncthreads();  // K is here
        score_tile(call, rows, chip, tile, alibi);
        if (more) keys.keep_block(next, id);
        __syncthreads();  // K is free, S complete
        if (more) keys.template load_k<D_PADDED>(chip.k, next);
        cp_async_commit();
        absorb_scores(rows, chip, tile);
        cp_async_wait<1>();
        __syncthreads();  // V is here, P complete
        output.absorb_values(rows, chip, tile);
        if (!more) return;
        tile = next;
        __syncthreads();  // V is free
    }
}

// out = o / l and lse = m + ln l of each row; a row that saw no key gives 0 and -inf.
__device__ inline void store(const Call& call, const Rows& rows, const Chip& chip, T* out, float* lse) {
    for (int i = threadIdx.x; i < rows.count * V_HEAD_DIM; i += THREADS) {
        const int row = i / V_HEAD_DIM, column = i % V_HEAD_DIM;
        const float o = chip.o[row * DV_PADDED + column] / positive(chip.l[row]);
        write<OUT>(&out[out_at(call, rows, row) + column], to_storage(o));
    }
    for (int row = threadIdx.x; row < rows.count; row += THREADS)
        write<LSE>(&lse[lse_at(call, rows, row)], chip.m[row] + logf(positive(chip.l[row])));
}
