// Thread blocks, tiles of a warp, and the lanes that happen to be together.
#pragma once

namespace cooperative_groups {

struct thread_group {
    unsigned mask_;    // of lanes; 0: the whole block
    unsigned count_;
    unsigned long long size() const { return count_; }
    unsigned num_threads() const { return count_; }
};

struct thread_block : thread_group {
    static void sync(REFSIM_LINE) { __syncthreads(line); }
    static unsigned thread_rank() { return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z); }
    static unsigned size() { return blockDim.x * blockDim.y * blockDim.z; }
    static unsigned num_threads() { return size(); }
    static dim3 group_index() { return {blockIdx.x, blockIdx.y, blockIdx.z}; }
    static dim3 thread_index() { return {threadIdx.x, threadIdx.y, threadIdx.z}; }
    static dim3 group_dim() { return {blockDim.x, blockDim.y, blockDim.z}; }
    static dim3 dim_threads() { return group_dim(); }
};
inline thread_block this_thread_block() { return {{0, thread_block::size()}}; }

struct grid_group {
    static unsigned long long thread_rank() {
        return (blockIdx.x + (unsigned long long)gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z)) * thread_block::size() +
               thread_block::thread_rank();
    }
    static unsigned long long size() { return (unsigned long long)gridDim.x * gridDim.y * gridDim.z * thread_block::size(); }
    static unsigned block_rank() { return blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z); }
    static void sync() { refsim_trap("grid.sync() needs a cooperative launch, which the emulator does not have"); }
};
inline grid_group this_grid() { return {}; }

// Lanes of one warp: what tiles and coalesced groups have in common.
struct lanes : thread_group {
    unsigned rank_;
    unsigned thread_rank() const { return rank_; }
    void sync(REFSIM_LINE) const { __syncwarp(mask_, line); }
    template <class T> T shfl(T x, int rank, REFSIM_LINE) const { return from(x, rank % (int)count_, line); }
    template <class T> T shfl_up(T x, unsigned d, REFSIM_LINE) const { return from(x, rank_ >= d ? rank_ - d : rank_, line); }
    template <class T> T shfl_down(T x, unsigned d, REFSIM_LINE) const { return from(x, rank_ + d < count_ ? rank_ + d : rank_, line); }
    template <class T> T shfl_xor(T x, unsigned d, REFSIM_LINE) const { return from(x, (rank_ ^ d) < count_ ? rank_ ^ d : rank_, line); }
    int any(int p, REFSIM_LINE) const { return __any_sync(mask_, p, line); }
    int all(int p, REFSIM_LINE) const { return __all_sync(mask_, p, line); }
    unsigned ballot(int p, REFSIM_LINE) const { return pack(__ballot_sync(mask_, p, line)); }
    template <class T> unsigned match_any(T x, REFSIM_LINE) const { return pack(__match_any_sync(mask_, x, line)); }

    unsigned lane_of(unsigned rank) const {  // the lane of the rank-th bit of the mask
        unsigned m = mask_;
        for (unsigned i = 0; i < rank; i++) m &= m - 1;
        return (unsigned)__builtin_ctz(m);
    }
    template <class T> T from(T x, unsigned rank, unsigned line) const { return refsim::shuffle(mask_, x, lane_of(rank), line); }
    unsigned pack(unsigned bits) const {  // bits of lanes to bits of ranks
        unsigned out = 0, rank = 0;
        for (unsigned m = mask_; m; m &= m - 1, rank++) out |= (bits >> __builtin_ctz(m) & 1u) << rank;
        return out;
    }
};

template <unsigned N> struct thread_block_tile : lanes {
    static_assert(N && !(N & (N - 1)) && N <= 32, "a tile has 1, 2, 4, 8, 16 or 32 threads");
    static constexpr unsigned size() { return N; }
    static constexpr unsigned num_threads() { return N; }
    unsigned meta_group_rank() const { return thread_block::thread_rank() / N; }
    unsigned meta_group_size() const { return (thread_block::size() + N - 1) / N; }
};

template <unsigned N, class G> inline thread_block_tile<N> tiled_partition(const G&) {
    unsigned lane = refsim::lane(), first = lane & ~(N - 1);
    unsigned left = thread_block::size() - (thread_block::thread_rank() & ~31u);  // threads of the block from this warp on
    unsigned mask = (N == 32 ? 0xffffffffu : ((1u << (N % 32)) - 1)) << first;
    if (left < 32) mask &= (1u << left) - 1;
    thread_block_tile<N> tile;
    tile.mask_ = mask;
    tile.count_ = N;
    tile.rank_ = lane - first;
    return tile;
}

struct coalesced_group : lanes {
    unsigned meta_group_rank() const { return 0; }
};
inline coalesced_group coalesced_threads(REFSIM_LINE) {
    coalesced_group g;
    g.mask_ = refsim_active_mask(line);
    g.count_ = (unsigned)__builtin_popcount(g.mask_);
    g.rank_ = (unsigned)__builtin_popcount(g.mask_ & ((1u << refsim::lane()) - 1));
    return g;
}

template <class G> inline void sync(const G& g, REFSIM_LINE) { g.sync(line); }

}  // namespace cooperative_groups
