// Atomic operations: traced as their own direction, exempt from races among themselves.
#pragma once
#include "access.h"

enum Operation : u32 { OP_ADD, OP_SUB, OP_EXCHANGE, OP_MIN, OP_MAX, OP_AND, OP_OR, OP_XOR, OP_INC, OP_DEC, OP_CAS };

EXPORT void refsim_fence() { current->fence = DEVICE_FENCE; }
EXPORT void refsim_fence_block() {
    if (!current->fence) current->fence = BLOCK_FENCE;
}

static void synchronise() {
    Thread* t = current;
    if (t->fence) {
        u64 order = __atomic_add_fetch(&launch->order, 1, __ATOMIC_SEQ_CST);
        t->published = order << 32 | now;
        if (t->fence == DEVICE_FENCE) launch->published[block.id] = t->published;
        t->fence = UNFENCED;
    }
    t->acquired = launch->acquired[block.id] = __atomic_load_n(&launch->order, __ATOMIC_SEQ_CST);
}

// A thread that spins on an atomic would keep its fiber for ever: let the others run now and then.
static void give_way() {
    static u64 since;
    static u32 turns;
    if (since != worker->resumes) turns = 0;
    since = worker->resumes;
    if (++turns < 1000) return;
    turns = 0;
    u32 bit = 1u << current->lane;
    if (traced) {
        warp->ready &= ~bit;
        warp->paused |= bit;
        yield_();
        return;
    }
    for (u32 i = 1; i <= 32; i++) {
        u32 lane = (current->lane + i) % 32;
        if (warp->ready >> lane & 1 && lane != current->lane) return resume(&warp->lanes[lane]);
    }
}

template <class T>
static T operate(u32 op, T old, T x, T compare) {
    switch (op) {
        case OP_ADD: return old + x;
        case OP_SUB: return old - x;
        case OP_EXCHANGE: return x;
        case OP_MIN: return x < old ? x : old;
        case OP_MAX: return x > old ? x : old;
        case OP_INC: return old >= x ? 0 : old + 1;
        case OP_DEC: return old == 0 || old > x ? x : old - 1;
        case OP_CAS: return old == compare ? x : old;
    }
    return old;
}

template <class T>
static T bitwise(u32 op, T old, T x, T compare) {
    return op == OP_AND ? old & x : op == OP_OR ? old | x : op == OP_XOR ? old ^ x : operate(op, old, x, compare);
}

#define ATOMICS(NAME, T, BITS, HOW)                                                                   \
    EXPORT T refsim_atomic_##NAME(u32 op, T* p, T x, T compare) {                                     \
        if (traced) access((u64)p, sizeof(T), ATOMIC, CALLER);                                        \
        synchronise();                                                                                \
        BITS seen = __atomic_load_n((BITS*)p, __ATOMIC_SEQ_CST), wanted;                              \
        T old;                                                                                        \
        do {                                                                                          \
            memcpy(&old, &seen, sizeof old);                                                          \
            T next = HOW(op, old, x, compare);                                                        \
            memcpy(&wanted, &next, sizeof next);                                                      \
        } while (!__atomic_compare_exchange_n((BITS*)p, &seen, wanted, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)); \
        give_way();                                                                                   \
        return old;                                                                                   \
    }
ATOMICS(i32, i32, u32, bitwise)
ATOMICS(u32, u32, u32, bitwise)
ATOMICS(i64, i64, u64, bitwise)
ATOMICS(u64, u64, u64, bitwise)
ATOMICS(u16, u16, u16, bitwise)
ATOMICS(f32, float, u32, operate)
ATOMICS(f64, double, u64, operate)
#undef ATOMICS

// Compare and swap that goes unseen: the later tries of an operation that was traced as one.
#define QUIET(NAME, T)                                                                                \
    EXPORT T refsim_atomic_quiet_##NAME(T* p, T compare, T x) {                                       \
        __atomic_compare_exchange_n(p, &compare, x, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);       \
        return compare;                                                                               \
    }
QUIET(u16, u16)
QUIET(u32, u32)
#undef QUIET

// The compiler's own atomic builtins, should a kernel use them.
#define BUILTINS(BITS, T)                                                                                       \
    EXPORT T __tsan_atomic##BITS##_load(const volatile T* p, int) {                                             \
        access((u64)p, sizeof(T), ATOMIC, CALLER);                                                              \
        return __atomic_load_n(p, __ATOMIC_SEQ_CST);                                                            \
    }                                                                                                           \
    EXPORT void __tsan_atomic##BITS##_store(volatile T* p, T x, int) {                                          \
        access((u64)p, sizeof(T), ATOMIC, CALLER);                                                              \
        __atomic_store_n(p, x, __ATOMIC_SEQ_CST);                                                               \
    }                                                                                                           \
    EXPORT T __tsan_atomic##BITS##_exchange(volatile T* p, T x, int) {                                          \
        access((u64)p, sizeof(T), ATOMIC, CALLER);                                                              \
        return __atomic_exchange_n(p, x, __ATOMIC_SEQ_CST);                                                     \
    }                                                                                                           \
    EXPORT T __tsan_atomic##BITS##_fetch_add(volatile T* p, T x, int) {                                         \
        access((u64)p, sizeof(T), ATOMIC, CALLER);                                                              \
        return __atomic_fetch_add(p, x, __ATOMIC_SEQ_CST);                                                      \
    }                                                                                                           \
    EXPORT T __tsan_atomic##BITS##_fetch_sub(volatile T* p, T x, int) {                                         \
        access((u64)p, sizeof(T), ATOMIC, CALLER);                                                              \
        return __atomic_fetch_sub(p, x, __ATOMIC_SEQ_CST);                                                      \
    }                                                                                                           \
    EXPORT T __tsan_atomic##BITS##_fetch_and(volatile T* p, T x, int) {                                         \
        access((u64)p, sizeof(T), ATOMIC, CALLER);                                                              \
        return __atomic_fetch_and(p, x, __ATOMIC_SEQ_CST);                                                      \
    }                                                                                                           \
    EXPORT T __tsan_atomic##BITS##_fetch_or(volatile T* p, T x, int) {                                          \
        access((u64)p, sizeof(T), ATOMIC, CALLER);                                                              \
        return __atomic_fetch_or(p, x, __ATOMIC_SEQ_CST);                                                       \
    }                                                                                                           \
    EXPORT T __tsan_atomic##BITS##_fetch_xor(volatile T* p, T x, int) {                                         \
        access((u64)p, sizeof(T), ATOMIC, CALLER);                                                              \
        return __atomic_fetch_xor(p, x, __ATOMIC_SEQ_CST);                                                      \
    }                                                                                                           \
    EXPORT int __tsan_atomic##BITS##_compare_exchange_strong(volatile T* p, T* seen, T x, int, int) {           \
        access((u64)p, sizeof(T), ATOMIC, CALLER);                                                              \
        return __atomic_compare_exchange_n(p, seen, x, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);              \
    }                                                                                                           \
    EXPORT int __tsan_atomic##BITS##_compare_exchange_weak(volatile T* p, T* seen, T x, int, int) {             \
        access((u64)p, sizeof(T), ATOMIC, CALLER);                                                              \
        return __atomic_compare_exchange_n(p, seen, x, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);              \
    }
BUILTINS(8, u8)
BUILTINS(16, u16)
BUILTINS(32, u32)
BUILTINS(64, u64)
#undef BUILTINS
EXPORT void __tsan_atomic_thread_fence(int) { refsim_fence(); }
EXPORT void __tsan_atomic_signal_fence(int) {}
