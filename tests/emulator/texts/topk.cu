// The k largest of each row, one warp a row; a lane keeps in a bit mask which of its elements are taken.
extern "C" __global__ void topk(const float* __restrict__ scores, int n, int k, float* __restrict__ values, int* __restrict__ places) {
    const int row = blockIdx.x, lane = threadIdx.x & 31;
    const float* s = scores + (size_t)row * n;
    unsigned taken = 0;
    for (int round = 0; round < k; ++round) {
        float best = __int_as_float(0xff800000);
        int at = -1;
        for (int j = 0, i = lane; i < n; i += 32, ++j)
            if (!(taken >> j & 1u)) {
                float x = s[i];
                if (x > best) best = x, at = i;
            }
#pragma unroll
        for (int o = 16; o; o >>= 1) {
            float other = __shfl_down_sync(0xffffffffu, best, o);
            int there = __shfl_down_sync(0xffffffffu, at, o);
            if (other > best) best = other, at = there;
        }
        best = __shfl_sync(0xffffffffu, best, 0);
        at = __shfl_sync(0xffffffffu, at, 0);
        if (lane == (at & 31)) taken |= 1u << (at >> 5);
        if (lane == 0) values[row * k + round] = best, places[row * k + round] = at;
    }
}
