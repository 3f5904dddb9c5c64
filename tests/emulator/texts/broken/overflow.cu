extern "C" __global__ void k(const int* table, const float* cache, float* y, int stride) {
    int page = table[threadIdx.x];
#ifdef MENDED
    long long offset = (long long)page * stride;
#else
    long long offset = page * stride;  // HERE
#endif
    y[threadIdx.x] = offset >= 0 && offset < 4 ? cache[offset] : -1.0f;
}
