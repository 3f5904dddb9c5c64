// A program copies rows of one tensor to another, 16 bytes at a time where alignment allows.
#pragma once

#include "traffic.cuh"

const int THREADS = 128;

// `rows` rows of SIZE elements, whose starts are so many elements apart on either side.
template <int tensor, int SIZE>
__device__ inline void copy_rows(T* to, long long to_row, const T* from, long long from_row, int rows) {
#ifdef ALIGNED
    const int WIDTH = CHUNK;
    typedef uint4 Word;
#else
    const int WIDTH = 1;
    typedef T Word;
#endif
    for (int i = threadIdx.x; i < rows * (SIZE / WIDTH); i += THREADS) {
        const int row = i / (SIZE / WIDTH), column = i % (SIZE / WIDTH) * WIDTH;
        write<tensor>((Word*)&to[row * to_row + column], read<tensor>((const Word*)&from[row * from_row + column]));
    }
}
