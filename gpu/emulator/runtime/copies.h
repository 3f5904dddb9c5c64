// cp.async: a copy is in flight until its thread waits for it. Here it lands at that wait and no sooner: until then
// its place holds poison and counts as unwritten, so that a kernel that forgets the wait is found out.
#pragma once
#include <stdlib.h>
#include "access.h"

constexpr u32 MAX_COPIES = 4096;

struct PendingCopies {
    u32 n, groups;  // groups committed so far
    struct {
        u64 to, pc;
        u32 size, group;
        u8 bytes[16];
    } copy[MAX_COPIES];
};

// Written, as far as races go, from the moment of issue; but with nothing in it.
static void take_away(u64 a, u32 size) {
    poison(a, size);
    if (!traced || a - shared_low >= shared_span) return;
    for (u64 word = (a - shared_low) >> 2; word <= (a - shared_low + size - 1) >> 2; word++) shared_cells[word].init_bytes = 0;
}

static bool in_flight(u64 a) {
    for (u32 i = 0; i < block.nthreads; i++) {
        PendingCopies* q = threads[i].copies;
        for (u32 j = 0; q && j < q->n; j++)
            if (a - q->copy[j].to < q->copy[j].size) return true;
    }
    return false;
}

EXPORT void refsim_copy_async(void* to, const void* from, u32 size, u32 given) {
    u64 pc = CALLER;
    if (!current->copies) current->copies = (PendingCopies*)calloc(1, sizeof(PendingCopies));
    PendingCopies* q = current->copies;
    if (q->n == MAX_COPIES) {
        if (Report* r = new_report(CRASH, pc)) describe(r, "more than %u copies in flight in one thread", MAX_COPIES);
        leave();
    }
    auto& c = q->copy[q->n++];
    c.to = (u64)to;
    c.pc = pc;
    c.size = size;
    c.group = q->groups;
    memset(c.bytes, 0, sizeof c.bytes);
    if (traced && given) access((u64)from, given, READ, pc);
    memcpy(c.bytes, from, given);
    if (traced) access(c.to, size, WRITE, pc);
    take_away(c.to, size);
}

EXPORT void refsim_copy_commit() {
    if (current->copies) current->copies->groups++;
}

// Waits until at most `pending` committed groups are in flight; ~0: for everything, committed or not.
EXPORT void refsim_copy_wait(u32 pending) {
    PendingCopies* q = current->copies;
    if (!q) return;
    u32 landed = pending == ~0u ? ~0u : q->groups > pending ? q->groups - pending : 0, kept = 0;
    for (u32 i = 0; i < q->n; i++) {
        auto& c = q->copy[i];
        if (c.group >= landed) {
            q->copy[kept++] = c;
            continue;
        }
        memcpy((void*)c.to, c.bytes, c.size);
        if (traced && c.to - shared_low < shared_span) check_shared(c.to, c.size, WRITE, c.pc);
    }
    q->n = kept;
}
