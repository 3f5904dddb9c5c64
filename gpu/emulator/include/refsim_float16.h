// The 16-bit types share their operations: worked out in float32 (fused multiply-add in float64), rounded once.
#pragma once
#include "refsim_round.h"

#define REFSIM_FLOAT16(T, T2, RAW, CODE, VALUE)                                                                      \
    struct RAW {                                                                                                     \
        unsigned short x;                                                                                            \
    };                                                                                                               \
    struct T {                                                                                                       \
        unsigned short __x;                                                                                          \
        T() = default;                                                                                               \
        REFSIM_INLINE T(RAW r) : __x(r.x) {}                                                                         \
        REFSIM_INLINE T(float f) : __x(refsim::CODE(f)) {}                                                           \
        REFSIM_INLINE T(double f) : __x(refsim::CODE(refsim::odd_float(f))) {}                                       \
        REFSIM_INLINE T(int i) : __x(refsim::CODE(refsim::odd_float((double)i))) {}                                  \
        REFSIM_INLINE T(unsigned i) : __x(refsim::CODE(refsim::odd_float((double)i))) {}                             \
        REFSIM_INLINE operator float() const { return refsim::VALUE(__x); }                                          \
        REFSIM_INLINE operator RAW() const { return {__x}; }                                                         \
        REFSIM_INLINE T& operator+=(T o) { return *this = T((float)*this + (float)o); }                              \
        REFSIM_INLINE T& operator-=(T o) { return *this = T((float)*this - (float)o); }                              \
        REFSIM_INLINE T& operator*=(T o) { return *this = T((float)*this * (float)o); }                              \
        REFSIM_INLINE T& operator/=(T o) { return *this = T((float)*this / (float)o); }                              \
    };                                                                                                               \
    struct alignas(4) T2 {                                                                                           \
        T x, y;                                                                                                      \
        REFSIM_WHOLE(T2, 4)                                                                                          \
        REFSIM_INLINE T2(T a, T b) : x(a), y(b) {}                                                                   \
    };                                                                                                               \
    REFSIM_INLINE T operator+(T a, T b) { return T((float)a + (float)b); }                                           \
    REFSIM_INLINE T operator-(T a, T b) { return T((float)a - (float)b); }                                           \
    REFSIM_INLINE T operator*(T a, T b) { return T((float)a * (float)b); }                                           \
    REFSIM_INLINE T operator/(T a, T b) { return T((float)a / (float)b); }                                           \
    REFSIM_INLINE T operator-(T a) { return T(RAW{(unsigned short)(a.__x ^ 0x8000)}); }                              \
    REFSIM_INLINE bool operator==(T a, T b) { return (float)a == (float)b; }                                         \
    REFSIM_INLINE bool operator!=(T a, T b) { return (float)a != (float)b; }                                         \
    REFSIM_INLINE bool operator<(T a, T b) { return (float)a < (float)b; }                                           \
    REFSIM_INLINE bool operator>(T a, T b) { return (float)a > (float)b; }                                           \
    REFSIM_INLINE bool operator<=(T a, T b) { return (float)a <= (float)b; }                                         \
    REFSIM_INLINE bool operator>=(T a, T b) { return (float)a >= (float)b; }                                         \
    REFSIM_INLINE T __hadd(T a, T b) { return a + b; }                                                               \
    REFSIM_INLINE T __hsub(T a, T b) { return a - b; }                                                               \
    REFSIM_INLINE T __hmul(T a, T b) { return a * b; }                                                               \
    REFSIM_INLINE T __hdiv(T a, T b) { return a / b; }                                                               \
    REFSIM_INLINE T __hadd_rn(T a, T b) { return a + b; }                                                            \
    REFSIM_INLINE T __hsub_rn(T a, T b) { return a - b; }                                                            \
    REFSIM_INLINE T __hmul_rn(T a, T b) { return a * b; }                                                            \
    REFSIM_INLINE T __hneg(T a) { return -a; }                                                                       \
    REFSIM_INLINE T __habs(T a) { return T(RAW{(unsigned short)(a.__x & 0x7fff)}); }                                 \
    REFSIM_INLINE T __hfma(T a, T b, T c) { return T((double)(float)a * (double)(float)b + (double)(float)c); }      \
    REFSIM_INLINE bool __hisnan(T a) { return (float)a != (float)a; }                                                \
    REFSIM_INLINE bool __heq(T a, T b) { return a == b; }                                                            \
    REFSIM_INLINE bool __hne(T a, T b) { return a != b; }                                                            \
    REFSIM_INLINE bool __hlt(T a, T b) { return a < b; }                                                             \
    REFSIM_INLINE bool __hgt(T a, T b) { return a > b; }                                                             \
    REFSIM_INLINE bool __hle(T a, T b) { return a <= b; }                                                            \
    REFSIM_INLINE bool __hge(T a, T b) { return a >= b; }                                                            \
    REFSIM_INLINE T __hmax(T a, T b) { return __hisnan(a) ? b : __hisnan(b) ? a : a < b ? b : a; }                   \
    REFSIM_INLINE T __hmin(T a, T b) { return __hisnan(a) ? b : __hisnan(b) ? a : b < a ? b : a; }                   \
    REFSIM_INLINE T hexp(T a) { return T(expf(a)); }                                                                 \
    REFSIM_INLINE T hexp2(T a) { return T(exp2f(a)); }                                                               \
    REFSIM_INLINE T hlog(T a) { return T(logf(a)); }                                                                 \
    REFSIM_INLINE T hlog2(T a) { return T(log2f(a)); }                                                               \
    REFSIM_INLINE T hsqrt(T a) { return T(sqrtf(a)); }                                                               \
    REFSIM_INLINE T hrsqrt(T a) { return T(rsqrtf(a)); }                                                             \
    REFSIM_INLINE T hrcp(T a) { return T(1.0f / (float)a); }                                                         \
    REFSIM_INLINE T htanh(T a) { return T(tanhf(a)); }                                                               \
    REFSIM_INLINE float __low2float(T2 a) { return a.x; }                                                            \
    REFSIM_INLINE float __high2float(T2 a) { return a.y; }                                                           \
    REFSIM_INLINE T2 __hadd2(T2 a, T2 b) { return {a.x + b.x, a.y + b.y}; }                                          \
    REFSIM_INLINE T2 __hsub2(T2 a, T2 b) { return {a.x - b.x, a.y - b.y}; }                                          \
    REFSIM_INLINE T2 __hmul2(T2 a, T2 b) { return {a.x * b.x, a.y * b.y}; }                                          \
    REFSIM_INLINE T2 __h2div(T2 a, T2 b) { return {a.x / b.x, a.y / b.y}; }                                          \
    REFSIM_INLINE T2 __hneg2(T2 a) { return {-a.x, -a.y}; }                                                          \
    REFSIM_INLINE T2 __habs2(T2 a) { return {__habs(a.x), __habs(a.y)}; }                                            \
    REFSIM_INLINE T2 __hfma2(T2 a, T2 b, T2 c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; }            \
    REFSIM_INLINE T2 __hmax2(T2 a, T2 b) { return {__hmax(a.x, b.x), __hmax(a.y, b.y)}; }                            \
    REFSIM_INLINE T2 __hmin2(T2 a, T2 b) { return {__hmin(a.x, b.x), __hmin(a.y, b.y)}; }                            \
    REFSIM_INLINE T2 operator+(T2 a, T2 b) { return __hadd2(a, b); }                                                 \
    REFSIM_INLINE T2 operator-(T2 a, T2 b) { return __hsub2(a, b); }                                                 \
    REFSIM_INLINE T2 operator*(T2 a, T2 b) { return __hmul2(a, b); }                                                 \
    REFSIM_INLINE T2 operator/(T2 a, T2 b) { return __h2div(a, b); }                                                 \
    REFSIM_INLINE T2& operator+=(T2& a, T2 b) { return a = a + b; }                                                  \
    REFSIM_INLINE T2& operator*=(T2& a, T2 b) { return a = a * b; }                                                  \
    REFSIM_INLINE T hsin(T a) { return T(sinf(a)); }                                                                 \
    REFSIM_INLINE T hcos(T a) { return T(cosf(a)); }                                                                 \
    REFSIM_INLINE T hfloor(T a) { return T(floorf(a)); }                                                             \
    REFSIM_INLINE T hceil(T a) { return T(ceilf(a)); }                                                               \
    REFSIM_INLINE T htrunc(T a) { return T(truncf(a)); }                                                             \
    REFSIM_INLINE T hrint(T a) { return T(nearbyintf(a)); }                                                          \
    REFSIM_INLINE T2 h2sqrt(T2 a) { return {hsqrt(a.x), hsqrt(a.y)}; }                                               \
    REFSIM_INLINE T2 h2rcp(T2 a) { return {hrcp(a.x), hrcp(a.y)}; }                                                  \
    REFSIM_INLINE T2 h2log(T2 a) { return {hlog(a.x), hlog(a.y)}; }                                                  \
    REFSIM_INLINE T __hfma_relu(T a, T b, T c) { return __hmax(__hfma(a, b, c), T(0.f)); }                           \
    REFSIM_INLINE T __hadd_sat(T a, T b) { return T(__saturatef((float)a + (float)b)); }                             \
    REFSIM_INLINE T2 __heq2(T2 a, T2 b) { return {T((float)(a.x == b.x)), T((float)(a.y == b.y))}; }                 \
    REFSIM_INLINE bool __hbeq2(T2 a, T2 b) { return a.x == b.x && a.y == b.y; }                                      \
    REFSIM_INLINE T2 __hne2(T2 a, T2 b) { return {T((float)(a.x != b.x)), T((float)(a.y != b.y))}; }                 \
    REFSIM_INLINE bool __hbne2(T2 a, T2 b) { return a.x != b.x && a.y != b.y; }                                      \
    REFSIM_INLINE T2 __hlt2(T2 a, T2 b) { return {T((float)(a.x < b.x)), T((float)(a.y < b.y))}; }                   \
    REFSIM_INLINE bool __hblt2(T2 a, T2 b) { return a.x < b.x && a.y < b.y; }                                        \
    REFSIM_INLINE T2 __hle2(T2 a, T2 b) { return {T((float)(a.x <= b.x)), T((float)(a.y <= b.y))}; }                 \
    REFSIM_INLINE bool __hble2(T2 a, T2 b) { return a.x <= b.x && a.y <= b.y; }                                      \
    REFSIM_INLINE T2 __hgt2(T2 a, T2 b) { return {T((float)(a.x > b.x)), T((float)(a.y > b.y))}; }                   \
    REFSIM_INLINE bool __hbgt2(T2 a, T2 b) { return a.x > b.x && a.y > b.y; }                                        \
    REFSIM_INLINE T2 __hge2(T2 a, T2 b) { return {T((float)(a.x >= b.x)), T((float)(a.y >= b.y))}; }                 \
    REFSIM_INLINE bool __hbge2(T2 a, T2 b) { return a.x >= b.x && a.y >= b.y; }                                      \
    REFSIM_INLINE T2 operator-(T2 a) { return __hneg2(a); }                                                          \
    REFSIM_INLINE bool operator==(T2 a, T2 b) { return __hbeq2(a, b); }                                              \
    REFSIM_INLINE T2& operator-=(T2& a, T2 b) { return a = a - b; }                                                  \
    REFSIM_INLINE T2& operator/=(T2& a, T2 b) { return a = a / b; }                                                  \
    REFSIM_INLINE T& operator++(T& a) { return a += T(1.f); }                                                        \
    REFSIM_INLINE T2 h2exp(T2 a) { return {hexp(a.x), hexp(a.y)}; }                                                  \
    REFSIM_INLINE T2 h2exp2(T2 a) { return {hexp2(a.x), hexp2(a.y)}; }                                               \
    REFSIM_INLINE T2 h2rsqrt(T2 a) { return {hrsqrt(a.x), hrsqrt(a.y)}; }                                            \
    inline T atomicAdd(T* p, T x) {                                                                                  \
        unsigned short* bits = reinterpret_cast<unsigned short*>(p);                                                 \
        unsigned short old = refsim_atomic_u16(1, bits, 0, 0), seen;                                                 \
        do {                                                                                                         \
            seen = old;                                                                                              \
            old = refsim_atomic_quiet_u16(bits, seen, T(T(RAW{seen}) + x).__x);                                      \
        } while (old != seen);                                                                                       \
        return T(RAW{old});                                                                                          \
    }                                                                                                                \
    inline T2 atomicAdd(T2* p, T2 x) {                                                                               \
        unsigned* bits = reinterpret_cast<unsigned*>(p);                                                             \
        unsigned old = refsim_atomic_u32(1, bits, 0, 0), seen;                                                       \
        do {                                                                                                         \
            seen = old;                                                                                              \
            T2 sum{T(RAW{(unsigned short)seen}) + x.x, T(RAW{(unsigned short)(seen >> 16)}) + x.y};                  \
            old = refsim_atomic_quiet_u32(bits, seen, (unsigned)sum.y.__x << 16 | sum.x.__x);                        \
        } while (old != seen);                                                                                       \
        return {T(RAW{(unsigned short)old}), T(RAW{(unsigned short)(old >> 16)})};                                   \
    }

extern "C" {
unsigned short refsim_atomic_quiet_u16(unsigned short* p, unsigned short compare, unsigned short x);
unsigned refsim_atomic_quiet_u32(unsigned* p, unsigned compare, unsigned x);
}
