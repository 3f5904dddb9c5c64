// float16 as kernels use it.
#pragma once
#include "refsim_float16.h"

REFSIM_FLOAT16(__half, __half2, __half_raw, half_code, half_value)
typedef __half half;
typedef __half2 half2;
struct __half2_raw {
    unsigned short x, y;
};

REFSIM_INLINE __half __float2half(float f) { return __half(f); }
REFSIM_INLINE __half __float2half_rn(float f) { return __half(f); }
REFSIM_INLINE __half __double2half(double f) { return __half(f); }
REFSIM_INLINE float __half2float(__half h) { return h; }
REFSIM_INLINE __half2 __float2half2_rn(float f) { return {__half(f), __half(f)}; }
REFSIM_INLINE __half2 __floats2half2_rn(float a, float b) { return {__half(a), __half(b)}; }
REFSIM_INLINE __half2 __float22half2_rn(float2 f) { return {__half(f.x), __half(f.y)}; }
REFSIM_INLINE float2 __half22float2(__half2 h) { return {(float)h.x, (float)h.y}; }
REFSIM_INLINE __half2 __half2half2(__half h) { return {h, h}; }
REFSIM_INLINE __half2 __halves2half2(__half a, __half b) { return {a, b}; }
REFSIM_INLINE __half2 make_half2(__half a, __half b) { return {a, b}; }
REFSIM_INLINE __half __low2half(__half2 h) { return h.x; }
REFSIM_INLINE __half __high2half(__half2 h) { return h.y; }
REFSIM_INLINE __half2 __low2half2(__half2 h) { return {h.x, h.x}; }
REFSIM_INLINE __half2 __high2half2(__half2 h) { return {h.y, h.y}; }
REFSIM_INLINE __half2 __lowhigh2highlow(__half2 h) { return {h.y, h.x}; }
REFSIM_INLINE unsigned short __half_as_ushort(__half h) { return h.__x; }
REFSIM_INLINE short __half_as_short(__half h) { return (short)h.__x; }
REFSIM_INLINE __half __ushort_as_half(unsigned short x) { return __half(__half_raw{x}); }
REFSIM_INLINE __half __short_as_half(short x) { return __half(__half_raw{(unsigned short)x}); }
REFSIM_INLINE __half __int2half_rn(int i) { return __half(i); }
REFSIM_INLINE __half __uint2half_rn(unsigned i) { return __half(i); }
REFSIM_INLINE int __half2int_rn(__half h) { return refsim::saturated<int>(nearbyintf(h)); }
REFSIM_INLINE int __half2int_rz(__half h) { return refsim::saturated<int>((float)h); }
REFSIM_INLINE int __hisinf(__half h) { return (h.__x & 0x7fff) == 0x7c00 ? (h.__x >> 15 ? -1 : 1) : 0; }
REFSIM_INLINE __half2 __lows2half2(__half2 a, __half2 b) { return {a.x, b.x}; }
REFSIM_INLINE __half2 __highs2half2(__half2 a, __half2 b) { return {a.y, b.y}; }
REFSIM_INLINE __half __short2half_rn(short i) { return __half((int)i); }
REFSIM_INLINE short __half2short_rn(__half h) { return (short)nearbyintf(h); }
REFSIM_INLINE unsigned __half2uint_rn(__half h) { return refsim::saturated<unsigned>(nearbyintf(h)); }
#define CUDART_INF_FP16 __ushort_as_half((unsigned short)0x7c00)
#define CUDART_NAN_FP16 __ushort_as_half((unsigned short)0x7fff)
#define CUDART_ZERO_FP16 __ushort_as_half((unsigned short)0)
#define CUDART_ONE_FP16 __ushort_as_half((unsigned short)0x3c00)
