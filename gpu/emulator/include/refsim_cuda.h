// What nvcc and NVRTC put in front of every kernel, for a host compiler: keywords, index variables, intrinsics.
#pragma once
#ifdef __APPLE__
#define REFSIM_SYMBOL(name) "_" name
#else
#define REFSIM_SYMBOL(name) name
#endif
extern "C" int printf(const char*, ...) __asm__(REFSIM_SYMBOL("refsim_printf"));
#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <new>
#include <type_traits>
#include <utility>
#include "assert.h"
#include "refsim_vectors.h"

#define __CUDACC__ 1
#define __CUDACC_RTC__ 1
#define __CUDA_ARCH__ 800
#define __CUDA_ARCH_LIST__ 800
#define __REFSIM_EMULATOR__ 1

#define __global__ __attribute__((noinline, used))
#define __device__
#define __host__
#define __constant__
#define __shared__ static __attribute__((used, aligned(128)))
#define __managed__
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#ifndef __restrict__
#define __restrict__ __restrict
#endif

// Constants to the kernel, so that no compiler counts a read of them as an access to memory. (To Clang, a struct that is
// defined elsewhere is no constant; a number is.)
extern "C" {
#ifdef __clang__
#define REFSIM_INDEX(NAME) extern const unsigned refsim_##NAME##_x, refsim_##NAME##_y, refsim_##NAME##_z;
REFSIM_INDEX(thread_idx)
REFSIM_INDEX(block_idx)
REFSIM_INDEX(block_dim)
REFSIM_INDEX(grid_dim)
#undef REFSIM_INDEX
#define threadIdx (uint3{refsim_thread_idx_x, refsim_thread_idx_y, refsim_thread_idx_z})
#define blockIdx (uint3{refsim_block_idx_x, refsim_block_idx_y, refsim_block_idx_z})
#define blockDim (uint3{refsim_block_dim_x, refsim_block_dim_y, refsim_block_dim_z})
#define gridDim (uint3{refsim_grid_dim_x, refsim_grid_dim_y, refsim_grid_dim_z})
#else
extern const uint3 threadIdx __asm__(REFSIM_SYMBOL("refsim_thread_idx"));
extern const uint3 blockIdx __asm__(REFSIM_SYMBOL("refsim_block_idx"));
extern const uint3 blockDim __asm__(REFSIM_SYMBOL("refsim_block_dim"));
extern const uint3 gridDim __asm__(REFSIM_SYMBOL("refsim_grid_dim"));
#endif
int refsim_barrier(unsigned form, int predicate, unsigned line);
unsigned long refsim_warp(unsigned kind, unsigned mask, unsigned long value, unsigned source, unsigned line);
unsigned refsim_active_mask(unsigned line);
void refsim_fence();
void refsim_fence_block();
void refsim_assert(const char* text);
void refsim_trap(const char* text);
}
constexpr int warpSize = 32;

#include "refsim_math.h"
#include "refsim_sync.h"
#include "refsim_atomic.h"
#include "refsim_entry.h"
