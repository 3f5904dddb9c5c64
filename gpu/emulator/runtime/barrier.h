// __syncthreads and its counting forms.
#pragma once
#include "scheduler.h"

static void step_at_barrier();

static void check_barrier() {
    bool missed = block.live < block.nthreads, split = block.line_low != block.line_high;
    if (!missed && !split) return;
    Thread* waiting = nullptr;
    Thread* other = nullptr;
    for (u32 i = 0; i < block.nthreads; i++) {
        Thread* t = &threads[i];
        if (t->state == AT_BARRIER && (!waiting || t->line < waiting->line)) waiting = t;
    }
    for (u32 i = 0; i < block.nthreads && !other; i++) {
        Thread* t = &threads[i];
        if (split ? t->state == AT_BARRIER && t->line != waiting->line : t->state == DONE) other = t;
    }
    Thread* back = current;
    current = waiting;
    if (Report* r = new_report(BARRIER, waiting->pc)) {
        r->other_block = block.id;
        r->other_thread = other->id;
        r->other_pc = split ? other->pc : 0;
        r->line = waiting->line;
        r->other_line = split ? other->line : 0;
        if (split)
            describe(r, "threads of one block wait at different barriers");
        else
            describe(r, "%u of %u threads wait at the barrier; the others ended without reaching it", block.live, block.nthreads);
        settle(BARRIER);
    }
    current = back;
}

static void note_arrival(Warp* w) {
    if (!launch->keep_events || worker->nevents >= MAX_EVENTS) return;
    worker->events[worker->nevents++] = {block.id, (u32)(w - warps), block.barriers, block.line_low, w->issued, 0};
}

// Everybody alive is here. The last to come goes on at once, without a switch.
static void release_barrier() {
    if (traced) flush_log();
    check_barrier();
    u64 latest = 0;
    u32 first_event = worker->nevents;
    for (u32 i = 0; i < block.nwarps; i++) {
        note_arrival(&warps[i]);
        if (warps[i].issued > latest) latest = warps[i].issued;
    }
    for (u32 i = first_event; i < worker->nevents; i++) worker->events[i].released = latest;
    for (u32 i = 0; i < block.nwarps; i++) warps[i].issued = latest;
    if (launch->step_block == (i32)block.id) step_at_barrier();
    u64 results[4] = {0, (u64)block.sum, block.every, block.some};
    for (u32 i = 0; i < block.nthreads; i++) {
        Thread& t = threads[i];
        if (t.state != AT_BARRIER) continue;
        t.state = RUNNING;
        t.result = results[t.source];
    }
    for (u32 i = 0; i < block.nwarps; i++) warps[i].ready = warps[i].existing & ~warps[i].done;
    block.arrived = 0;
    block.sum = 0;
    block.every = true;
    block.some = false;
    block.line_low = ~0u;
    block.line_high = 0;
    block.barriers++;
    block.barrier = ++now;
}

enum BarrierForm : u32 { PLAIN, COUNT, EVERY, SOME };

EXPORT int refsim_barrier(u32 form, int predicate, u32 line) {
    Thread* t = current;
    t->pc = CALLER;
    t->line = line;
    t->source = form;
    if (line < block.line_low) block.line_low = line;
    if (line > block.line_high) block.line_high = line;
    block.sum += predicate != 0;
    block.every &= predicate != 0;
    block.some |= predicate != 0;
    t->state = AT_BARRIER;
    warp->ready &= ~(1u << t->lane);
    if (++block.arrived == block.live)
        release_barrier();
    else
        yield_();
    return (int)t->result;
}
