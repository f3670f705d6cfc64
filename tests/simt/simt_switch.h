/* Fibers: stacks that one thread changes between. */
#ifndef PHASOR_TESTS_SIMT_SIMT_SWITCH_H
#define PHASOR_TESTS_SIMT_SIMT_SWITCH_H

#include <cstddef>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace simt {

/* A stack that stands still: the engine's own, or a fiber's. */
struct stack {
#if defined(__x86_64__)
    void *pointer;
#else
    ucontext_t context;
#endif
    /* Where it lies, for the address sanitizer. */
    const void *bottom;
    size_t bytes;
    void *fake;
};

/* A fiber that will run `entry`, which never returns. It has a guard below it and is never freed.
 */
void stack_create(stack &out, void (*entry)());

/* Goes on on `to`; returns when that one comes back to `from`. The engine's own stack may be another
 * thread's then. */
void stack_switch(stack &from, stack &to);

/* The first thing of a fiber, which then knows where `from`, who called it, has its stack. */
void stack_entered(stack &from);

} // namespace simt

#endif
