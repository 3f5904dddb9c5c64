// Tensor-core multiply, matrix load and asynchronous copy: the three instructions that fast attention kernels are made
// of, one function each, so that no kernel has assembly in it. (NVIDIA, "Parallel Thread Execution ISA", sections on
// mma.sync, ldmatrix and cp.async, has the layout of the fragments.)
//
// Of D = A B + C with A 16 x 16, B 16 x 8 and C, D 16 x 8, lane i of a warp holds, with g = i / 4 and t = i % 4:
//   a[0] = A[g][2t, 2t+1]    a[1] = A[g+8][2t, 2t+1]    a[2] = A[g][2t+8, 2t+9]    a[3] = A[g+8][2t+8, 2t+9]
//   b[0] = B[2t, 2t+1][g]    b[1] = B[2t+8, 2t+9][g]
//   c[0], c[1] = C[g][2t, 2t+1]    c[2], c[3] = C[g+8][2t, 2t+1]      (d likewise)
// two 16-bit elements a word, the first in the low half.
#pragma once

#if defined(__REFSIM_EMULATOR__)

extern "C" {
void refsim_mma(unsigned bfloat16, float* d, const unsigned* a, const unsigned* b, const float* c, unsigned line);
void refsim_load_matrix(unsigned transposed, unsigned* out, const void* row, unsigned line);
}

// Operands are copied to registers first, as the instructions want them: so they are seen where they are memory.
__device__ inline void mma_emulated(unsigned bfloat16, float* d, const unsigned* a, const unsigned* b, const float* c) {
    unsigned ra[4] = {a[0], a[1], a[2], a[3]}, rb[2] = {b[0], b[1]};
    float rc[4] = {c[0], c[1], c[2], c[3]}, rd[4];
    refsim_mma(bfloat16, rd, ra, rb, rc, __LINE__);
    for (int i = 0; i < 4; i++) d[i] = rd[i];
}
__device__ inline void mma_f16(float d[4], const unsigned a[4], const unsigned b[2], const float c[4]) {
    mma_emulated(0, d, a, b, c);
}
__device__ inline void mma_bf16(float d[4], const unsigned a[4], const unsigned b[2], const float c[4]) {
    mma_emulated(1, d, a, b, c);
}
__device__ inline void load_matrix_emulated(unsigned transposed, unsigned* r, const void* row) {
    unsigned out[4];
    refsim_load_matrix(transposed, out, row, __LINE__);
    for (int i = 0; i < 4; i++) r[i] = out[i];
}
__device__ inline void ldmatrix_x4(unsigned r[4], const void* row) { load_matrix_emulated(0, r, row); }
__device__ inline void ldmatrix_x4_trans(unsigned r[4], const void* row) { load_matrix_emulated(1, r, row); }
__device__ inline void cp_async_16(void* shared, const void* global) { refsim_copy_async(shared, global, 16, 16); }
__device__ inline void cp_async_16_or_zero(void* shared, const void* global, bool there) {
    refsim_copy_async(shared, global, 16, there ? 16 : 0);
}
__device__ inline void cp_async_commit() { refsim_copy_commit(); }
template <int PENDING> __device__ inline void cp_async_wait() { refsim_copy_wait(PENDING); }
__device__ inline void cp_async_wait_all() { refsim_copy_wait(~0u); }

#else

__device__ inline unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

// d = a b + c, float16 in, float32 out.
__device__ inline void mma_f16(float d[4], const unsigned a[4], const unsigned b[2], const float c[4]) {
#if __CUDA_ARCH__ >= 800
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
#else  // the same in two halves along k
    float h[4];
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%8,%9,%10};"
        : "=f"(h[0]), "=f"(h[1]), "=f"(h[2]), "=f"(h[3])
        : "r"(a[0]), "r"(a[1]), "r"(b[0]), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%8,%9,%10};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[2]), "r"(a[3]), "r"(b[1]), "f"(h[0]), "f"(h[1]), "f"(h[2]), "f"(h[3]));
#endif
}

// The same for bfloat16, which needs compute capability 8.0.
__device__ inline void mma_bf16(float d[4], const unsigned a[4], const unsigned b[2], const float c[4]) {
#if __CUDA_ARCH__ >= 800
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
#else
    d[0] = d[1] = d[2] = d[3] = c[0] + (float)(a[0] + b[0]);
    __trap();
#endif
}

// Four 8 x 8 matrices of 16-bit elements from shared memory: lane 8 m + r points at row r of matrix m (16 bytes, 16-byte
// aligned); lane i gets, in r[m], elements [i / 4][2 (i % 4)] and the next of matrix m.
__device__ inline void ldmatrix_x4(unsigned r[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}

// The same of the transposed matrices: lane i gets elements [2 (i % 4)][i / 4] and the one below.
__device__ inline void ldmatrix_x4_trans(unsigned r[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}

// 16 bytes from global to shared memory, in the background: there only after a wait, and for other threads only after
// a barrier as well. `or_zero` writes zeros where there is nothing to copy, and does not read.
__device__ inline void cp_async_16_or_zero(void* shared, const void* global, bool there) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(shared_address(shared)), "l"(__cvta_generic_to_global(global)), "r"(there ? 16 : 0) : "memory");
#else
    *(uint4*)shared = there ? *(const uint4*)global : make_uint4(0, 0, 0, 0);
#endif
}
__device__ inline void cp_async_16(void* shared, const void* global) { cp_async_16_or_zero(shared, global, true); }

// Closes a group of the copies since the last; `wait<N>` waits until at most N groups are in flight.
__device__ inline void cp_async_commit() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int PENDING> __device__ inline void cp_async_wait() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" :: "n"(PENDING) : "memory");
#endif
}
__device__ inline void cp_async_wait_all() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

#endif
