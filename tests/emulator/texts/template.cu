template <typename T, int N>
struct Scale {
    T factor;
    __device__ T operator()(T x) const { return x * factor + T(N); }
};

template <typename T, int N>
__global__ void __launch_bounds__(128) scale(const T* x, T* y, T factor, int n) {
    Scale<T, N> op{factor};
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = op(x[i]);
}
