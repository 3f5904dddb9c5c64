// Mean and variance by Welford's updates, merged over lanes and warps; four floats a load.
struct Moments {
    float mean, m2, n;
};
__device__ __forceinline__ Moments merge(Moments a, Moments b) {
    float n = a.n + b.n;
    if (n == 0.f) return a;
    float d = b.mean - a.mean;
    return {a.mean + d * (b.n / n), a.m2 + b.m2 + d * d * (a.n * b.n / n), n};
}
extern "C" __global__ void __launch_bounds__(128)
layernorm(const float4* __restrict__ x, const float4* __restrict__ gain, float4* __restrict__ y, int n4, float eps) {
    __shared__ Moments parts[4];
    const float4* row = x + blockIdx.x * n4;
    Moments s = {0.f, 0.f, 0.f};
    for (int i = threadIdx.x; i < n4; i += blockDim.x) {
        float4 v = row[i];
        const float* f = reinterpret_cast<const float*>(&v);
#pragma unroll
        for (int c = 0; c < 4; c++) {
            s.n += 1.f;
            float d = f[c] - s.mean;
            s.mean += d / s.n;
            s.m2 += d * (f[c] - s.mean);
        }
    }
    for (int o = 16; o > 0; o >>= 1) {
        Moments t = {__shfl_down_sync(0xffffffff, s.mean, o), __shfl_down_sync(0xffffffff, s.m2, o), __shfl_down_sync(0xffffffff, s.n, o)};
        s = merge(s, t);
    }
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    if (!lane) parts[warp] = s;
    __syncthreads();
    s = parts[0];
    for (int w = 1; w < 4; w++) s = merge(s, parts[w]);
    float scale = rsqrtf(s.m2 / s.n + eps);
    for (int i = threadIdx.x; i < n4; i += blockDim.x) {
        float4 v = row[i], g = __ldg(gain + i);
        v.x = (v.x - s.mean) * scale * g.x;
        v.y = (v.y - s.mean) * scale * g.y;
        v.z = (v.z - s.mean) * scale * g.z;
        v.w = (v.w - s.mean) * scale * g.w;
        y[blockIdx.x * n4 + i] = v;
    }
}
