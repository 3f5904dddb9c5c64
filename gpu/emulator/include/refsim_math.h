// Device maths: the fast forms are what their names say in float32, rounded once.
#pragma once

REFSIM_INLINE float __expf(float x) { return exp2f(x * 1.4426950408889634f); }
REFSIM_INLINE float __exp10f(float x) { return exp2f(x * 3.3219280948873623f); }
REFSIM_INLINE float __logf(float x) { return log2f(x) * 0.6931471805599453f; }
REFSIM_INLINE float __log2f(float x) { return log2f(x); }
REFSIM_INLINE float __log10f(float x) { return log2f(x) * 0.30102999566398120f; }
REFSIM_INLINE float __sinf(float x) { return sinf(x); }
REFSIM_INLINE float __cosf(float x) { return cosf(x); }
REFSIM_INLINE float __tanf(float x) { return sinf(x) / cosf(x); }
REFSIM_INLINE float __powf(float x, float y) { return exp2f(y * log2f(x)); }
REFSIM_INLINE void __sincosf(float x, float* s, float* c) { *s = sinf(x), *c = cosf(x); }
REFSIM_INLINE float __fdividef(float x, float y) { return x / y; }
REFSIM_INLINE float __frcp_rn(float x) { return 1.0f / x; }
REFSIM_INLINE float __fsqrt_rn(float x) { return sqrtf(x); }
REFSIM_INLINE float __frsqrt_rn(float x) { return (float)(1.0 / sqrt((double)x)); }
REFSIM_INLINE float __fadd_rn(float x, float y) { return x + y; }
REFSIM_INLINE float __fsub_rn(float x, float y) { return x - y; }
REFSIM_INLINE float __fmul_rn(float x, float y) { return x * y; }
REFSIM_INLINE float __fdiv_rn(float x, float y) { return x / y; }
REFSIM_INLINE float __fmaf_rn(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
REFSIM_INLINE double __dadd_rn(double x, double y) { return x + y; }
REFSIM_INLINE double __dmul_rn(double x, double y) { return x * y; }
REFSIM_INLINE double __fma_rn(double x, double y, double z) { return __builtin_fma(x, y, z); }
REFSIM_INLINE float __saturatef(float x) { return x >= 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }
REFSIM_INLINE float rsqrtf(float x) { return (float)(1.0 / sqrt((double)x)); }
REFSIM_INLINE double rsqrt(double x) { return 1.0 / sqrt(x); }
REFSIM_INLINE float rsqrt(float x) { return rsqrtf(x); }
REFSIM_INLINE float rcbrtf(float x) { return 1.0f / cbrtf(x); }
REFSIM_INLINE float exp10f(float x, int = 0) { return (float)pow(10.0, (double)x); }
REFSIM_INLINE float sinpif(float x) { return (float)sin(3.14159265358979323846 * (double)x); }
REFSIM_INLINE float cospif(float x) { return (float)cos(3.14159265358979323846 * (double)x); }
REFSIM_INLINE float norm3df(float a, float b, float c) { return sqrtf(a * a + b * b + c * c); }
REFSIM_INLINE float normcdff(float x) { return 0.5f * erfcf(-x * 0.70710678118654752f); }

// min and max of the language take any two arithmetic values; NaN loses against a number.
template <class A, class B, class = typename std::enable_if<std::is_arithmetic<A>::value && std::is_arithmetic<B>::value>::type>
REFSIM_INLINE constexpr typename std::common_type<A, B>::type min(A a, B b) {
    typedef typename std::common_type<A, B>::type T;
    if constexpr (std::is_floating_point<T>::value) return (T)a != (T)a ? (T)b : (T)b != (T)b ? (T)a : (T)b < (T)a ? (T)b : (T)a;
    else return (T)b < (T)a ? (T)b : (T)a;
}
template <class A, class B, class = typename std::enable_if<std::is_arithmetic<A>::value && std::is_arithmetic<B>::value>::type>
REFSIM_INLINE constexpr typename std::common_type<A, B>::type max(A a, B b) {
    typedef typename std::common_type<A, B>::type T;
    if constexpr (std::is_floating_point<T>::value) return (T)a != (T)a ? (T)b : (T)b != (T)b ? (T)a : (T)a < (T)b ? (T)b : (T)a;
    else return (T)a < (T)b ? (T)b : (T)a;
}
REFSIM_INLINE unsigned umin(unsigned a, unsigned b) { return a < b ? a : b; }
REFSIM_INLINE unsigned umax(unsigned a, unsigned b) { return a < b ? b : a; }

REFSIM_INLINE int __popc(unsigned x) { return __builtin_popcount(x); }
REFSIM_INLINE int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
REFSIM_INLINE int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
REFSIM_INLINE int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
REFSIM_INLINE int __ffs(int x) { return __builtin_ffs(x); }
REFSIM_INLINE int __ffsll(long long x) { return __builtin_ffsll(x); }
REFSIM_INLINE unsigned __brev(unsigned x) {
    unsigned r = 0;
    for (int i = 0; i < 32; i++) r |= (x >> i & 1u) << (31 - i);
    return r;
}
REFSIM_INLINE unsigned long long __brevll(unsigned long long x) {
    return (unsigned long long)__brev((unsigned)x) << 32 | __brev((unsigned)(x >> 32));
}
REFSIM_INLINE int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 32; i += 8) c = (int)((unsigned)c + (unsigned)((signed char)(a >> i) * (signed char)(b >> i)));
    return c;
}
REFSIM_INLINE unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
    for (int i = 0; i < 32; i += 8) c += (a >> i & 255u) * (b >> i & 255u);
    return c;
}
REFSIM_INLINE unsigned __byte_perm(unsigned x, unsigned y, unsigned s) {
    unsigned long long all = (unsigned long long)y << 32 | x;
    unsigned r = 0;
    for (int i = 0; i < 4; i++) r |= (unsigned)(all >> 8 * (s >> 4 * i & 7) & 255u) << 8 * i;
    return r;
}
REFSIM_INLINE unsigned __funnelshift_l(unsigned low, unsigned high, unsigned n) {
    return (unsigned)(((unsigned long long)high << 32 | low) << (n & 31) >> 32);
}
REFSIM_INLINE unsigned __funnelshift_r(unsigned low, unsigned high, unsigned n) {
    return (unsigned)(((unsigned long long)high << 32 | low) >> (n & 31));
}
REFSIM_INLINE unsigned __funnelshift_lc(unsigned low, unsigned high, unsigned n) {
    return n < 32 ? __funnelshift_l(low, high, n) : low;
}
REFSIM_INLINE unsigned __funnelshift_rc(unsigned low, unsigned high, unsigned n) {
    return n < 32 ? __funnelshift_r(low, high, n) : high;
}
REFSIM_INLINE unsigned __sad(int a, int b, unsigned c) { return (a < b ? (unsigned)b - a : (unsigned)a - b) + c; }
REFSIM_INLINE unsigned __usad(unsigned a, unsigned b, unsigned c) { return (a < b ? b - a : a - b) + c; }
REFSIM_INLINE int __hadd(int a, int b) { return (int)(((long long)a + b) >> 1); }
REFSIM_INLINE int __rhadd(int a, int b) { return (int)(((long long)a + b + 1) >> 1); }
REFSIM_INLINE unsigned __uhadd(unsigned a, unsigned b) { return (unsigned)(((unsigned long long)a + b) >> 1); }
REFSIM_INLINE unsigned __urhadd(unsigned a, unsigned b) { return (unsigned)(((unsigned long long)a + b + 1) >> 1); }
REFSIM_INLINE int __mul24(int a, int b) { return (int)((long long)(a << 8 >> 8) * (b << 8 >> 8)); }
REFSIM_INLINE int __mulhi(int a, int b) { return (int)((long long)a * b >> 32); }
REFSIM_INLINE unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
REFSIM_INLINE long long __mul64hi(long long a, long long b) { return (long long)((__int128)a * b >> 64); }
REFSIM_INLINE unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
REFSIM_INLINE unsigned __umul24(unsigned a, unsigned b) { return (a & 0xffffffu) * (b & 0xffffffu); }
REFSIM_INLINE int __float_as_int(float x) { int r; __builtin_memcpy(&r, &x, 4); return r; }
REFSIM_INLINE unsigned __float_as_uint(float x) { unsigned r; __builtin_memcpy(&r, &x, 4); return r; }
REFSIM_INLINE float __int_as_float(int x) { float r; __builtin_memcpy(&r, &x, 4); return r; }
REFSIM_INLINE float __uint_as_float(unsigned x) { float r; __builtin_memcpy(&r, &x, 4); return r; }
REFSIM_INLINE long long __double_as_longlong(double x) { long long r; __builtin_memcpy(&r, &x, 8); return r; }
REFSIM_INLINE double __longlong_as_double(long long x) { double r; __builtin_memcpy(&r, &x, 8); return r; }
// To an integer as a device converts: what doesn't fit becomes the nearest that does, NaN is 0 (or, where 64 bits come in
// or go out, the top bit alone).
namespace refsim {
template <class I, class F> REFSIM_INLINE I saturated(F x) {
    constexpr I top_bit = (I)(1ull << (8 * sizeof(I) - 1));
    constexpr I least = std::is_signed<I>::value ? top_bit : 0, most = (I)~least;
    constexpr F beyond = (F)(most / 2 + 1) * 2;
    if (x != x) return sizeof(I) == 8 || sizeof(F) == 8 ? top_bit : 0;
    return x >= beyond ? most : x < (F)least ? least : (I)x;
}
}  // namespace refsim
REFSIM_INLINE int __float2int_rn(float x) { return refsim::saturated<int>(nearbyintf(x)); }
REFSIM_INLINE int __float2int_rz(float x) { return refsim::saturated<int>(x); }
REFSIM_INLINE int __float2int_rd(float x) { return refsim::saturated<int>(floorf(x)); }
REFSIM_INLINE int __float2int_ru(float x) { return refsim::saturated<int>(ceilf(x)); }
REFSIM_INLINE unsigned __float2uint_rn(float x) { return refsim::saturated<unsigned>(nearbyintf(x)); }
REFSIM_INLINE unsigned __float2uint_rz(float x) { return refsim::saturated<unsigned>(x); }
REFSIM_INLINE long long __float2ll_rn(float x) { return refsim::saturated<long long>(nearbyintf(x)); }
REFSIM_INLINE float __ll2float_rn(long long x) { return (float)x; }
REFSIM_INLINE int __double2int_rn(double x) { return refsim::saturated<int>(nearbyint(x)); }
REFSIM_INLINE float __int2float_rn(int x) { return (float)x; }
REFSIM_INLINE float __uint2float_rn(unsigned x) { return (float)x; }
REFSIM_INLINE float __double2float_rn(double x) { return (float)x; }

// Loads and stores with cache hints: macros, so that they count at the line that wrote them.
#define __ldg(p) (*(p))
#define __ldca(p) (*(p))
#define __ldcg(p) (*(p))
#define __ldcs(p) (*(p))
#define __ldlu(p) (*(p))
#define __ldcv(p) (*(p))
#define __stcg(p, x) ((void)(*(p) = (x)))
#define __stcs(p, x) ((void)(*(p) = (x)))
#define __stwb(p, x) ((void)(*(p) = (x)))
#define __stwt(p, x) ((void)(*(p) = (x)))
#define __builtin_assume(x) ((void)0)
#define __pipeline_memcpy_async(to, from, n) refsim_copy_async(to, from, n, n)
#define __pipeline_commit() refsim_copy_commit()
#define __pipeline_wait_prior(n) refsim_copy_wait(n)
extern "C" {
void refsim_copy_async(void* to, const void* from, unsigned size, unsigned given);
void refsim_copy_commit();
void refsim_copy_wait(unsigned pending);
}
