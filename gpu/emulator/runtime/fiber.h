// Threads of a block are fibers: a stack each and a switch of a few instructions.
#pragma once
#include "abi.h"

#if defined(__x86_64__)
extern "C" void refsim_switch(void** save, void* load);
__asm__(
    ".text\n.globl refsim_switch\n.hidden refsim_switch\n.type refsim_switch,@function\n"
    "refsim_switch:\n"
    "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
    "  movq %rsp, (%rdi)\n  movq %rsi, %rsp\n"
    "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n"
    "  popq %rdx\n  jmp *%rdx\n");

// The stack a new fiber starts on: six saved registers, where to go, and a zero where a return address would be.
inline void* fresh_stack(u8* top, void (*start)()) {
    u64* sp = (u64*)((u64)top & ~15ull);
    *--sp = 0;
    *--sp = (u64)start;
    for (int i = 0; i < 6; i++) *--sp = 0;
    return sp;
}
#elif defined(__aarch64__)
extern "C" void refsim_switch(void** save, void* load);
__asm__(
    ".text\n.globl refsim_switch\n"
    "refsim_switch:\n"
    "  stp x19, x20, [sp, #-160]!\n  stp x21, x22, [sp, #16]\n  stp x23, x24, [sp, #32]\n"
    "  stp x25, x26, [sp, #48]\n  stp x27, x28, [sp, #64]\n  stp x29, x30, [sp, #80]\n"
    "  stp d8, d9, [sp, #96]\n  stp d10, d11, [sp, #112]\n  stp d12, d13, [sp, #128]\n  stp d14, d15, [sp, #144]\n"
    "  mov x9, sp\n  str x9, [x0]\n  mov sp, x1\n"
    "  ldp x21, x22, [sp, #16]\n  ldp x23, x24, [sp, #32]\n  ldp x25, x26, [sp, #48]\n  ldp x27, x28, [sp, #64]\n"
    "  ldp x29, x30, [sp, #80]\n  ldp d8, d9, [sp, #96]\n  ldp d10, d11, [sp, #112]\n  ldp d12, d13, [sp, #128]\n"
    "  ldp d14, d15, [sp, #144]\n  ldp x19, x20, [sp], #160\n  ret\n");

inline void* fresh_stack(u8* top, void (*start)()) {
    u64* sp = (u64*)((u64)top & ~15ull) - 20;
    for (int i = 0; i < 20; i++) sp[i] = 0;
    sp[11] = (u64)start;  // x30, the link register
    return sp;
}
#else
#include <ucontext.h>
#include <stdlib.h>
// Any other machine: slower, but the standard library's own.
inline void* fresh_stack(u8* top, void (*start)()) {
    constexpr size_t room = 64 * 1024;
    ucontext_t* c = (ucontext_t*)calloc(1, sizeof(ucontext_t));
    getcontext(c);
    c->uc_stack.ss_sp = top - room;
    c->uc_stack.ss_size = room;
    makecontext(c, start, 0);
    return c;
}
inline void refsim_switch(void** save, void* load) {
    ucontext_t here;
    *save = &here;
    swapcontext(&here, (ucontext_t*)load);
}
#endif
