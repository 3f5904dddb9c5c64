// Checks that the compiler writes into the code: signed overflow, array bounds; and assert.
#pragma once
#include "access.h"

struct SourceLocation {
    const char* file;
    u32 line, column;
};
struct TypeDescriptor {
    u16 kind, info;
    char name[1];
};
struct OverflowData {
    SourceLocation at;
    TypeDescriptor* type;
};
struct BoundsData {
    SourceLocation at;
    TypeDescriptor* array;
    TypeDescriptor* index;
};

static i64 value_of(TypeDescriptor* type, u64 handle) {
    u32 bits = 1u << (type->info >> 1);
    if (type->kind != 0 || bits > 64) return 0;
    return bits == 64 ? (i64)handle : (i64)(handle << (64 - bits)) >> (64 - bits);
}

static void overflow(OverflowData* data, u64 a, u64 b, const char* sign, u64 pc) {
    Report* r = new_report(OVERFLOW_INT, pc);
    if (!r) return;
    long long x = value_of(data->type, a), y = value_of(data->type, b);
    if (*sign)
        describe(r, "%lld %s %lld does not fit in %s", x, sign, y, data->type->name);
    else
        describe(r, "-(%lld) does not fit in %s", x, data->type->name);
    settle(OVERFLOW_INT);
}

EXPORT void __ubsan_handle_add_overflow(OverflowData* d, u64 a, u64 b) { overflow(d, a, b, "+", CALLER); }
EXPORT void __ubsan_handle_sub_overflow(OverflowData* d, u64 a, u64 b) { overflow(d, a, b, "-", CALLER); }
EXPORT void __ubsan_handle_mul_overflow(OverflowData* d, u64 a, u64 b) { overflow(d, a, b, "*", CALLER); }
EXPORT void __ubsan_handle_divrem_overflow(OverflowData* d, u64 a, u64 b) { overflow(d, a, b, "/", CALLER); }
EXPORT void __ubsan_handle_negate_overflow(OverflowData* d, u64 a) { overflow(d, a, 0, "", CALLER); }

EXPORT void __ubsan_handle_out_of_bounds(BoundsData* d, u64 index) {
    Report* r = new_report(OUT_OF_BOUNDS, CALLER);
    if (!r) return;
    describe(r, "index %lld is outside %s", (long long)value_of(d->index, index), d->array->name);
    settle(OUT_OF_BOUNDS);
}

EXPORT void refsim_assert(const char* text) {
    Report* r = new_report(ASSERTION, CALLER);
    if (r) describe(r, "assertion failed: %s", text);
    settle(ASSERTION);
}

EXPORT void refsim_trap(const char* text) {
    Report* r = new_report(CRASH, CALLER);
    if (r) describe(r, "%s", text);
    leave();
}

// A variable that somebody watches, put down just before a barrier.
EXPORT void refsim_watch(u32 number, double x) {
    if (launch->watched && launch->step_block == (i32)block.id) launch->watched[number * MAX_THREADS + current->id] = x;
}

struct Message {
    u32 block, nbytes;
};

EXPORT int refsim_printf(const char* format, ...) {
    char text[1024];
    va_list list;
    va_start(list, format);
    int n = vsnprintf(text, sizeof text, format, list);
    va_end(list);
    u64 keep = n < 0 ? 0 : (u64)n < sizeof text ? n : sizeof text - 1;
    u64 at = __atomic_fetch_add(&launch->printed_nbytes, sizeof(Message) + keep, __ATOMIC_SEQ_CST);
    if (at + sizeof(Message) + keep > launch->print_capacity) return -1;
    Message head{current ? block.id : 0, (u32)keep};
    memcpy(launch->printed + at, &head, sizeof head);
    memcpy(launch->printed + at + sizeof head, text, keep);
    return n;
}
