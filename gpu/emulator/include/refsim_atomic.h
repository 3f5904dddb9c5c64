// atomicAdd and the rest.
#pragma once

extern "C" {
#define REFSIM_ATOMIC(NAME, T) T refsim_atomic_##NAME(unsigned op, T* p, T x, T compare);
REFSIM_ATOMIC(i32, int)
REFSIM_ATOMIC(u32, unsigned)
REFSIM_ATOMIC(i64, long long)
REFSIM_ATOMIC(u64, unsigned long long)
REFSIM_ATOMIC(u16, unsigned short)
REFSIM_ATOMIC(f32, float)
REFSIM_ATOMIC(f64, double)
#undef REFSIM_ATOMIC
}

#define REFSIM_ATOMIC(FUNCTION, OP, NAME, T)                                                       \
    REFSIM_INLINE T FUNCTION(T* p, T x) { return refsim_atomic_##NAME(OP, p, x, 0); }            \
    REFSIM_INLINE T FUNCTION##_block(T* p, T x) { return refsim_atomic_##NAME(OP, p, x, 0); }    \
    REFSIM_INLINE T FUNCTION##_system(T* p, T x) { return refsim_atomic_##NAME(OP, p, x, 0); }
#define REFSIM_ATOMIC_OF_4(FUNCTION, OP)                  \
    REFSIM_ATOMIC(FUNCTION, OP, i32, int)                 \
    REFSIM_ATOMIC(FUNCTION, OP, u32, unsigned)            \
    REFSIM_ATOMIC(FUNCTION, OP, u64, unsigned long long)
REFSIM_ATOMIC_OF_4(atomicAdd, 0)
REFSIM_ATOMIC(atomicAdd, 0, f32, float)
REFSIM_ATOMIC(atomicAdd, 0, f64, double)
REFSIM_ATOMIC(atomicSub, 1, i32, int)
REFSIM_ATOMIC(atomicSub, 1, u32, unsigned)
REFSIM_ATOMIC_OF_4(atomicExch, 2)
REFSIM_ATOMIC(atomicExch, 2, f32, float)
REFSIM_ATOMIC_OF_4(atomicMin, 3)
REFSIM_ATOMIC(atomicMin, 3, i64, long long)
REFSIM_ATOMIC_OF_4(atomicMax, 4)
REFSIM_ATOMIC(atomicMax, 4, i64, long long)
REFSIM_ATOMIC_OF_4(atomicAnd, 5)
REFSIM_ATOMIC_OF_4(atomicOr, 6)
REFSIM_ATOMIC_OF_4(atomicXor, 7)
REFSIM_ATOMIC(atomicInc, 8, u32, unsigned)
REFSIM_ATOMIC(atomicDec, 9, u32, unsigned)
#undef REFSIM_ATOMIC
#undef REFSIM_ATOMIC_OF_4
#define REFSIM_CAS(NAME, T) \
    REFSIM_INLINE T atomicCAS(T* p, T compare, T x) { return refsim_atomic_##NAME(10, p, x, compare); }        \
    REFSIM_INLINE T atomicCAS_block(T* p, T compare, T x) { return refsim_atomic_##NAME(10, p, x, compare); }  \
    REFSIM_INLINE T atomicCAS_system(T* p, T compare, T x) { return refsim_atomic_##NAME(10, p, x, compare); }
REFSIM_CAS(i32, int)
REFSIM_CAS(u32, unsigned)
REFSIM_CAS(u64, unsigned long long)
REFSIM_CAS(u16, unsigned short)
#undef REFSIM_CAS
