// Warp intrinsics: lanes named by a mask meet, the last to come works out everybody's result.
#pragma once
#include <stdlib.h>
#include "scheduler.h"

static void order_lanes(Warp* w, u32 mask) {
    ++now;
    if ((mask | w->done) == w->existing) {
        w->synced = now;
        return;
    }
    if (!w->pair) w->pair = (u32(*)[32])calloc(32, sizeof *w->pair);
    for (u32 a = mask; a; a &= a - 1)
        for (u32 b = mask; b; b &= b - 1) w->pair[__builtin_ctz(a)][__builtin_ctz(b)] = now;
}

static void check_source(Thread* t, u32 mask) {
    if (mask >> t->source & 1) return;
    Thread* back = current;
    current = t;
    if (Report* r = new_report(MASK, t->pc)) {
        describe(r, "lane %u reads lane %u, which is not in the mask 0x%08x or has ended: the value is undefined", t->lane,
                 t->source, t->mask);
        settle(MASK);
    }
    current = back;
    t->result = 0x7fffffff7fffffffull;
}

static void complete_matrix(Warp* w, WarpKind kind, u32 mask);

static void complete(Warp* w, WarpKind kind, u32 mask) {
    Thread* lanes = w->lanes;
#define EACH(i) for (u32 m_ = mask, i; m_ && (i = __builtin_ctz(m_), true); m_ &= m_ - 1)
    u64 all = 0;
    switch (kind) {
        case SYNC: order_lanes(w, mask); break;
        case SHUFFLE:
            EACH(i) lanes[i].result = lanes[lanes[i].source].value;
            EACH(i) if (UNLIKELY(!(mask >> lanes[i].source & 1))) check_source(&lanes[i], mask);
            return;
        case BALLOT: EACH(i) all |= (u64)(lanes[i].value != 0) << i; break;
        case ANY: EACH(i) all |= lanes[i].value != 0; break;
        case ALL: all = 1; EACH(i) all &= lanes[i].value != 0; break;
        case MATCH_ANY:
            EACH(i) {
                u32 same = 0;
                for (u32 n = mask; n; n &= n - 1) same |= lanes[__builtin_ctz(n)].value == lanes[i].value ? n & -n : 0;
                lanes[i].result = same;
            }
            return;
        case MATCH_ALL: {
            u64 first = lanes[__builtin_ctz(mask)].value;
            all = mask;
            EACH(i) if (lanes[i].value != first) all = 0;
            break;
        }
        case ADD: EACH(i) all += lanes[i].value; break;
        case MIN: all = ~0u; EACH(i) if (lanes[i].value < all) all = lanes[i].value; break;
        case MAX: EACH(i) if (lanes[i].value > all) all = lanes[i].value; break;
        case MIN_SIGNED: { i32 x = INT32_MAX; EACH(i) if ((i32)lanes[i].value < x) x = (i32)lanes[i].value; all = (u32)x; break; }
        case MAX_SIGNED: { i32 x = INT32_MIN; EACH(i) if ((i32)lanes[i].value > x) x = (i32)lanes[i].value; all = (u32)x; break; }
        case AND: all = ~0ull; EACH(i) all &= lanes[i].value; break;
        case OR: EACH(i) all |= lanes[i].value; break;
        case XOR: EACH(i) all ^= lanes[i].value; break;
        default: return complete_matrix(w, kind, mask);
    }
    EACH(i) lanes[i].result = all;
#undef EACH
}

static u32 usable_mask(u32 mask, u64 pc, WarpKind kind) {
    u32 need = mask & warp->existing;
    if (UNLIKELY(!(mask >> current->lane & 1))) {
        if (Report* r = new_report(MASK, pc)) {
            describe(r, "lane %u calls %s with mask 0x%08x, which leaves it out", current->lane, warp_kind_name(kind), mask);
            settle(MASK);
        }
        need |= 1u << current->lane;
    }
    return need;
}

// Lanes of the mask that have ended will never come; a GPU of today goes on without them, the language forbids it.
static u32 without_ended(Thread* t) {
    u32 gone = t->mask & warp->done;
    if (LIKELY(!gone)) return t->mask;
    Thread* back = current;
    current = t;
    if (Report* r = new_report(MASK, t->pc)) {
        r->lanes = gone;
        describe(r, "%s names lanes 0x%08x, which have ended (mask 0x%08x)", warp_kind_name(t->kind), gone, t->mask);
        settle(MASK);
    }
    current = back;
    return t->mask & ~gone;
}

// If every lane that t waits for has come (or ended), gives all of them their results.
static bool meet(Warp* w, Thread* t) {
    u32 need = t->mask;
    if (need & ~(w->at_warp | w->done)) return false;
    u32 here = without_ended(t);
    for (u32 m = here; m; m &= m - 1) {
        Thread& other = w->lanes[__builtin_ctz(m)];
        if (LIKELY(other.mask == need && other.kind == t->kind && other.line == t->line)) continue;
        if (other.mask != need) return false;
        if (Report* r = new_report(MASK, t->pc)) {
            r->other_block = block.id;
            r->other_thread = other.id;
            r->other_pc = other.pc;
            r->line = t->line;
            r->other_line = other.line;
            describe(r, "lanes of one mask (0x%08x) wait in different places: %s and %s", need, warp_kind_name(t->kind),
                     warp_kind_name(other.kind));
            settle(MASK);
        }
        if (other.kind != t->kind) return false;
    }
    complete(w, t->kind, here);
    w->at_warp &= ~here;
    w->ready |= here;
    for (u32 m = here; m; m &= m - 1) w->lanes[__builtin_ctz(m)].state = RUNNING;
    if (traced && (here | w->done) == w->existing) flush_log();
    return true;
}

// A lane has ended: others may have waited for it alone.
static void meet_without_ended(Warp* w) {
    for (u32 m = w->at_warp; m; m &= m - 1) {
        Thread* t = &w->lanes[__builtin_ctz(m)];
        if (t->state == AT_WARP) meet(w, t);
    }
}

static u64 come(WarpKind kind, u32 mask, u64 value, u32 source, u32 line, u64 pc) {
    Thread* t = current;
    t->pc = pc;
    t->mask = usable_mask(mask, pc, kind);
    t->kind = kind;
    t->value = value;
    t->source = source;
    t->line = line;
    warp->at_warp |= 1u << t->lane;
    if (!meet(warp, t)) wait_as(AT_WARP);
    return t->result;
}

EXPORT u64 refsim_warp(WarpKind kind, u32 mask, u64 value, u32 source, u32 line) {
    return come(kind, mask, value, source, line, CALLER);
}

// All lanes, each with a piece of memory of its own that the last to come works on.
static void meet_all(WarpKind kind, void* mine, u32 line, u64 pc) { come(kind, ~0u, (u64)mine, 0, line, pc); }

// The lanes that are here together: all that come before the warp can't go on otherwise.
EXPORT u32 refsim_active_mask(u32 line) {
    current->pc = CALLER;
    current->line = line;
    warp->converging |= 1u << current->lane;
    wait_as(CONVERGING);
    return (u32)current->result;
}
