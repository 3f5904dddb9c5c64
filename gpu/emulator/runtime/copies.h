// cp.async: a copy is in flight until its thread waits for it. Here it lands at that wait and no sooner, so that a
// kernel that forgets the wait reads poison.
#pragma once
#include <stdlib.h>
#include "access.h"

constexpr u32 MAX_COPIES = 4096;

struct PendingCopies {
    u32 n, groups;  // groups committed so far
    struct {
        u64 to;
        u32 size, group;
        u64 pc;
        u8 bytes[16];
    } copy[MAX_COPIES];
};

EXPORT void refsim_copy_async(void* to, const void* from, u32 size, u32 given) {
    u64 pc = CALLER;
    if (!current->copies) current->copies = (PendingCopies*)calloc(1, sizeof(PendingCopies));
    PendingCopies* q = current->copies;
    if (q->n == MAX_COPIES) leave();
    auto& c = q->copy[q->n++];
    c.to = (u64)to;
    c.size = size;
    c.group = q->groups;
    c.pc = pc;
    memset(c.bytes, 0, sizeof c.bytes);
    if (given) {
        if (traced) access((u64)from, given, READ, pc);
        memcpy(c.bytes, from, given);
    }
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
        if (traced) access(c.to, c.size, WRITE, c.pc);
        memcpy((void*)c.to, c.bytes, c.size);
    }
    q->n = kept;
}
