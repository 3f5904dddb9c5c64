extern "C" __global__ void k(const float* __restrict__ x, float* y) {
    y[threadIdx.x] = x[threadIdx.x];
#ifndef MENDED
    float* w = const_cast<float*>(x);
    w[threadIdx.x] = 0.f;  // HERE
#endif
}
