// The trace. Lanes run one after another, so each lane's accesses are written down beside those of its warp, by place
// in the code and turn, until the warp stops; then each row is one warp access, and sectors and banks can be counted.
#pragma once
#include <stdlib.h>
#include "scheduler.h"

struct Arena {
    u64 base, nbytes;
    u32 shift, slots;
};
static Arena arena;
static Slot slots[4096];
static u64 shared_low, shared_span;  // from the first to the last byte of shared memory

constexpr u32 ROWS = 512;

struct Key {
    u64 pc;
    i32 region;
    u16 size, direction;
    bool operator==(const Key& o) const {
        return pc == o.pc && region == o.region && size == o.size && direction == o.direction;
    }
};

static struct {
    u32 used;
    u32 mask[ROWS];
    Key key[ROWS];
    u64 address[ROWS][32];
} rows;

static __attribute__((noinline)) void log_slow(u64 a, const Key& key) {
    Thread* t = current;
    u32 bit = 1u << t->lane;
    for (;;) {
        // The row of this lane's turn is the first of its key that the lane has not filled.
        for (u32 i = 0; i < rows.used; i++)
            if (!(rows.mask[i] & bit) && rows.key[i] == key) {
                rows.mask[i] |= bit;
                rows.address[i][t->lane] = a;
                t->cursor = i + 1;
                return;
            }
        if (rows.used < ROWS) break;
        // Full: this lane waits until the others of its warp have come as far.
        warp->ready &= ~bit;
        warp->paused |= bit;
        yield_();
    }
    u32 i = rows.used++;
    rows.key[i] = key;
    rows.mask[i] = bit;
    rows.address[i][t->lane] = a;
    if (t->cursor == i) t->cursor = i + 1;
}

static inline void log_access(u64 a, u32 size, u32 direction, u64 pc, i32 region) {
    Thread* t = current;
    u32 i = t->cursor, bit = 1u << t->lane;
    Key key{pc, region, (u16)size, (u16)direction};
    if (LIKELY(i < rows.used && rows.key[i] == key && !(rows.mask[i] & bit))) {
        rows.mask[i] |= bit;
        rows.address[i][t->lane] = a;
        t->cursor = i + 1;
        return;
    }
    log_slow(a, key);
}

static Site* site_of(const Key& key) {
    u64 h = (key.pc * 0x9e3779b97f4a7c15ull) ^ ((u64)(u32)key.region * 0xff51afd7ed558ccdull) ^ (key.size * 8 + key.direction);
    h ^= h >> 29;
    for (u32 probe = 0; probe < MAX_SITES; probe++) {
        Site* s = &worker->sites[(h + probe) % MAX_SITES];
        if (s->used && s->pc == key.pc && s->region == key.region && s->size == key.size && s->direction == key.direction)
            return s;
        if (!s->used) {
            s->used = 1;
            s->pc = key.pc;
            s->region = key.region;
            s->size = key.size;
            s->direction = key.direction;
            return s;
        }
    }
    worker->failed = 1;
    return &worker->sites[0];
}

// Addresses in rising order without repeats; kernels mostly give them so.
static u32 sorted_unique(u64* out, const u64* address, u32 mask) {
    u32 n = 0;
    bool rising = true;
    for (; mask; mask &= mask - 1) {
        u64 a = address[__builtin_ctz(mask)];
        if (n && a == out[n - 1]) continue;
        if (n && a < out[n - 1]) rising = false;
        out[n++] = a;
    }
    if (rising) return n;
    for (u32 i = 1; i < n; i++) {
        u64 x = out[i];
        u32 j = i;
        for (; j && out[j - 1] > x; j--) out[j] = out[j - 1];
        out[j] = x;
    }
    u32 m = 1;
    for (u32 i = 1; i < n; i++)
        if (out[i] != out[m - 1]) out[m++] = out[i];
    return m;
}

static void count_sectors(Site* s, const u64* unique, u32 n, u32 size) {
    u64 last = ~0ull, end = 0;
    for (u32 i = 0; i < n; i++) {
        u64 first_sector = unique[i] >> 5, last_sector = (unique[i] + size - 1) >> 5;
        s->sectors += (first_sector != last) + (last_sector != first_sector);
        last = last_sector;
        u64 from = unique[i] > end ? unique[i] : end;
        end = unique[i] + size;
        s->useful += end - from;
    }
}

// Shared memory has 32 banks of 4 bytes. Wide accesses go out as halves or quarters of the warp; within one
// pass every bank gives one word, so it takes as many wavefronts as the busiest bank has different words.
static void count_wavefronts(Site* s, const u64* address, u32 mask, u32 size) {
    u32 lanes = size <= 4 ? 32 : size == 8 ? 16 : 8;
    u32 words = size <= 4 ? 1 : size / 4;
    for (u32 first = 0; first < 32; first += lanes) {
        u32 part = lanes == 32 ? mask : mask >> first & ((1u << lanes) - 1);
        if (!part) continue;
        u64 word[32];
        u32 n = 0, depth[32] = {}, worst = 0;
        for (; part; part &= part - 1) word[n++] = address[first + __builtin_ctz(part)] >> 2;
        bool rising = true;
        for (u32 i = 1; i < n; i++) rising &= word[i] > word[i - 1];
        for (u32 i = 0; i < n; i++) {
            bool seen = false;
            if (!rising)
                for (u32 j = 0; j < i && !seen; j++) seen = word[j] == word[i];
            if (seen) continue;
            for (u32 w = 0; w < words; w++) {
                u32 d = ++depth[(word[i] + w) % 32];
                if (d > worst) worst = d;
            }
        }
        s->wavefronts += worst;
        s->ideal++;
    }
}

static void touch(Slot* slot, u32 direction, u64 offset, u32 size) {
    u8* map = slot->touched[direction] + (offset >> 3);
    u32 bits = ((1u << size) - 1) << (offset & 7);
    for (; bits; bits >>= 8, map++)
        if ((*map & bits) != (bits & 255)) __atomic_fetch_or(map, (u8)bits, __ATOMIC_RELAXED);
}

static void keep_sample(u32 i) {
    const Key& k = rows.key[i];
    Sample* s = &worker->samples[worker->nsamples++];
    s->pc = k.pc;
    s->region = k.region;
    s->size = k.size;
    s->direction = k.direction;
    s->block = block.id;
    s->warp = warp - warps;
    s->mask = rows.mask[i];
    memcpy(s->address, rows.address[i], sizeof s->address);
}

static void flush_log() {
    for (u32 i = 0; i < rows.used; i++) {
        const Key& k = rows.key[i];
        Site* s = site_of(k);
        u32 mask = rows.mask[i], lanes = __builtin_popcount(mask);
        s->requests++;
        s->lanes += lanes;
        s->nbytes += (u64)lanes * k.size;
        if (k.region == REGION_SHARED) {
            count_wavefronts(s, rows.address[i], mask, k.size);
        } else {
            u64 unique[32];
            u32 n = sorted_unique(unique, rows.address[i], mask);
            count_sectors(s, unique, n, k.size);
            if (k.region >= 0) {
                Slot* slot = &slots[k.region];
                for (u32 j = 0; j < n; j++) touch(slot, k.direction, unique[j] - slot->base, k.size);
            }
        }
        if (launch->keep_samples && worker->nsamples < MAX_SAMPLES && block.id < launch->keep_samples) keep_sample(i);
    }
    warp->issued += rows.used;
    rows.used = 0;
    for (u32 i = 0; i < 32; i++) warp->lanes[i].cursor = 0;
}
