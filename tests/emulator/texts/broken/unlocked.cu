// A spin lock: what it guards is ordered by the fence and the atomics, within a block and between blocks.
extern "C" __global__ void k(int* lock, int* count) {
    while (atomicCAS(lock, 0, 1) != 0) { }
    *count += 1;  // HERE
#ifdef MENDED
    __threadfence();
#endif
    atomicExch(lock, 0);
}
