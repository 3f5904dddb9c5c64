// Shadow memory: who last wrote and read each word, and when; and whether anybody wrote it at all.
#pragma once
#include "log.h"

constexpr u32 ATOMIC_BIT = 1u << 31;

// The last reads of a word by two different threads, as far as no barrier has come since.
struct Readers {
    u32 time[2], pc[2];
};

struct GlobalCell {  // by granule of a tensor; blocks are counted from 1, 0 is nobody
    u32 write_block, write_time, write_pc;
    u32 threads;  // writer, first reader, second reader: 10 bits each; bit 30: there is a second reader
    u32 read_block, other_read_block;
    Readers reads;
};

struct SharedCell {  // by word of 4 bytes
    u32 write_time, write_pc, threads;
    u8 write_bytes, read_bytes, init_bytes, unused;
    Readers reads;
};

static_assert(sizeof(GlobalCell) == 40, "as in native.py");

static SharedCell* shared_cells;
constexpr u32 SECOND = 1u << 30;

static inline u32 field(u32 threads, u32 i) { return threads >> 10 * i & 1023; }
static inline u32 with_field(u32 threads, u32 i, u32 id) { return (threads & ~(1023u << 10 * i)) | id << 10 * i; }

// Did the thread do a fence and then an atomic after that moment, and this one an atomic since? (As locks do.)
static bool handed_over(const Thread& from, u32 time) {
    return from.published && (u32)from.published >= time && from.published >> 32 <= current->acquired;
}

// Did a barrier, or a __syncwarp of both, come between a moment of another thread of this block and now?
static inline bool ordered(u32 other, u32 time) {
    if (time < block.barrier) return true;
    if (other / 32 == current->id / 32) {
        if (time < warp->synced) return true;
        if (warp->pair && time < warp->pair[current->lane][other % 32]) return true;
    }
    return handed_over(threads[other], time);
}

static inline void note_read(Readers* r, u32* threads, bool fresh, u32 me, u32 pc) {
    u32 slot = 0;
    if (fresh) {
        *threads &= ~SECOND;
    } else {
        u32 first = field(*threads, 1), second = field(*threads, 2);
        if (first != me && !ordered(first, r->time[0])) {
            if (*threads & SECOND && second != me && !ordered(second, r->time[1])) return;
            slot = 1;
            *threads |= SECOND;
        }
    }
    *threads = with_field(*threads, 1 + slot, me);
    r->time[slot] = now;
    r->pc[slot] = pc;
}

// Which of the readers may still be reading: 0 or 1, or -1.
static inline i32 unordered_reader(const Readers* r, u32 threads, u32 me) {
    if (field(threads, 1) != me && !ordered(field(threads, 1), r->time[0])) return 0;
    if (threads & SECOND && field(threads, 2) != me && !ordered(field(threads, 2), r->time[1])) return 1;
    return -1;
}

static __attribute__((noinline)) void race(u64 a, u32 size, u32 direction, u64 pc, i32 region, u32 other_block,
                                           u32 other_thread, u32 other_pc, u32 other_direction) {
    Report* r = new_report(RACE, pc);
    if (!r) return;
    r->region = region;
    r->address = a;
    r->size = size;
    r->direction = direction;
    r->other_block = other_block;
    r->other_thread = other_thread;
    r->other_pc = other_pc ? launch->module_low + (other_pc & ~ATOMIC_BIT) : 0;
    r->other_direction = other_pc & ATOMIC_BIT ? (u32)ATOMIC : other_direction;
    settle(RACE);
}

static bool in_flight(u64 a);

static __attribute__((noinline)) void uninitialised(u64 a, u32 size, u64 pc, i32 region) {
    Report* r = new_report(UNINITIALISED, pc);
    if (!r) return;
    r->region = region;
    r->address = a;
    r->size = size;
    if (in_flight(a)) describe(r, "to which an asynchronous copy is still on its way: its thread must wait for it first");
    settle(UNINITIALISED);
}

