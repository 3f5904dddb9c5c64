extern "C" __global__ void k(const float* x, float* y) {
#ifdef MENDED
    float4 v = *reinterpret_cast<const float4*>(x + 4 * threadIdx.x);
#else
    float4 v = *reinterpret_cast<const float4*>(x + 4 * threadIdx.x + 1);  // HERE
#endif
    y[threadIdx.x] = v.x + v.w;
}
