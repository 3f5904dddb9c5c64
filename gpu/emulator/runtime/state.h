// What one worker knows while it runs a block.
#pragma once
#include "abi.h"

#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)
#define EXPORT extern "C" __attribute__((visibility("default")))
#define CALLER ((u64)__builtin_return_address(0))

struct Dim {
    u32 x, y, z;
};

enum WarpKind : u32 {
    SYNC, SHUFFLE, BALLOT, ANY, ALL, MATCH_ANY, MATCH_ALL, ADD, MIN, MAX, MIN_SIGNED, MAX_SIGNED, AND, OR, XOR,
    MULTIPLY_HALF, MULTIPLY_BFLOAT16, LOAD_MATRIX, LOAD_MATRIX_TRANSPOSED
};

enum State : u8 { RUNNING, AT_BARRIER, AT_WARP, CONVERGING, DONE };

enum Fence : u8 { UNFENCED, BLOCK_FENCE, DEVICE_FENCE };

struct PendingCopies;

struct Thread {
    void* sp;
    struct Warp* warp;
    Dim index;
    u32 id, lane, cursor;
    State state;
    // where it waits, and with what
    WarpKind kind;
    u32 mask, line, source;
    u64 pc, value, result;
    PendingCopies* copies;
    u8* stack_low;
    Fence fence;             // since its last atomic
    u64 published, acquired; // as those of a launch's blocks, for the threads of this one
};

struct Warp {
    Thread* lanes;
    u32 existing, ready, paused, converging, at_warp, done;
    u32 synced;              // time of the last __syncwarp by the whole warp
    u32 (*pair)[32];         // and of the last by any two lanes, made when partial masks are first used
    u32 rounds;              // times that paused lanes were let go on
    u64 issued;              // warp accesses so far: the clock of the barrier timeline
};

struct Block {
    u32 id, nthreads, nwarps, live, arrived, barriers;
    u32 start, barrier;      // times: a moment counter that ticks at every barrier
    u32 line_low, line_high; // lines at which threads wait
    i64 sum;
    bool every, some;
};

constexpr u32 MAX_THREADS = 1024;

static Launch* launch;
static Worker* worker;
static Thread* current;
static Thread root;
static Warp* warp;  // of the current thread
static Thread threads[MAX_THREADS];
static Warp warps[MAX_THREADS / 32];
static Block block;
static u32 now = 1;
static bool traced;

// The index variables of CUDA: to kernels they are constants, so that no compiler counts a read of them as traffic.
EXPORT Dim refsim_thread_idx, refsim_block_idx, refsim_block_dim, refsim_grid_dim;

#ifdef __ELF__
// Each of their members under a name of its own.
#define MEMBER(NAME, LETTER, OFFSET)                                                       \
    ".globl refsim_" NAME "_" LETTER "\n.type refsim_" NAME "_" LETTER ",%object\n"         \
    ".size refsim_" NAME "_" LETTER ",4\n.set refsim_" NAME "_" LETTER ",refsim_" NAME "+" OFFSET "\n"
#define MEMBERS(NAME) MEMBER(NAME, "x", "0") MEMBER(NAME, "y", "4") MEMBER(NAME, "z", "8")
__asm__(MEMBERS("thread_idx") MEMBERS("block_idx") MEMBERS("block_dim") MEMBERS("grid_dim"));
#undef MEMBERS
#undef MEMBER
#endif
Dim refsim_thread_idx, refsim_block_idx, refsim_block_dim, refsim_grid_dim;

#ifdef __ELF__
// Each of their members under a name of its own.
#define MEMBER(NAME, LETTER, OFFSET)                                                       \
    ".globl refsim_" NAME "_" LETTER "\n.type refsim_" NAME "_" LETTER ",%object\n"         \
    ".size refsim_" NAME "_" LETTER ",4\n.set refsim_" NAME "_" LETTER ",refsim_" NAME "+" OFFSET "\n"
#define MEMBERS(NAME) MEMBER(NAME, "x", "0") MEMBER(NAME, "y", "4") MEMBER(NAME, "z", "8")
__asm__(MEMBERS("thread_idx") MEMBERS("block_idx") MEMBERS("block_dim") MEMBERS("grid_dim"));
#undef MEMBERS
#undef MEMBER
#endif

static void flush_log();
static void yield_();
