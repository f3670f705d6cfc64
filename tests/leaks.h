/* What GPUs that hang have is left to them: it is no leak of ours. */
#ifndef PHASOR_TESTS_LEAKS_H
#define PHASOR_TESTS_LEAKS_H

#include <stdbool.h>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
#endif

/* Of what the calling thread gets from here on the address sanitizer says nothing. */
static inline void leaks_expected(bool are)
{
#if defined(__SANITIZE_ADDRESS__)
    if (are)
        __lsan_disable();
    else
        __lsan_enable();
#endif
    (void)are;
}

#endif
