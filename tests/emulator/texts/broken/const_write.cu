extern "C" __global__ void k(const float* x, float* y) {
#ifdef MENDED
    float* p = y;
#else
    float* p = const_cast<float*>(x);
#endif
    p[threadIdx.x] = 1.0f;  // HERE
}
