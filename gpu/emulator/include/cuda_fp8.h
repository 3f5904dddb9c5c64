// The 8-bit storage types: e4m3 (no infinities, largest 448) and e5m2 (largest 57344).
#pragma once
#include "cuda_bf16.h"
#include "cuda_fp16.h"

typedef unsigned char __nv_fp8_storage_t;
typedef unsigned short __nv_fp8x2_storage_t;
typedef unsigned int __nv_fp8x4_storage_t;
enum __nv_saturation_t { __NV_NOSAT, __NV_SATFINITE };
enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 };

namespace refsim {
inline unsigned char fp8_code(float x, bool saturate, bool e4m3) {
    if (e4m3) return (unsigned char)narrow<4, 3>(x, 0x7e, saturate ? 0x7e : 0x7f, 0x7f);
    return (unsigned char)narrow<5, 2>(x, 0x7b, saturate ? 0x7b : 0x7c, 0x7f);
}
inline float fp8_value(unsigned char code, bool e4m3) {
    if (e4m3) return (code & 0x7f) == 0x7f ? bits_float(0x7fffffff) : widen<4, 3>(code);
    return half_value((unsigned short)(code << 8));
}
}  // namespace refsim

REFSIM_INLINE __nv_fp8_storage_t __nv_cvt_float_to_fp8(float x, __nv_saturation_t s, __nv_fp8_interpretation_t t) {
    return refsim::fp8_code(x, s == __NV_SATFINITE, t == __NV_E4M3);
}
REFSIM_INLINE __nv_fp8_storage_t __nv_cvt_halfraw_to_fp8(__half_raw x, __nv_saturation_t s, __nv_fp8_interpretation_t t) {
    return refsim::fp8_code((float)__half(x), s == __NV_SATFINITE, t == __NV_E4M3);
}
REFSIM_INLINE __nv_fp8_storage_t __nv_cvt_bfloat16raw_to_fp8(__nv_bfloat16_raw x, __nv_saturation_t s, __nv_fp8_interpretation_t t) {
    return refsim::fp8_code((float)__nv_bfloat16(x), s == __NV_SATFINITE, t == __NV_E4M3);
}
REFSIM_INLINE __nv_fp8x2_storage_t __nv_cvt_float2_to_fp8x2(float2 x, __nv_saturation_t s, __nv_fp8_interpretation_t t) {
    return (__nv_fp8x2_storage_t)(__nv_cvt_float_to_fp8(x.x, s, t) | __nv_cvt_float_to_fp8(x.y, s, t) << 8);
}
REFSIM_INLINE __nv_fp8x2_storage_t __nv_cvt_halfraw2_to_fp8x2(__half2_raw x, __nv_saturation_t s, __nv_fp8_interpretation_t t) {
    return (__nv_fp8x2_storage_t)(__nv_cvt_halfraw_to_fp8({x.x}, s, t) | __nv_cvt_halfraw_to_fp8({x.y}, s, t) << 8);
}
REFSIM_INLINE __half_raw __nv_cvt_fp8_to_halfraw(__nv_fp8_storage_t x, __nv_fp8_interpretation_t t) {
    return __half(refsim::fp8_value(x, t == __NV_E4M3));
}
REFSIM_INLINE __half2_raw __nv_cvt_fp8x2_to_halfraw2(__nv_fp8x2_storage_t x, __nv_fp8_interpretation_t t) {
    return {__nv_cvt_fp8_to_halfraw(x & 255, t).x, __nv_cvt_fp8_to_halfraw(x >> 8, t).x};
}

#define REFSIM_FP8(T, E4M3)                                                                              \
    struct T {                                                                                           \
        __nv_fp8_storage_t __x;                                                                          \
        T() = default;                                                                                   \
        explicit T(float f) : __x(refsim::fp8_code(f, true, E4M3)) {}                                    \
        explicit T(double f) : __x(refsim::fp8_code(refsim::odd_float(f), true, E4M3)) {}                \
        explicit T(int i) : __x(refsim::fp8_code(refsim::odd_float((double)i), true, E4M3)) {}           \
        explicit T(__half h) : __x(refsim::fp8_code((float)h, true, E4M3)) {}                            \
        explicit T(__nv_bfloat16 h) : __x(refsim::fp8_code((float)h, true, E4M3)) {}                     \
        explicit operator float() const { return refsim::fp8_value(__x, E4M3); }                         \
        explicit operator double() const { return refsim::fp8_value(__x, E4M3); }                        \
        explicit operator __half() const { return __half(refsim::fp8_value(__x, E4M3)); }                \
        explicit operator __nv_bfloat16() const { return __nv_bfloat16(refsim::fp8_value(__x, E4M3)); }  \
    };
REFSIM_FP8(__nv_fp8_e4m3, true)
REFSIM_FP8(__nv_fp8_e5m2, false)
#undef REFSIM_FP8

struct alignas(2) __nv_fp8x2_e4m3 {
    __nv_fp8x2_storage_t __x;
    __nv_fp8x2_e4m3() = default;
    explicit __nv_fp8x2_e4m3(float2 f) : __x(__nv_cvt_float2_to_fp8x2(f, __NV_SATFINITE, __NV_E4M3)) {}
    explicit operator float2() const { return {refsim::fp8_value(__x & 255, true), refsim::fp8_value(__x >> 8, true)}; }
};
struct alignas(2) __nv_fp8x2_e5m2 {
    __nv_fp8x2_storage_t __x;
    __nv_fp8x2_e5m2() = default;
    explicit __nv_fp8x2_e5m2(float2 f) : __x(__nv_cvt_float2_to_fp8x2(f, __NV_SATFINITE, __NV_E5M2)) {}
    explicit operator float2() const { return {refsim::fp8_value(__x & 255, false), refsim::fp8_value(__x >> 8, false)}; }
};
#define REFSIM_FP8X4(T, KIND)                                                                            \
    struct alignas(4) T {                                                                                \
        __nv_fp8x4_storage_t __x;                                                                        \
        T() = default;                                                                                   \
        explicit T(float4 f)                                                                             \
            : __x(__nv_cvt_float2_to_fp8x2({f.x, f.y}, __NV_SATFINITE, KIND) |                           \
                  (unsigned)__nv_cvt_float2_to_fp8x2({f.z, f.w}, __NV_SATFINITE, KIND) << 16) {}         \
        explicit operator float4() const {                                                               \
            float v[4];                                                                                  \
            for (int i = 0; i < 4; i++) v[i] = refsim::fp8_value(__x >> 8 * i & 255, KIND == __NV_E4M3); \
            return {v[0], v[1], v[2], v[3]};                                                             \
        }                                                                                                \
    };
REFSIM_FP8X4(__nv_fp8x4_e4m3, __NV_E4M3)
REFSIM_FP8X4(__nv_fp8x4_e5m2, __NV_E5M2)
#undef REFSIM_FP8X4
