// Stage A's copy: a program for each part of a block and KV head moves it to where its sequence lies contiguously.
// Twin: refsim/attention/gather.py.
#include "call.cuh"
#include "copy.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
gather(const Call call, const T* k_cache, const T* v_cache, const int* block_tables, const int* seq_lens,
       const int* cu_seqlens_q, const int* cu_seqlens_k, T* k, T* v) {
    // blockIdx.x is sequence * parts + part; call.query_tiles says how many parts the longest sequence has.
    __shared__ int shared[5];
    const int sequence = blockIdx.x / call.query_tiles, part = blockIdx.x % call.query_tiles, head = blockIdx.y;
    const int unit = min(call.block_size, call.key_tile);
    if (threadIdx.x == 0) {
        const bool ragged = cu_seqlens_q != nullptr;
        const int n = ragged ? read<CU_SEQLENS_Q>(&cu_seqlens_q[sequence + 1]) - read<CU_SEQLENS_Q>(&cu_seqlens_q[sequence])
                             : call.n;
        const int keys = read<SEQ_LENS>(&seq_lens[sequence]);
        const Band band = {call.top_left ? 0 : (long long)keys - n, keys, call.left, call.right};
        const int first = band.first(0), stop = band.stop(n - 1);
        const long long start = first / unit * unit + (long long)part * unit;
        const long long end = min(start + unit, (long long)stop);
        shared[0] = (int)max(start, (long long)first);
        shared[1] = n > 0 && first < stop && start < end ? (int)(end - shared[0]) : 0;
        if (shared[1] > 0) {
            shared[2] = read<CU_SEQLENS_K>(&cu_seqlens_k[sequence]);
            shared[3] = read<BLOCK_TABLES>(&block_tables[(long long)sequence * call.max_blocks + shared[0] / call.block_size]);
        }
    }
    __syncthreads();
    const int first = shared[0], rows = shared[1];
    if (rows == 0) return;
    const long long to = shared[2] + first, id = shared[3], slot = first % call.block_size, heads = gridDim.y;
    copy_rows<K, HEAD_DIM>(k + (to * heads + head) * HEAD_DIM, heads * HEAD_DIM,
                           k_cache + id * call.k_block + slot * call.k_token + head * call.k_head, call.k_token, rows);
    copy_rows<V, V_HEAD_DIM>(v + (to * heads + head) * V_HEAD_DIM, heads * V_HEAD_DIM,
                             v_cache + id * call.v_block + slot * call.v_token + head * call.v_head, call.v_token, rows);
}
