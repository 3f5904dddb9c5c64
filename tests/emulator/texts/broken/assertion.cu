extern "C" __global__ void k(const int* table, int n) {
#ifndef MENDED
    assert(table[threadIdx.x] < n);  // HERE
#endif
}
