#include "simt_switch.h"

#include <cstdio>
#include <cstdlib>

#include <sys/mman.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#define STACK_BYTES ((size_t)256 << 10)
#else
#define STACK_BYTES ((size_t)64 << 10)
#endif

#if defined(__x86_64__)
/* Saves what a call must keep on the stack that is left, and takes it from the other. */
extern "C" void simt_stack_switch(void **from, void *to);
asm(".text\n"
    ".globl simt_stack_switch\n"
    ".type simt_stack_switch, @function\n"
    "simt_stack_switch:\n"
    "    pushq %rbp\n"
    "    pushq %rbx\n"
    "    pushq %r12\n"
    "    pushq %r13\n"
    "    pushq %r14\n"
    "    pushq %r15\n"
    "    movq %rsp, (%rdi)\n"
    "    movq %rsi, %rsp\n"
    "    popq %r15\n"
    "    popq %r14\n"
    "    popq %r13\n"
    "    popq %r12\n"
    "    popq %rbx\n"
    "    popq %rbp\n"
    "    ret\n"
    ".size simt_stack_switch, . - simt_stack_switch\n");
#endif

namespace simt {

void stack_create(stack &out, void (*entry)())
{
    size_t guard = (size_t)sysconf(_SC_PAGESIZE);
    void *memory = mmap(nullptr, guard + STACK_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory, guard, PROT_NONE) != 0) {
        std::perror("simt: the stack of a fiber");
        std::abort();
    }
    out = {};
    out.bottom = static_cast<char *>(memory) + guard;
    out.bytes = STACK_BYTES;
#if defined(__x86_64__)
    /* Six registers, the place to return to, and a word for the alignment that an entry has. */
    void **top = reinterpret_cast<void **>(static_cast<char *>(memory) + guard + STACK_BYTES);
    top[-2] = reinterpret_cast<void *>(entry);
    out.pointer = top - 8;
#else
    getcontext(&out.context);
    out.context.uc_stack.ss_sp = const_cast<void *>(out.bottom);
    out.context.uc_stack.ss_size = out.bytes;
    makecontext(&out.context, entry, 0);
#endif
}

void stack_switch(stack &from, stack &to)
{
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&from.fake, to.bottom, to.bytes);
#endif
#if defined(__x86_64__)
    simt_stack_switch(&from.pointer, to.pointer);
#else
    swapcontext(&from.context, &to.context);
#endif
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(from.fake, &to.bottom, &to.bytes);
#endif
}

void stack_entered(stack &from)
{
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &from.bottom, &from.bytes);
#else
    (void)from;
#endif
}

} // namespace simt
