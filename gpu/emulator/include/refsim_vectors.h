// CUDA's vector types. Each is copied as one word, so that it is loaded and stored whole, as on a GPU, and not member by
// member.
#pragma once

#define REFSIM_INLINE inline __attribute__((always_inline))

namespace refsim {
template <unsigned N> struct Word;
#define REFSIM_WORD(N, T)                                                                               \
    template <> struct Word<N> {                                                                        \
        typedef T Bits __attribute__((may_alias));                                                      \
        static REFSIM_INLINE void copy(void* to, const void* from) { *(Bits*)to = *(const Bits*)from; } \
    };
REFSIM_WORD(2, unsigned short)
REFSIM_WORD(4, unsigned int)
REFSIM_WORD(8, unsigned long)
typedef float Sixteen __attribute__((vector_size(16)));
REFSIM_WORD(16, Sixteen)
#undef REFSIM_WORD
}  // namespace refsim

#define REFSIM_WHOLE(NAME, N)                                                       \
    NAME() = default;                                                               \
    REFSIM_INLINE NAME(const NAME& o) { refsim::Word<N>::copy(this, &o); }          \
    REFSIM_INLINE NAME& operator=(const NAME& o) {                                  \
        refsim::Word<N>::copy(this, &o);                                            \
        return *this;                                                               \
    }

#define REFSIM_VECTORS(BASE, T)                                                                              \
    struct BASE##1 {                                                                                         \
        T x;                                                                                                 \
    };                                                                                                       \
    struct alignas(2 * sizeof(T)) BASE##2 {                                                                  \
        T x, y;                                                                                              \
        REFSIM_WHOLE(BASE##2, sizeof(T) * 2)                                                                 \
        constexpr BASE##2(T x_, T y_ = {}) : x(x_), y(y_) {}                                                 \
    };                                                                                                       \
    struct BASE##3 {                                                                                         \
        T x, y, z;                                                                                           \
    };                                                                                                       \
    inline BASE##1 make_##BASE##1(T x) { return {x}; }                                                       \
    inline BASE##2 make_##BASE##2(T x, T y) { return {x, y}; }                                               \
    inline BASE##3 make_##BASE##3(T x, T y, T z) { return {x, y, z}; }
#define REFSIM_VECTORS_OF_4(BASE, T)                                                                         \
    struct alignas(4 * sizeof(T)) BASE##4 {                                                                  \
        T x, y, z, w;                                                                                        \
        REFSIM_WHOLE(BASE##4, sizeof(T) * 4)                                                                 \
        constexpr BASE##4(T x_, T y_ = {}, T z_ = {}, T w_ = {}) : x(x_), y(y_), z(z_), w(w_) {}             \
    };                                                                                                       \
    inline BASE##4 make_##BASE##4(T x, T y, T z, T w) { return {x, y, z, w}; }
#define REFSIM_PAIRS_OF_2(BASE, T)                                                                           \
    struct alignas(16) BASE##4 {                                                                             \
        T x, y, z, w;                                                                                        \
    };                                                                                                       \
    inline BASE##4 make_##BASE##4(T x, T y, T z, T w) { return {x, y, z, w}; }

REFSIM_VECTORS(char, signed char)
REFSIM_VECTORS(uchar, unsigned char)
REFSIM_VECTORS(short, short)
REFSIM_VECTORS(ushort, unsigned short)
REFSIM_VECTORS(int, int)
REFSIM_VECTORS(uint, unsigned int)
REFSIM_VECTORS(long, long)
REFSIM_VECTORS(ulong, unsigned long)
REFSIM_VECTORS(longlong, long long)
REFSIM_VECTORS(ulonglong, unsigned long long)
REFSIM_VECTORS(float, float)
REFSIM_VECTORS(double, double)
REFSIM_VECTORS_OF_4(char, signed char)
REFSIM_VECTORS_OF_4(uchar, unsigned char)
REFSIM_VECTORS_OF_4(short, short)
REFSIM_VECTORS_OF_4(ushort, unsigned short)
REFSIM_VECTORS_OF_4(int, int)
REFSIM_VECTORS_OF_4(uint, unsigned int)
REFSIM_VECTORS_OF_4(float, float)
REFSIM_PAIRS_OF_2(long, long)
REFSIM_PAIRS_OF_2(ulong, unsigned long)
REFSIM_PAIRS_OF_2(longlong, long long)
REFSIM_PAIRS_OF_2(ulonglong, unsigned long long)
REFSIM_PAIRS_OF_2(double, double)
#undef REFSIM_VECTORS
#undef REFSIM_VECTORS_OF_4
#undef REFSIM_PAIRS_OF_2

struct dim3 {
    unsigned int x, y, z;
    constexpr dim3(unsigned int x_ = 1, unsigned int y_ = 1, unsigned int z_ = 1) : x(x_), y(y_), z(z_) {}
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
    operator uint3() const { return {x, y, z}; }
};
