#define RADIUS 3

// Sums over 2 * RADIUS + 1 neighbours, zero beyond the ends; a block keeps its stretch and a halo on either side.
extern "C" __global__ void stencil(const int* in, int* out, int n) {
    extern __shared__ __align__(16) unsigned char raw[];
    int* s = reinterpret_cast<int*>(raw);
    int g = blockIdx.x * blockDim.x + threadIdx.x, l = threadIdx.x + RADIUS;
    s[l] = g < n ? in[g] : 0;
    if (threadIdx.x < RADIUS) {
        s[l - RADIUS] = g >= RADIUS ? in[g - RADIUS] : 0;
        s[l + blockDim.x] = g + (int)blockDim.x < n ? in[g + blockDim.x] : 0;
    }
    __syncthreads();
    int sum = 0;
    for (int o = -RADIUS; o <= RADIUS; o++) sum += s[l + o];
    if (g < n) out[g] = sum;
}
