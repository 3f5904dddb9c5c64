// Tensor-core instructions, from the documented layout of their fragments: which lane holds which elements.
#pragma once
#include "warp.h"

struct Fragments {  // one lane's part of D = A B + C for 16 x 8 x 16
    u32 a[4], b[2];
    float c[4], d[4];
};

struct MatrixRow {  // one lane's part of ldmatrix: the row it points at, and the words it gets
    u32 row[4], out[4];
};

static float half_float(u32 code) {
    u32 sign = (code & 0x8000) << 16, rest = code & 0x7fff, bits;
    if (rest >= 0x7c00) {
        bits = sign | 0x7f800000 | (rest & 0x3ff) << 13;
    } else {
        float f;
        bits = rest << 13;
        memcpy(&f, &bits, 4);
        f *= 5.192296858534828e33f;  // 2**112: the difference of the two exponents' biases; subnormals come out right
        memcpy(&bits, &f, 4);
        bits |= sign;
    }
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

static float bfloat16_float(u32 code) {
    u32 bits = code << 16;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

// Each element of D: sixteen exact products and C, summed in float64 and rounded once to float32.
static void multiply(Thread* lanes, float (*value)(u32)) {
    double a[16][16], b[16][8];
    for (u32 i = 0; i < 32; i++) {
        const Fragments& f = *(Fragments*)lanes[i].value;
        u32 g = i / 4, t = i % 4;
        for (u32 r = 0; r < 4; r++)
            for (u32 h = 0; h < 2; h++) a[g + 8 * (r & 1)][2 * t + h + 8 * (r >> 1)] = value(f.a[r] >> 16 * h & 0xffff);
        for (u32 r = 0; r < 2; r++)
            for (u32 h = 0; h < 2; h++) b[2 * t + h + 8 * r][g] = value(f.b[r] >> 16 * h & 0xffff);
    }
    for (u32 i = 0; i < 32; i++) {
        Fragments& f = *(Fragments*)lanes[i].value;
        for (u32 r = 0; r < 4; r++) {
            u32 row = i / 4 + 8 * (r >> 1), column = 2 * (i % 4) + (r & 1);
            double sum = f.c[r];
            for (u32 k = 0; k < 16; k++) sum += a[row][k] * b[k][column];
            f.d[r] = (float)sum;
        }
    }
}

// Lane 8 m + r points at row r of 8 x 8 matrix m; lane i gets elements (i / 4, 2 (i % 4)) and the next, or, transposed,
// (2 (i % 4), i / 4) and the one below.
static void distribute(Thread* lanes, bool transposed) {
    for (u32 m = 0; m < 4; m++)
        for (u32 i = 0; i < 32; i++) {
            u32 word = 0;
            for (u32 h = 0; h < 2; h++) {
                u32 row = transposed ? 2 * (i % 4) + h : i / 4, column = transposed ? i / 4 : 2 * (i % 4) + h;
                const MatrixRow& source = *(MatrixRow*)lanes[8 * m + row].value;
                word |= (source.row[column / 2] >> 16 * (column & 1) & 0xffff) << 16 * h;
            }
            ((MatrixRow*)lanes[i].value)->out[m] = word;
        }
}

static void complete_matrix(Warp* w, WarpKind kind, u32 mask) {
    if (mask != ~0u) {
        if (Report* r = new_report(MASK, current->pc)) {
            describe(r, "a matrix instruction needs all 32 lanes; here are 0x%08x", mask);
            settle(MASK);
        }
        return;
    }
    switch (kind) {
        case MULTIPLY_HALF: multiply(w->lanes, half_float); break;
        case MULTIPLY_BFLOAT16: multiply(w->lanes, bfloat16_float); break;
        default: distribute(w->lanes, kind == LOAD_MATRIX_TRANSPOSED);
    }
}

EXPORT void refsim_mma(u32 bfloat16, float* d, const u32* a, const u32* b, const float* c, u32 line) {
    Fragments f;
    memcpy(f.a, a, sizeof f.a);
    memcpy(f.b, b, sizeof f.b);
    memcpy(f.c, c, sizeof f.c);
    memset(f.d, 0, sizeof f.d);
    meet_all(bfloat16 ? MULTIPLY_BFLOAT16 : MULTIPLY_HALF, &f, line, CALLER);
    memcpy(d, f.d, sizeof f.d);
}

EXPORT void refsim_load_matrix(u32 transposed, u32* out, const void* row, u32 line) {
    MatrixRow m;
    if (traced) access((u64)row, 16, READ, CALLER);
    memcpy(m.row, row, sizeof m.row);
    meet_all(transposed ? LOAD_MATRIX_TRANSPOSED : LOAD_MATRIX, &m, line, CALLER);
    memcpy(out, m.out, sizeof m.out);
}
