__device__ int deep(int n, volatile int* x) {
    volatile int room[256];
    room[n % 256] = x[0];
    return n == 0 ? room[0] : deep(n - 1, room) + 1;
}
extern "C" __global__ void k(int* x, int depth) {
#ifdef MENDED
    depth = 3;
#endif
    x[threadIdx.x] = deep(depth, x + threadIdx.x);
}
