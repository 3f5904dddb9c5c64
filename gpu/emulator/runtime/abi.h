// What the Python side and the runtime share: plain structs, mirrored field by field in native.py.
#pragma once
#include <stddef.h>
#include <stdint.h>

using u8 = uint8_t;
using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;
using i32 = int32_t;
using i64 = int64_t;

enum Check : i32 {
    OUT_OF_BOUNDS,
    MISALIGNED,
    UNINITIALISED,
    RACE,
    BARRIER,
    MASK,
    DEADLOCK,
    CONST_WRITE,
    OVERFLOW_INT,
    ASSERTION,
    CRASH,
    CHECKS
};
enum Mode : u8 { IGNORE, REPORT, RAISE };
enum Direction : u8 { READ, WRITE, ATOMIC };

// Memory that is no tensor argument is told apart by these region numbers.
enum Region : i32 { REGION_SHARED = -1, REGION_MODULE = -2, REGION_NOWHERE = -3 };

enum SlotFlag : u32 { SLOT_CONST = 1, SLOT_RACE = 2, SLOT_UNINIT = 4, SLOT_HEAT = 8, SLOT_FREED = 16 };

// One argument's memory. Bitmaps have one bit a byte of the tensor.
struct Slot {
    u64 base, nbytes;
    u32 flags, granule_shift;  // bytes covered by one race cell: 1 << granule_shift
    u8* touched[3];            // by direction
    u8* initialised;
    struct GlobalCell* cells;
    u32* heat;  // reads of each granule
};

struct Range {
    u64 base, nbytes;
};

struct Report {
    i32 check, region;
    u32 count, size, direction, other_direction;
    u64 pc, other_pc, address;
    u32 block, thread, other_block, other_thread;
    u32 line, other_line;  // of calls that know their line, should the compiler have merged them with others
    u64 lanes;
    char detail[240];
};

constexpr u32 MAX_REPORTS = 128;

// One line of the trace: all accesses of one instruction to one region in one direction.
struct Site {
    u64 pc;
    i32 region;
    u32 size, direction, used;
    u64 lanes, requests, nbytes, sectors, useful, wavefronts, ideal;
};

constexpr u32 MAX_SITES = 1 << 13;

struct Sample {  // one warp access kept whole, for pictures
    u64 pc;
    i32 region;
    u32 size, direction, block, warp, mask;
    u64 address[32];
};

constexpr u32 MAX_SAMPLES = 2048;

struct Event {  // one thread block barrier seen by one warp, in instructions issued so far
    u32 block, warp, index, line;
    u64 arrived, released;
};

constexpr u32 MAX_EVENTS = 1 << 14;

struct Worker {
    u32 ended, nsamples, nevents, failed;  // ended: by itself, and not by something that the kernel did to its process
    u64 resumes;
    Site sites[MAX_SITES];
    Sample samples[MAX_SAMPLES];
    Event events[MAX_EVENTS];
};

struct Launch {
    u32 grid[3], block[3];
    u32 shared_nbytes, workers;
    u64 stack_nbytes;
    void (*entry)(void**);
    void* arguments[128];
    u64 module_low, module_high;  // the loaded object, from its first byte to its last
    u32 nshared, nvariables;
    Range shared[64];     // static __shared__ arrays
    Range variables[64];  // __device__ and __constant__ variables
    u32 const_variables;    // the first so many of them are __constant__
    u32 visible_variables;  // and after so many come the compiler's own (guards of local statics)
    u32 traced, keep_samples, keep_events, unused;
    u8 modes[16];
    u64 next_block;
    u32 stop, nreports;
    u64* published;  // by block: global order (high half) and moment of its last fence followed by an atomic
    u64* acquired;   // by block: the global order at its last atomic
    u64 order;
    i32 step_block, step_write, step_read;  // stepping: which block, pipes to the reader (-1: none)
    u32 step_line;
    u8* step_shared;  // static arrays one after the other, then the dynamic one
    double* watched;  // by watched variable and thread
    u64 printed_nbytes, print_capacity;
    u8* printed;
    u8* left;  // where the worker leaves the values of __device__ variables, one after the other
    Report reports[MAX_REPORTS];
    Worker* worker[16];
};
