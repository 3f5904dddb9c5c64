// How the launcher calls a kernel of any signature, and what it learns of it.
#pragma once

struct RefsimParameter {
    unsigned nbytes, pointer, constant, pointee_nbytes;
    char kind;  // f float, i signed, u unsigned, b bool, s anything else
};
struct RefsimKernel {
    const char* name;
    void (*entry)(void**);
    const RefsimParameter* parameters;
    unsigned count, bounds, min_blocks;
};

namespace refsim {
template <class T> constexpr char kind_of() {
    return std::is_same<T, bool>::value ? 'b' : std::is_floating_point<T>::value ? 'f' : std::is_integral<T>::value ? (std::is_signed<T>::value ? 'i' : 'u') : 's';
}
template <class T> constexpr unsigned size_of() {
    if constexpr (std::is_void<T>::value) return 1; else return sizeof(T);
}
template <class T> constexpr RefsimParameter describe() {
    typedef typename std::remove_cv<T>::type V;
    typedef typename std::remove_pointer<V>::type P;
    if (std::is_pointer<V>::value)
        return {sizeof(V), 1, std::is_const<P>::value, size_of<typename std::remove_cv<P>::type>(), kind_of<typename std::remove_cv<P>::type>()};
    return {sizeof(V), 0, 0, 0, kind_of<V>()};
}
template <class F> struct Signature;
template <class... A> struct Signature<void (*)(A...)> {
    static constexpr unsigned count = sizeof...(A);
    static_assert(!(std::is_reference<A>::value || ...), "a kernel takes no references");
    static constexpr RefsimParameter list[sizeof...(A) + 1] = {describe<A>()..., {}};
    template <void (*F)(A...), size_t... I>
    __attribute__((no_sanitize_thread, noinline)) static void unpack(void** a, std::integer_sequence<size_t, I...>) {
        F(*(typename std::remove_reference<A>::type*)a[I]...);
    }
    template <void (*F)(A...)> __attribute__((no_sanitize_thread, noinline)) static void call(void** a) {
        unpack<F>(a, std::make_integer_sequence<size_t, sizeof...(A)>());
    }
};
}  // namespace refsim

#define REFSIM_KERNEL(ID, TEXT, BOUNDS, MIN_BLOCKS, ...)                                                             \
    extern "C" __attribute__((visibility("default"))) const RefsimKernel refsim_kernel_##ID;                   \
    const RefsimKernel refsim_kernel_##ID = {                                                                        \
        TEXT, &refsim::Signature<decltype(&__VA_ARGS__)>::call<&__VA_ARGS__>,                                        \
        refsim::Signature<decltype(&__VA_ARGS__)>::list, refsim::Signature<decltype(&__VA_ARGS__)>::count, BOUNDS, MIN_BLOCKS};
