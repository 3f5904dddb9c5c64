// Who runs next. A warp runs until each of its lanes waits; a block until each of its warps does.
#pragma once
#include "fiber.h"
#include "report.h"

static void resume(Thread* next) {
    Thread* from = current;
    if (next == from) return;
    worker->resumes++;
    current = next;
    refsim_thread_idx = next->index;
    refsim_switch(&from->sp, next->sp);
}

static u32 lanes_in(Warp* w, State state) {
    u32 mask = 0;
    for (u32 i = 0; i < 32; i++)
        if (w->existing >> i & 1 && w->lanes[i].state == state) mask |= 1u << i;
    return mask;
}

static const char* warp_kind_name(WarpKind kind) {
    static const char* names[] = {"__syncwarp", "a shuffle", "__ballot_sync", "__any_sync", "__all_sync", "__match_any_sync",
                                  "__match_all_sync", "__reduce_add_sync", "__reduce_min_sync", "__reduce_max_sync",
                                  "__reduce_min_sync", "__reduce_max_sync", "__reduce_and_sync", "__reduce_or_sync",
                                  "__reduce_xor_sync", "mma.sync", "mma.sync", "ldmatrix", "ldmatrix"};
    return names[kind];
}

// Nobody can run and the block isn't done: each waiting group waits for lanes that wait elsewhere or are gone.
[[noreturn]] static void deadlock() {
    for (u32 i = 0; i < block.nwarps; i++) {
        Warp* w = &warps[i];
        u32 stuck = lanes_in(w, AT_WARP);
        if (!stuck) continue;
        Thread* t = &w->lanes[__builtin_ctz(stuck)];
        u32 missing = t->mask & w->existing & ~stuck;
        current = t;
        if (Report* r = new_report(DEADLOCK, t->pc)) {
            r->lanes = stuck;
            describe(r, "lanes 0x%08x of warp %u wait in %s with mask 0x%08x for lanes 0x%08x, of which 0x%08x wait at a "
                        "block barrier and 0x%08x have ended", stuck, i, warp_kind_name(t->kind), t->mask, missing,
                     missing & lanes_in(w, AT_BARRIER), missing & lanes_in(w, DONE));
        }
        leave();
    }
    if (Report* r = new_report(DEADLOCK, 0)) describe(r, "no thread of the block can go on");
    leave();
}

static void release_barrier();
static void meet_without_ended(Warp* w);

// Threads that asked which lanes are with them get all that came to the same place before the warp stopped.
static void converge(Warp* w) {
    while (w->converging) {
        u32 line = w->lanes[__builtin_ctz(w->converging)].line, group = 0;
        for (u32 m = w->converging; m; m &= m - 1)
            if (w->lanes[__builtin_ctz(m)].line == line) group |= m & -m;
        for (u32 m = group; m; m &= m - 1) {
            Thread* t = &w->lanes[__builtin_ctz(m)];
            t->result = group;
            t->state = RUNNING;
        }
        w->converging &= ~group;
        w->ready |= group;
    }
}

static Thread* pick() {
    for (;;) {
        if (warp->ready) return &warp->lanes[__builtin_ctz(warp->ready)];
        if (traced) flush_log();
        if (warp->paused) {
            // Each time another lane goes first: one that spins would fill the log before the one it waits for.
            u32 first = warp->rounds++ % 32, later = warp->paused >> first << first;
            warp->ready = warp->paused;
            warp->paused = 0;
            return &warp->lanes[__builtin_ctz(later ? later : warp->ready)];
        }
        if (warp->converging) {
            converge(warp);
            continue;
        }
        u32 here = warp - warps;
        for (u32 i = 1; i < block.nwarps; i++) {
            u32 j = here + i < block.nwarps ? here + i : here + i - block.nwarps;
            if (warps[j].ready) {
                warp = &warps[j];
                return &warp->lanes[__builtin_ctz(warp->ready)];
            }
        }
        if (!block.live) return &root;
        if (block.arrived == block.live) {  // the last thread that was not at the barrier has ended
            release_barrier();
            continue;
        }
        deadlock();
    }
}

static void yield_() { resume(pick()); }

static void wait_as(State state) {
    current->state = state;
    warp->ready &= ~(1u << current->lane);
    yield_();
}

[[noreturn]] static void thread_main() {
    launch->entry(launch->arguments);
    current->state = DONE;
    warp->done |= 1u << current->lane;
    warp->ready &= ~(1u << current->lane);
    block.live--;
    if (warp->at_warp) meet_without_ended(warp);
    yield_();
    __builtin_unreachable();
}

// Poison is NaN as a float, half or bfloat16, and absurd as an index.
constexpr u32 POISON = 0x7fffffff;

static void poison(u64 base, u64 nbytes) {
    u32* p = (u32*)base;
    for (u64 i = 0; i < nbytes / 4; i++) p[i] = POISON;
    for (u64 i = nbytes & ~3ull; i < nbytes; i++) ((u8*)base)[i] = POISON >> 8 * (i & 3);
}

static void run_block(u32 id) {
    const u32* g = launch->grid;
    const u32* b = launch->block;
    refsim_block_idx = {id % g[0], id / g[0] % g[1], id / (g[0] * g[1])};
    block = {};
    block.id = id;
    block.nthreads = block.live = b[0] * b[1] * b[2];
    block.nwarps = (block.nthreads + 31) / 32;
    block.start = block.barrier = ++now;
    block.line_low = ~0u;
    block.every = true;
    for (u32 i = 0; i < launch->nshared; i++) poison(launch->shared[i].base, launch->shared[i].nbytes);
    for (u32 i = 0; i < block.nwarps; i++) {
        u32 n = block.nthreads - 32 * i < 32 ? block.nthreads - 32 * i : 32;
        u32(*pair)[32] = warps[i].pair;
        warps[i] = {};
        warps[i].lanes = &threads[32 * i];
        warps[i].existing = warps[i].ready = n == 32 ? ~0u : (1u << n) - 1;
        warps[i].pair = pair;
    }
    for (u32 i = 0; i < block.nthreads; i++) {
        Thread& t = threads[i];
        t.warp = &warps[i / 32];
        t.index = {i % b[0], i / b[0] % b[1], i / (b[0] * b[1])};
        t.id = i;
        t.lane = i % 32;
        t.cursor = 0;
        t.state = RUNNING;
        t.copies = nullptr;
        t.fence = UNFENCED;
        t.published = t.acquired = 0;
        // Tops of stacks at equal distances would share a few lines of the first cache: stagger them.
        t.sp = fresh_stack(t.stack_low + launch->stack_nbytes - 64 * (i % 61), thread_main);
    }
    warp = &warps[0];
    current = &root;
    resume(pick());
    current = nullptr;
}
