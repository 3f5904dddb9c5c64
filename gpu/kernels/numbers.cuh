// The storage type T (float unless -DFLOAT16 or -DBFLOAT16 says otherwise), its values as float, and 16 bytes of it.
#pragma once

#if defined(FLOAT16)
#include <cuda_fp16.h>
typedef __half T;
__device__ inline float to_float(T x) { return __half2float(x); }
__device__ inline T to_storage(float x) { return __float2half_rn(x); }
#elif defined(BFLOAT16)
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
__device__ inline float to_float(T x) { return __bfloat162float(x); }
__device__ inline T to_storage(float x) { return __float2bfloat16_rn(x); }
#else
typedef float T;
__device__ inline float to_float(T x) { return x; }
__device__ inline T to_storage(float x) { return x; }
#endif

const float LOWEST = -3.402823466e38f;  // finite: LOWEST - LOWEST is 0, where -inf - -inf is NaN
#define MINUS_INFINITY __int_as_float(0xff800000)  // NVRTC has no math.h
const float TINY = 1.175494351e-38f;

// A sum of weights to divide by: an empty row's is no zero, and NaN stays NaN, which fmaxf would lose.
__device__ inline float positive(float l) { return l < TINY ? TINY : l; }

// A chunk is 16 bytes, the widest access a thread has.
const int CHUNK = 16 / sizeof(T);

constexpr __device__ int round_up(int x, int unit) { return (x + unit - 1) / unit * unit; }

// One 16-byte load from shared memory, as floats.
__device__ inline void load_chunk(const T* from, float to[CHUNK]) {
    const uint4 words = *(const uint4*)from;
    const unsigned word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
#if defined(FLOAT16)
        const float2 pair = __half22float2(*(const __half2*)&word[i]);
        to[2 * i] = pair.x;
        to[2 * i + 1] = pair.y;
#elif defined(BFLOAT16)
        to[2 * i] = __uint_as_float(word[i] << 16);
        to[2 * i + 1] = __uint_as_float(word[i] & 0xffff0000u);
#else
        to[i] = __uint_as_float(word[i]);
#endif
    }
}
