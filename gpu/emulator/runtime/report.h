// What went wrong, where, and what then: stop (raise), note and go on (report), or neither (ignore).
#pragma once
#include <unistd.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "state.h"

[[noreturn]] static void leave() {
    __atomic_store_n(&launch->stop, 1, __ATOMIC_SEQ_CST);
    worker->ended = 1;
    _exit(0);
}

// Fills a report, or counts it with an earlier one of the same check and place. Null: nobody wants to know.
static Report* new_report(Check check, u64 pc) {
    if (launch->modes[check] == IGNORE) return nullptr;
    u32 n = __atomic_load_n(&launch->nreports, __ATOMIC_ACQUIRE);
    if (launch->modes[check] == REPORT)
        for (u32 i = 0; i < n && i < MAX_REPORTS; i++)
            if (launch->reports[i].check == check && launch->reports[i].pc == pc) {
                __atomic_fetch_add(&launch->reports[i].count, 1, __ATOMIC_RELAXED);
                return nullptr;
            }
    u32 i = __atomic_fetch_add(&launch->nreports, 1, __ATOMIC_ACQ_REL);
    if (i >= MAX_REPORTS) return nullptr;
    Report* r = &launch->reports[i];
    r->check = check;
    r->count = 1;
    r->pc = pc;
    r->block = block.id;
    r->thread = current ? current->id : 0;
    r->other_block = r->other_thread = ~0u;
    r->region = REGION_NOWHERE;
    return r;
}

static void describe(Report* r, const char* format, ...) {
    va_list list;
    va_start(list, format);
    vsnprintf(r->detail, sizeof r->detail, format, list);
    va_end(list);
}

// After a report: the launch ends here where its check raises.
static void settle(Check check) {
    if (launch->modes[check] == RAISE) leave();
}
