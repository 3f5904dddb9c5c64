#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;

// A sum by tiles of 16 threads; each tile's first thread writes.
extern "C" __global__ void tile_sums(const int* x, int* sums) {
    cg::thread_block block = cg::this_thread_block();
    cg::thread_block_tile<16> tile = cg::tiled_partition<16>(block);
    int value = x[block.group_index().x * block.size() + block.thread_rank()];
    int total = cg::reduce(tile, value, cg::plus<int>());
    int again = value;
    for (int o = tile.size() / 2; o > 0; o /= 2) again += tile.shfl_down(again, o);
    if (tile.thread_rank() == 0) {
        assert(again == total);
        sums[block.group_index().x * tile.meta_group_size() + tile.meta_group_rank()] = total;
    }
    block.sync();
}
