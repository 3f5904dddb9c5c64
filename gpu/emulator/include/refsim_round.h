// Rounding between float32 and the narrow types, to nearest even, by integer arithmetic alone.
#pragma once

namespace refsim {

REFSIM_INLINE unsigned float_bits(float x) { unsigned b; __builtin_memcpy(&b, &x, 4); return b; }
REFSIM_INLINE float bits_float(unsigned b) { float x; __builtin_memcpy(&x, &b, 4); return x; }

// A double to the float from which a further rounding to fewer bits comes out right: inexact results become odd.
REFSIM_INLINE float odd_float(double x) {
    float f = (float)x;
    if ((double)f == x || x != x || f - f != 0) return f;
    unsigned b = float_bits(f);
    if (__builtin_fabs((double)f) > __builtin_fabs(x)) b--;
    return bits_float(b | 1);
}

// Any format of 1 sign, E exponent and M mantissa bits with IEEE subnormals. `top` is the largest finite code (without
// sign), `over` what larger values become, `nan` the code of NaN.
template <int E, int M> inline unsigned narrow(float x, unsigned top, unsigned over, unsigned nan) {
    constexpr int bias = (1 << (E - 1)) - 1;
    unsigned b = float_bits(x), sign = b >> 31 << (E + M);
    b &= 0x7fffffffu;
    if (b > 0x7f800000u) return nan;
    if (b == 0x7f800000u) return sign | over;
    int exponent = (int)(b >> 23) - 127 + bias;
    unsigned mantissa = b & 0x7fffffu, code;
    if (exponent <= 0) {
        int shift = 24 - M - exponent;
        if (shift > 31 || (b >> 23) == 0) return sign;
        mantissa |= 0x800000u;
        unsigned rest = mantissa & ((1u << shift) - 1), half = 1u << (shift - 1);
        code = mantissa >> shift;
        code += rest > half || (rest == half && (code & 1));
    } else {
        unsigned rest = mantissa & ((1u << (23 - M)) - 1), half = 1u << (22 - M);
        code = (unsigned)exponent << M | mantissa >> (23 - M);
        code += rest > half || (rest == half && (code & 1));
    }
    return sign | (code > top ? over : code);
}

template <int E, int M> inline float widen(unsigned code) {
    constexpr int bias = (1 << (E - 1)) - 1;
    unsigned sign = code >> (E + M) << 31, exponent = code >> M & ((1u << E) - 1), mantissa = code & ((1u << M) - 1);
    if (exponent) return bits_float(sign | (exponent - bias + 127) << 23 | mantissa << (23 - M));
    float tiny = (float)mantissa * bits_float((unsigned)(127 + 1 - bias - M) << 23);
    return bits_float(sign | float_bits(tiny));
}

inline unsigned short half_code(float x) { return (unsigned short)narrow<5, 10>(x, 0x7bff, 0x7c00, 0x7fff); }
inline float half_value(unsigned short code) {
    unsigned rest = code & 0x7fffu;
    if (rest >= 0x7c00u) return bits_float((unsigned)(code & 0x8000u) << 16 | 0x7f800000u | (rest & 0x3ffu) << 13);
    return widen<5, 10>(code);
}
REFSIM_INLINE unsigned short bfloat16_code(float x) {
    unsigned b = float_bits(x);
    if ((b & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return (unsigned short)((b + 0x7fffu + (b >> 16 & 1)) >> 16);
}
REFSIM_INLINE float bfloat16_value(unsigned short code) { return bits_float((unsigned)code << 16); }

}  // namespace refsim
