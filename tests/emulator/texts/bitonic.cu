#define N 256
extern "C" __global__ void bitonic(int* data) {
    __shared__ int s[N];
    int t = threadIdx.x;
    s[t] = data[blockIdx.x * N + t];
    __syncthreads();
    for (int k = 2; k <= N; k <<= 1)
        for (int j = k >> 1; j > 0; j >>= 1) {
            int p = t ^ j;
            if (p > t) {
                int a = s[t], b = s[p];
                bool up = (t & k) == 0;
                if ((a > b) == up) {
                    s[t] = b;
                    s[p] = a;
                }
            }
            __syncthreads();
        }
    data[blockIdx.x * N + t] = s[t];
}
