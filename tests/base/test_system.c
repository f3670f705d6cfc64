#include <criterion/criterion.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>

#include "base/system.h"

Test(system, memory_is_less_than_the_machine_has)
{
    uint64_t machine = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t available = system_memory_available();
    if (available == UINT64_MAX)
        cr_skip_test("this system does not tell its memory");
    cr_assert(available <= machine);
    cr_assert_gt(available, 1 << 20, "in bytes, not in kB: %llu", (unsigned long long)available);
}

Test(system, seconds_pass)
{
    double before = system_seconds();
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    double passed = system_seconds() - before;
    cr_assert(passed >= 0.02 && passed < 10, "%g", passed);
}
