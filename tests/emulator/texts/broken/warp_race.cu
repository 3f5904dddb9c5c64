extern "C" __global__ void k(const float* x, float* y) {
    __shared__ volatile float s[32];
    int lane = threadIdx.x;
    s[lane] = x[lane];
    __syncwarp();
    if (lane < 16) s[lane] += s[lane + 16];  // OTHER
#ifdef MENDED
    __syncwarp();
#endif
    if (lane < 8) s[lane] += s[lane + 8];  // HERE
    __syncwarp();
    if (lane == 0) y[0] = s[0] + s[1] + s[2] + s[3] + s[4] + s[5] + s[6] + s[7];
}
