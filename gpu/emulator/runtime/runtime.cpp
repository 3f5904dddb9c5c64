// The emulator's runtime, one translation unit: memory for the tensors, workers, and all of the parts.
#include <signal.h>
#ifdef __linux__
#include <sys/prctl.h>
#include <ucontext.h>
#endif
#include "access.h"
#include "atomics.h"
#include "barrier.h"
#include "checks.h"
#include "copies.h"
#include "tensor.h"
#include "warp.h"

// A tensor lies alone in a slot of address space far larger than any 32-bit index can leave, so that a wrong index
// lands between tensors and never in another one.
EXPORT u64 refsim_arena(u32 shift, u32 count) {
    u64 nbytes = (u64)count << shift;
    void* p = mmap(nullptr, nbytes + (1ull << shift), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return 0;
    arena = {((u64)p + (1ull << shift) - 1) >> shift << shift, nbytes, shift, count};
    return arena.base;
}

EXPORT Slot* refsim_slots() { return slots; }

EXPORT u64 refsim_tensor(u32 slot, u64 nbytes) {
    u64 at = arena.base + ((u64)slot << arena.shift) + (1ull << (arena.shift - 1));
    u64 size = (nbytes + 4095) & ~4095ull;
    void* p = mmap((void*)at, size ? size : 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    return p == MAP_FAILED ? 0 : at;
}

EXPORT void refsim_drop_tensor(u32 slot, u64 nbytes) {
    u64 at = slots[slot].base & ~4095ull, size = (slots[slot].base + nbytes + 4095 - at) & ~4095ull;
    if (!size) size = 4096;
    mmap((void*)at, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
}

EXPORT void* refsim_shared(u64 nbytes) {
    void* p = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? nullptr : p;
}

EXPORT void refsim_unshare(void* p, u64 nbytes) { munmap(p, nbytes); }

static u8* stacks;
static u64 stacks_made, stack_room;

// Stacks (whole pages each) are made once and inherited by every worker, as many as the largest block so far has threads (each costs every
// fork a little); a page below each turns an overflow into a fault.
EXPORT int refsim_stacks(u32 count, u64 nbytes) {
    const u64 guard = getpagesize();
    if (stacks && stack_room == nbytes && stacks_made >= count) return 1;
    if (stacks) munmap(stacks, stacks_made * (stack_room + guard));
    stacks = nullptr;
    void* p = mmap(nullptr, count * (nbytes + guard), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return 0;
    stacks = (u8*)p;
    stacks_made = count;
    stack_room = nbytes;
    for (u64 i = 0; i < count; i++) {
        mprotect(stacks + i * (nbytes + guard), guard, PROT_NONE);
        threads[i].stack_low = stacks + i * (nbytes + guard) + guard;
    }
    return 1;
}

// Where the kernel was: the place of the fault, or the call that led there from the kernel, which is the nearest of its
// addresses on the stack.
static u64 kernel_place(u64 pc, u64 sp) {
    u64 low = launch->module_low, nbytes = launch->module_high - low;
    if (pc - low < nbytes || !current) return pc;
    u64 bottom = (u64)current->stack_low, top = bottom + launch->stack_nbytes;
    for (u64 at = (sp > bottom ? sp : bottom) & ~7ull; at + 8 <= top; at += 8)
        if (*(u64*)at - low < nbytes) return *(u64*)at;
    return pc;
}

static void on_fault(int number, siginfo_t* info, void* context) {
    u64 pc = 0, sp = 0;
#if defined(__x86_64__) && defined(__linux__)
    auto& registers = ((ucontext_t*)context)->uc_mcontext.gregs;
    pc = registers[REG_RIP] + 1, sp = registers[REG_RSP];
#elif defined(__aarch64__) && defined(__linux__)
    auto& registers = ((ucontext_t*)context)->uc_mcontext;
    pc = registers.pc + 4, sp = registers.sp;
#endif
    (void)context;
    // Asked between two threads: the next is on its way, and its stack is as it left it.
    if (number == SIGUSR1 && current && sp - (u64)current->stack_low >= launch->stack_nbytes) sp = (u64)current->sp;
    pc = kernel_place(pc, sp);
    u64 a = (u64)info->si_addr;
    launch->modes[CRASH] = RAISE;
    if (Report* r = new_report(CRASH, pc)) {
        r->address = a;
        bool access = number == SIGSEGV || number == SIGBUS;
        bool stack = access && current && (u64)current->stack_low - a <= 4096;
        describe(r, stack ? "stack overflow: the thread's local variables need more than %llu bytes" :
                 number == SIGFPE ? "division by zero" : number == SIGILL ? "illegal instruction" :
                 number == SIGABRT ? "abort() was called" : number == SIGUSR1 ? "was still running" : "memory fault",
                 (unsigned long long)launch->stack_nbytes);
        if (access) {
            u64 d = a - arena.base;
            r->region = stack ? REGION_NOWHERE : d < arena.nbytes ? (i32)(d >> arena.shift) : REGION_NOWHERE;
            r->size = stack ? 0 : 1;
        }
    }
    leave();
}

extern "C" int __cxa_atexit(void (*)(void*), void*, void*);

// A device has no exit(): the host's would end the worker as if all of its blocks were done.
static void on_exit_of_kernel(void*) {
    launch->modes[CRASH] = RAISE;
    if (Report* r = new_report(CRASH, kernel_place(0, (u64)__builtin_frame_address(0))))
        describe(r, "exit() was called");
    leave();
}

static void catch_faults() {
    static u8 stack[1 << 16];
    stack_t alternate{};
    alternate.ss_sp = stack;
    alternate.ss_size = sizeof stack;
    sigaltstack(&alternate, nullptr);
    struct sigaction action{};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    const int numbers[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGUSR1};  // the last: where are you?
    for (int number : numbers) sigaction(number, &action, nullptr);
    signal(SIGINT, SIG_IGN);
    __cxa_atexit(on_exit_of_kernel, nullptr, nullptr);  // atexit itself is in no shared library
}

// The reader of a stepped launch is told of each barrier and says when to go on.
static void step_at_barrier() {
    u8* to = launch->step_shared;
    for (u32 i = 0; i < launch->nshared; i++) {
        memcpy(to, (void*)launch->shared[i].base, launch->shared[i].nbytes);
        to += launch->shared[i].nbytes;
    }
    launch->step_line = block.line_low;
    char byte = 'b';
    if (write(launch->step_write, &byte, 1) != 1 || read(launch->step_read, &byte, 1) != 1) leave();
}

static void work(Launch* l, u32 number) {
    launch = l;
    worker = l->worker[number];
    traced = l->traced;
    refsim_block_dim = {l->block[0], l->block[1], l->block[2]};
    refsim_grid_dim = {l->grid[0], l->grid[1], l->grid[2]};
    u64 end = 0;
    shared_low = ~0ull;
    for (u32 i = 0; i < l->nshared; i++) {
        const Range& r = l->shared[i];
        if (r.base < shared_low) shared_low = r.base;
        if (r.base + r.nbytes > end) end = r.base + r.nbytes;
    }
    shared_low &= ~127ull;
    shared_span = end > shared_low ? end - shared_low : 0;
    if (traced) shared_cells = (SharedCell*)calloc(shared_span / 4 + 8, sizeof(SharedCell));
    u64 blocks = (u64)l->grid[0] * l->grid[1] * l->grid[2];
    for (;;) {
        u64 id = __atomic_fetch_add(&l->next_block, 1, __ATOMIC_RELAXED);
        if (id >= blocks || __atomic_load_n(&l->stop, __ATOMIC_RELAXED)) break;
        run_block(id);
    }
    u8* to = l->left;
    for (u32 i = l->const_variables; to && i < l->visible_variables; i++) {
        memcpy(to, (void*)l->variables[i].base, l->variables[i].nbytes);
        to += l->variables[i].nbytes;
    }
    worker->ended = 1;
}

// Starts a worker: a fork, so that nothing a kernel does can harm the caller. Returns its process id.
EXPORT int refsim_spawn(Launch* l, u32 number) {
    int parent = getpid();
    int child = fork();
    if (child) return child;
#ifdef __linux__
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
#else
    (void)parent;
#endif
    catch_faults();
    work(l, number);
    _exit(0);
}
