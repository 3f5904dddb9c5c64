// bfloat16 as kernels use it.
#pragma once
#include "refsim_float16.h"

REFSIM_FLOAT16(__nv_bfloat16, __nv_bfloat162, __nv_bfloat16_raw, bfloat16_code, bfloat16_value)
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;

REFSIM_INLINE __nv_bfloat16 __float2bfloat16(float f) { return __nv_bfloat16(f); }
REFSIM_INLINE __nv_bfloat16 __float2bfloat16_rn(float f) { return __nv_bfloat16(f); }
REFSIM_INLINE __nv_bfloat16 __double2bfloat16(double f) { return __nv_bfloat16(f); }
REFSIM_INLINE float __bfloat162float(__nv_bfloat16 h) { return h; }
REFSIM_INLINE __nv_bfloat162 __float2bfloat162_rn(float f) { return {__nv_bfloat16(f), __nv_bfloat16(f)}; }
REFSIM_INLINE __nv_bfloat162 __floats2bfloat162_rn(float a, float b) { return {__nv_bfloat16(a), __nv_bfloat16(b)}; }
REFSIM_INLINE __nv_bfloat162 __float22bfloat162_rn(float2 f) { return {__nv_bfloat16(f.x), __nv_bfloat16(f.y)}; }
REFSIM_INLINE float2 __bfloat1622float2(__nv_bfloat162 h) { return {(float)h.x, (float)h.y}; }
REFSIM_INLINE __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 h) { return {h, h}; }
REFSIM_INLINE __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) { return {a, b}; }
REFSIM_INLINE __nv_bfloat162 make_bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) { return {a, b}; }
REFSIM_INLINE __nv_bfloat16 __low2bfloat16(__nv_bfloat162 h) { return h.x; }
REFSIM_INLINE __nv_bfloat16 __high2bfloat16(__nv_bfloat162 h) { return h.y; }
REFSIM_INLINE __nv_bfloat162 __low2bfloat162(__nv_bfloat162 h) { return {h.x, h.x}; }
REFSIM_INLINE __nv_bfloat162 __high2bfloat162(__nv_bfloat162 h) { return {h.y, h.y}; }
REFSIM_INLINE unsigned short __bfloat16_as_ushort(__nv_bfloat16 h) { return h.__x; }
REFSIM_INLINE __nv_bfloat16 __ushort_as_bfloat16(unsigned short x) { return __nv_bfloat16(__nv_bfloat16_raw{x}); }
REFSIM_INLINE __nv_bfloat16 __int2bfloat16_rn(int i) { return __nv_bfloat16(i); }
REFSIM_INLINE int __bfloat162int_rn(__nv_bfloat16 h) { return refsim::saturated<int>(nearbyintf(h)); }
REFSIM_INLINE __nv_bfloat162 __lows2bfloat162(__nv_bfloat162 a, __nv_bfloat162 b) { return {a.x, b.x}; }
REFSIM_INLINE __nv_bfloat162 __highs2bfloat162(__nv_bfloat162 a, __nv_bfloat162 b) { return {a.y, b.y}; }
REFSIM_INLINE short __bfloat16_as_short(__nv_bfloat16 h) { return (short)h.__x; }
#define CUDART_INF_BF16 __ushort_as_bfloat16((unsigned short)0x7f80)
#define CUDART_NAN_BF16 __ushort_as_bfloat16((unsigned short)0x7fff)
#define CUDART_ZERO_BF16 __ushort_as_bfloat16((unsigned short)0)
#define CUDART_ONE_BF16 __ushort_as_bfloat16((unsigned short)0x3f80)
