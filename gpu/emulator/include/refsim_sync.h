// Barriers, shuffles and votes. The line of the call is taken by default argument, for reports and for pairing.
#pragma once

#define REFSIM_LINE unsigned line = __builtin_LINE()

REFSIM_INLINE void __syncthreads(REFSIM_LINE) {
    refsim_barrier(0, 0, line);
    __asm__ volatile("" ::: "memory");
}
REFSIM_INLINE int __syncthreads_count(int p, REFSIM_LINE) { return refsim_barrier(1, p, line); }
REFSIM_INLINE int __syncthreads_and(int p, REFSIM_LINE) { return refsim_barrier(2, p, line); }
REFSIM_INLINE int __syncthreads_or(int p, REFSIM_LINE) { return refsim_barrier(3, p, line); }

REFSIM_INLINE void __threadfence() { refsim_fence(); }
REFSIM_INLINE void __threadfence_block() { refsim_fence_block(); }
REFSIM_INLINE void __threadfence_system() { refsim_fence(); }

namespace refsim {
enum Kind { SYNC, SHUFFLE, BALLOT, ANY, ALL, MATCH_ANY, MATCH_ALL, ADD, MIN, MAX, MIN_SIGNED, MAX_SIGNED, AND, OR, XOR };

REFSIM_INLINE unsigned lane() {
    return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) & 31;
}

template <class T> REFSIM_INLINE unsigned long bits(T x) {
    static_assert(sizeof(T) <= 8 && sizeof(T) >= 2, "shuffles move 2, 4 or 8 bytes");
    unsigned long b = 0;
    __builtin_memcpy(&b, &x, sizeof(T));
    return b;
}
template <class T> REFSIM_INLINE T value(unsigned long b) {
    T x;
    __builtin_memcpy((void*)&x, &b, sizeof(T));
    return x;
}
template <class T> REFSIM_INLINE T shuffle(unsigned mask, T x, unsigned source, unsigned line) {
    return value<T>(refsim_warp(SHUFFLE, mask, bits(x), source & 31, line));
}
}  // namespace refsim

REFSIM_INLINE void __syncwarp(unsigned mask = 0xffffffffu, REFSIM_LINE) {
    refsim_warp(refsim::SYNC, mask, 0, 0, line);
    __asm__ volatile("" ::: "memory");
}
REFSIM_INLINE unsigned __activemask(REFSIM_LINE) { return refsim_active_mask(line); }

// Segments of `width` lanes (a power of two): a source outside the own segment means the own value.
template <class T> REFSIM_INLINE T __shfl_sync(unsigned mask, T x, int source, int width = 32, REFSIM_LINE) {
    unsigned me = refsim::lane(), low = me & ~(unsigned)(width - 1);
    return refsim::shuffle(mask, x, low | (source & (width - 1)), line);
}
template <class T> REFSIM_INLINE T __shfl_up_sync(unsigned mask, T x, unsigned delta, int width = 32, REFSIM_LINE) {
    unsigned me = refsim::lane(), low = me & ~(unsigned)(width - 1);
    return refsim::shuffle(mask, x, me >= low + delta ? me - delta : me, line);
}
template <class T> REFSIM_INLINE T __shfl_down_sync(unsigned mask, T x, unsigned delta, int width = 32, REFSIM_LINE) {
    unsigned me = refsim::lane(), high = me | (unsigned)(width - 1);
    return refsim::shuffle(mask, x, me + delta <= high ? me + delta : me, line);
}
template <class T> REFSIM_INLINE T __shfl_xor_sync(unsigned mask, T x, int lanes, int width = 32, REFSIM_LINE) {
    unsigned me = refsim::lane(), high = me | (unsigned)(width - 1), source = me ^ (unsigned)lanes;
    return refsim::shuffle(mask, x, source <= high ? source : me, line);
}

REFSIM_INLINE unsigned __ballot_sync(unsigned mask, int p, REFSIM_LINE) { return refsim_warp(refsim::BALLOT, mask, p != 0, 0, line); }
REFSIM_INLINE int __any_sync(unsigned mask, int p, REFSIM_LINE) { return refsim_warp(refsim::ANY, mask, p != 0, 0, line); }
REFSIM_INLINE int __all_sync(unsigned mask, int p, REFSIM_LINE) { return refsim_warp(refsim::ALL, mask, p != 0, 0, line); }
template <class T> REFSIM_INLINE unsigned __match_any_sync(unsigned mask, T x, REFSIM_LINE) {
    return refsim_warp(refsim::MATCH_ANY, mask, refsim::bits(x), 0, line);
}
template <class T> REFSIM_INLINE unsigned __match_all_sync(unsigned mask, T x, int* all, REFSIM_LINE) {
    unsigned same = refsim_warp(refsim::MATCH_ALL, mask, refsim::bits(x), 0, line);
    *all = same != 0;
    return same;
}
REFSIM_INLINE unsigned __reduce_add_sync(unsigned mask, unsigned x, REFSIM_LINE) { return refsim_warp(refsim::ADD, mask, x, 0, line); }
REFSIM_INLINE unsigned __reduce_min_sync(unsigned mask, unsigned x, REFSIM_LINE) { return refsim_warp(refsim::MIN, mask, x, 0, line); }
REFSIM_INLINE unsigned __reduce_max_sync(unsigned mask, unsigned x, REFSIM_LINE) { return refsim_warp(refsim::MAX, mask, x, 0, line); }
REFSIM_INLINE int __reduce_add_sync(unsigned mask, int x, REFSIM_LINE) { return (int)refsim_warp(refsim::ADD, mask, (unsigned)x, 0, line); }
REFSIM_INLINE int __reduce_min_sync(unsigned mask, int x, REFSIM_LINE) { return (int)refsim_warp(refsim::MIN_SIGNED, mask, (unsigned)x, 0, line); }
REFSIM_INLINE int __reduce_max_sync(unsigned mask, int x, REFSIM_LINE) { return (int)refsim_warp(refsim::MAX_SIGNED, mask, (unsigned)x, 0, line); }
REFSIM_INLINE unsigned __reduce_and_sync(unsigned mask, unsigned x, REFSIM_LINE) { return refsim_warp(refsim::AND, mask, x, 0, line); }
REFSIM_INLINE unsigned __reduce_or_sync(unsigned mask, unsigned x, REFSIM_LINE) { return refsim_warp(refsim::OR, mask, x, 0, line); }
REFSIM_INLINE unsigned __reduce_xor_sync(unsigned mask, unsigned x, REFSIM_LINE) { return refsim_warp(refsim::XOR, mask, x, 0, line); }

extern "C" void refsim_watch(unsigned number, double x);

REFSIM_INLINE void __nanosleep(unsigned) {}
REFSIM_INLINE void __trap() { refsim_trap("__trap() was called"); }
inline unsigned long long refsim_clock() { return 0; }
REFSIM_INLINE int clock() { return (int)refsim_clock(); }
REFSIM_INLINE long long clock64() { return (long long)refsim_clock(); }
