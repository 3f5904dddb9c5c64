extern "C" __global__ void k(const int* table, const float* x, float* y, int n) {
    int i = threadIdx.x;
#ifdef MENDED
    if (table[i] < 0) return;
#endif
    y[i] = x[(long long)table[i] * 16];  // HERE
}
