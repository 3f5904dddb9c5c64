// Every load and store of a kernel comes through here: the compiler's race-detector hooks, with bodies of our own.
#pragma once
#include <sys/mman.h>
#include "log.h"
#include "race.h"

// In the other modes than raise the access itself follows: give it a page of its own to land on.
static void catch_access(u64 address, u32 size) {
    u64 page = address & ~4095ull, end = (address + size + 4095) & ~4095ull;
    bool ours = address - arena.base < arena.nbytes;
    if (address < 65536) return;  // nothing can be put at the null page: the fault follows, and its report
    for (u64 p = page; p < end; p += 4096) {
        if (!ours && msync((void*)p, 4096, MS_ASYNC) == 0) continue;  // something is there already
        if (ours)
            mprotect((void*)p, 4096, PROT_READ | PROT_WRITE);
        else
            mmap((void*)p, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    }
}

static __attribute__((noinline)) void out_of_bounds(u64 address, u32 size, u32 direction, u64 pc, i32 region) {
    if (Report* r = new_report(OUT_OF_BOUNDS, pc)) {
        r->region = region;
        r->address = address;
        r->size = size;
        r->direction = direction;
        settle(OUT_OF_BOUNDS);
    }
    if (region < 0 && region != REGION_NOWHERE) return;
    catch_access(address, size);
}

static __attribute__((noinline)) void misaligned(u64 address, u32 size, u32 direction, u64 pc, i32 region) {
    Report* r = new_report(MISALIGNED, pc);
    if (!r) return;
    r->region = region;
    r->address = address;
    r->size = size;
    r->direction = direction;
    settle(MISALIGNED);
}

static __attribute__((noinline)) void const_write(u64 address, u32 size, u32 direction, u64 pc, i32 region) {
    Report* r = new_report(CONST_WRITE, pc);
    if (!r) return;
    r->region = region;
    r->address = address;
    r->size = size;
    r->direction = direction;
    settle(CONST_WRITE);
}

// The rarer places: shared memory, a kernel's own stack, module variables; anything else is foreign.
static __attribute__((noinline)) void access_elsewhere(u64 a, u32 size, u32 direction, u64 pc) {
    for (u32 i = 0; i < launch->nvariables; i++) {
        u64 off = a - launch->variables[i].base;
        if (off >= launch->variables[i].nbytes) continue;
        if (i >= launch->visible_variables) return;
        if (off + size > launch->variables[i].nbytes) out_of_bounds(a, size, direction, pc, REGION_MODULE);
        if (direction != READ && i < launch->const_variables) const_write(a, size, direction, pc, REGION_MODULE);
        log_access(a, size, direction, pc, REGION_MODULE);
        return;
    }
    bool inside = a - launch->module_low < launch->module_high - launch->module_low;
    if (inside && direction == READ && !(a - shared_low < shared_span)) return;  // tables of constants
    out_of_bounds(a, size, direction, pc, inside ? REGION_SHARED : REGION_NOWHERE);
}

static inline void access_shared(u64 a, u32 size, u32 direction, u64 pc) {
    static u32 last;
    Range* r = &launch->shared[last];
    if (UNLIKELY(a - r->base >= r->nbytes)) {
        u32 i = 0;
        while (i < launch->nshared && a - launch->shared[i].base >= launch->shared[i].nbytes) i++;
        if (i == launch->nshared) return access_elsewhere(a, size, direction, pc);
        last = i;
        r = &launch->shared[i];
    }
    if (UNLIKELY(a - r->base + size > r->nbytes)) return out_of_bounds(a, size, direction, pc, REGION_SHARED);
    if (UNLIKELY(a & (size - 1))) misaligned(a, size, direction, pc, REGION_SHARED);
    check_shared(a, size, direction, pc);
    log_access(a, size, direction, pc, REGION_SHARED);
}

static inline void access(u64 a, u32 size, u32 direction, u64 pc) {
    u64 d = a - arena.base;
    if (LIKELY(d < arena.nbytes)) {
        u32 region = d >> arena.shift;
        Slot* slot = &slots[region];
        u64 off = a - slot->base;
        if (UNLIKELY(off >= slot->nbytes || off + size > slot->nbytes)) return out_of_bounds(a, size, direction, pc, region);
        if (UNLIKELY(a & (size - 1))) misaligned(a, size, direction, pc, region);
        if (slot->flags) {
            if (UNLIKELY(direction != READ && slot->flags & SLOT_CONST)) const_write(a, size, direction, pc, region);
            check_global(slot, off, size, direction, pc, region);
        }
        log_access(a, size, direction, pc, region);
    } else if (a - shared_low < shared_span) {
        access_shared(a, size, direction, pc);
    } else if (a - (u64)current->stack_low >= launch->stack_nbytes) {
        access_elsewhere(a, size, direction, pc);
    }
}

// A copy of any length, as the pieces a thread would move.
static void access_range(u64 a, u64 size, u32 direction, u64 pc) {
    while (size) {
        u32 piece = 16;
        while (piece > size || a & (piece - 1)) piece /= 2;
        access(a, piece, direction, pc);
        a += piece;
        size -= piece;
    }
}

#define HOOKS(N)                                                                              \
    EXPORT void __tsan_read##N(void* p) { access((u64)p, N, READ, CALLER); }                  \
    EXPORT void __tsan_write##N(void* p) { access((u64)p, N, WRITE, CALLER); }                \
    EXPORT void __tsan_unaligned_read##N(void* p) { access_range((u64)p, N, READ, CALLER); }  \
    EXPORT void __tsan_unaligned_write##N(void* p) { access_range((u64)p, N, WRITE, CALLER); } \
    EXPORT void __tsan_volatile_read##N(void* p) { access((u64)p, N, READ, CALLER); }         \
    EXPORT void __tsan_volatile_write##N(void* p) { access((u64)p, N, WRITE, CALLER); }       \
    EXPORT void __tsan_unaligned_volatile_read##N(void* p) { access_range((u64)p, N, READ, CALLER); } \
    EXPORT void __tsan_unaligned_volatile_write##N(void* p) { access_range((u64)p, N, WRITE, CALLER); } \
    EXPORT void __tsan_read_write##N(void* p) {                                               \
        access((u64)p, N, READ, CALLER);                                                      \
        access((u64)p, N, WRITE, CALLER);                                                     \
    }
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
#undef HOOKS

EXPORT void __tsan_read_range(void* p, u64 n) { access_range((u64)p, n, READ, CALLER); }
EXPORT void __tsan_write_range(void* p, u64 n) { access_range((u64)p, n, WRITE, CALLER); }
EXPORT void* __tsan_memcpy(void* to, const void* from, u64 n) {
    access_range((u64)from, n, READ, CALLER);
    access_range((u64)to, n, WRITE, CALLER);
    return memcpy(to, from, n);
}
EXPORT void* __tsan_memmove(void* to, const void* from, u64 n) {
    access_range((u64)from, n, READ, CALLER);
    access_range((u64)to, n, WRITE, CALLER);
    return memmove(to, from, n);
}
EXPORT void* __tsan_memset(void* to, int value, u64 n) {
    access_range((u64)to, n, WRITE, CALLER);
    return memset(to, value, n);
}
EXPORT void __tsan_init() {}
EXPORT void __tsan_func_entry(void*) {}
EXPORT void __tsan_func_exit() {}
EXPORT void __tsan_vptr_update(void**, void*) {}
EXPORT void __tsan_vptr_read(void**) {}