static inline void check_shared(u64 a, u32 size, u32 direction, u64 pc) {
    u32 me = current->id, here = (u32)(pc - launch->module_low) | (direction == ATOMIC ? ATOMIC_BIT : 0);
    u64 word = (a - shared_low) >> 2, end = (a - shared_low + size - 1) >> 2;
    u32 bytes = size >= 4 ? 15 : ((1u << size) - 1) << (a & 3);
    for (; word <= end; word++) {
        SharedCell* c = &shared_cells[word];
        if (c->write_time < block.start) c->write_bytes = c->init_bytes = 0;
        if (c->read_bytes && c->reads.time[0] < block.barrier) c->read_bytes = 0;
        if (direction != WRITE && UNLIKELY((c->init_bytes & bytes) != bytes)) uninitialised(a, size, pc, REGION_SHARED);
        u32 writer = field(c->threads, 0);
        if (c->write_bytes & bytes && writer != me && !(direction == ATOMIC && c->write_pc & ATOMIC_BIT) &&
            !ordered(writer, c->write_time))
            race(a, size, direction, pc, REGION_SHARED, block.id, writer, c->write_pc, WRITE);
        if (direction == READ) {
            note_read(&c->reads, &c->threads, !c->read_bytes, me, here);
            c->read_bytes |= bytes;
            continue;
        }
        if (c->read_bytes & bytes) {
            i32 i = unordered_reader(&c->reads, c->threads, me);
            if (i >= 0)
                race(a, size, direction, pc, REGION_SHARED, block.id, field(c->threads, 1 + i), c->reads.pc[i], READ);
        }
        if (writer != me || c->write_time < block.barrier) c->write_bytes = 0;
        c->write_bytes |= bytes;
        c->init_bytes |= bytes;
        c->write_time = now;
        c->write_pc = here;
        c->threads = with_field(c->threads, 0, me);
    }
}

// A block whose thread did a fence and then an atomic has published what it wrote before; one that has
// since done an atomic itself may read it.
static bool published(u32 other_block, u32 time) {
    u64 order = launch->published[other_block];
    return order && (u32)order >= time && order >> 32 <= launch->acquired[block.id];
}

static void check_cell(GlobalCell* c, u64 a, u32 size, u32 direction, u64 pc, i32 region) {
    u32 me = current->id, my_block = block.id + 1;
    u32 here = (u32)(pc - launch->module_low) | (direction == ATOMIC ? ATOMIC_BIT : 0);
    u32 writer = field(c->threads, 0);
    bool atomics = direction == ATOMIC && c->write_pc & ATOMIC_BIT;
    if (c->write_block && !atomics) {
        bool mine = c->write_block == my_block;
        if (mine ? writer != me && !ordered(writer, c->write_time) : !published(c->write_block - 1, c->write_time))
            race(a, size, direction, pc, region, c->write_block - 1, writer, c->write_pc, WRITE);
    }
    bool same = c->read_block == my_block, fresh = !same || c->reads.time[0] < block.barrier;
    if (direction == READ) {
        if (c->read_block && !same) c->other_read_block = c->read_block;
        note_read(&c->reads, &c->threads, fresh, me, here);
        c->read_block = my_block;
        return;
    }
    u32 other = same ? c->other_read_block : c->read_block;
    // When the other block read is not kept once this one has read too: any publication of its will do then.
    if (other && !published(other - 1, same ? 0 : c->reads.time[0]))
        race(a, size, direction, pc, region, other - 1, same ? ~0u : field(c->threads, 1), same ? 0 : c->reads.pc[0], READ);
    i32 i = fresh ? -1 : unordered_reader(&c->reads, c->threads, me);
    if (i >= 0) race(a, size, direction, pc, region, block.id, field(c->threads, 1 + i), c->reads.pc[i], READ);
    c->write_block = my_block;
    c->write_time = now;
    c->write_pc = here;
    c->threads = with_field(c->threads, 0, me);
}

static void check_global(Slot* slot, u64 off, u32 size, u32 direction, u64 pc, i32 region) {
    if (slot->flags & SLOT_UNINIT) {
        bool known = true;
        for (u64 i = off; i < off + size; i++) {
            u8* byte = &slot->initialised[i >> 3];
            u8 bit = 1 << (i & 7);
            if (direction != WRITE) known &= (*byte & bit) != 0;
            if (direction != READ && !(*byte & bit)) __atomic_fetch_or(byte, bit, __ATOMIC_RELAXED);
        }
        if (UNLIKELY(!known)) uninitialised(slot->base + off, size, pc, region);
    }
    u64 first = off >> slot->granule_shift, last = (off + size - 1) >> slot->granule_shift;
    if (slot->flags & SLOT_HEAT && direction == READ)
        for (u64 i = first; i <= last; i++) __atomic_fetch_add(&slot->heat[i], 1, __ATOMIC_RELAXED);
    if (slot->flags & SLOT_RACE)
        for (u64 i = first; i <= last; i++) check_cell(&slot->cells[i], slot->base + off, size, direction, pc, region);
}
