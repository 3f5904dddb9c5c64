// Every access to global memory goes through here, by tensor. Compiled with -DCOUNTED, a kernel adds up its own bytes.
#pragma once

#include "mma.cuh"
#include "numbers.cuh"

// The order of gpu/ops/counted.py.
enum Tensor {
    Q, K, V, OUT, LSE, CU_SEQLENS_Q, CU_SEQLENS_K, SEQ_LENS, BLOCK_TABLES, ALIBI_SLOPES, SINKS,
    O_PARTIAL, LSE_PARTIAL, M_PARTIAL, L_PARTIAL, S, P, SLOT_MAPPING, BLOCK_MAPPING,
    OUT_A, LSE_A, OUT_B, LSE_B, X, POSITIONS, INV_FREQ, TENSORS
};

#ifdef COUNTED
extern "C" {
__device__ unsigned long long traffic[2 * TENSORS];
}
#define COUNT(tensor, write, nbytes) atomicAdd(&traffic[2 * (tensor) + (write)], (unsigned long long)(nbytes))
#else
#define COUNT(tensor, write, nbytes)
#endif

template <int tensor, class E>
__device__ inline E read(const E* from) {
    COUNT(tensor, 0, sizeof(E));
    return *from;
}

template <int tensor, class E>
__device__ inline void write(E* to, E value) {
    COUNT(tensor, 1, sizeof(E));
    *to = value;
}

// Copy 16 bytes from global to shared memory. On sm_80 and later the thread goes on while they are under way, until it
// waits (see mma.cuh).
template <int tensor>
__device__ inline void copy_chunk(T* shared, const T* global) {
    COUNT(tensor, 0, 16);
    cp_async_16(shared, global);
}
