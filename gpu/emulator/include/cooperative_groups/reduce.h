// reduce(): every thread of a tile gets the sum (or other fold) over the tile.
#pragma once
#include "../cooperative_groups.h"

namespace cooperative_groups {
template <class T> struct plus { T operator()(T a, T b) const { return a + b; } };
template <class T> struct less { T operator()(T a, T b) const { return b < a ? b : a; } };
template <class T> struct greater { T operator()(T a, T b) const { return a < b ? b : a; } };
template <class T> struct bit_and { T operator()(T a, T b) const { return a & b; } };
template <class T> struct bit_or { T operator()(T a, T b) const { return a | b; } };
template <class T> struct bit_xor { T operator()(T a, T b) const { return a ^ b; } };

template <class G, class T, class F> inline T reduce(const G& g, T x, F f, REFSIM_LINE) {
    unsigned n = g.num_threads();
    T all = g.from(x, 0, line);
    for (unsigned i = 1; i < n; i++) all = f(all, g.from(x, i, line));
    return all;
}
}  // namespace cooperative_groups
