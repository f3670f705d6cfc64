/* The order of CPUs on machines that this one is not: hwloc makes them up from a description. */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdbool.h>
#include <stdlib.h>

#include "device/cpu_places.h"

#define CPUS_MAX 8

#if defined(PHASOR_HWLOC)
static const bool has_hwloc = true;
#else
static const bool has_hwloc = false;
#endif

struct machine {
    char text[64];
    int allowed[CPUS_MAX + 1]; /* -1 behind the last */
    int expected[CPUS_MAX + 1];
};

ParameterizedTestParameters(cpu_places, neighbours_stand_together)
{
    static struct machine machines[] = {
        {"node:1 core:4 pu:1", {0, 1, 2, 3, -1}, {0, 1, 2, 3, -1}},
        /* two threads in a core, numbered as Linux does: first one of each core */
        {"node:1 core:2 pu:2(indexes=0,2,1,3)", {0, 1, 2, 3, -1}, {0, 2, 1, 3, -1}},
        /* two nodes whose cores are numbered in turn */
        {"node:2 core:3 pu:1(indexes=0,2,4,1,3,5)", {0, 1, 2, 3, 4, 5, -1}, {0, 2, 4, 1, 3, 5, -1}},
        {"node:2 core:2 pu:2(indexes=0,4,1,5,2,6,3,7)",
         {0, 1, 2, 3, 4, 5, 6, 7, -1},
         {0, 4, 1, 5, 2, 6, 3, 7, -1}},
        /* the process may use some */
        {"node:2 core:3 pu:1(indexes=0,2,4,1,3,5)", {1, 2, 3, 4, -1}, {2, 4, 1, 3, -1}},
        /* CPUs that hwloc does not know: behind the others */
        {"node:2 core:2 pu:1(indexes=0,2,1,3)", {1, 2, 7, 9, -1}, {2, 1, 7, 9, -1}},
        {"node:1 core:1 pu:1", {-1}, {-1}},
    };
    return cr_make_param_array(struct machine, machines, sizeof machines / sizeof *machines);
}

ParameterizedTest(struct machine *machine, cpu_places, neighbours_stand_together)
{
    const int *expected = has_hwloc ? machine->expected : machine->allowed;
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int i = 0; machine->allowed[i] >= 0; i++)
        CPU_SET(machine->allowed[i], &set);
    setenv("HWLOC_SYNTHETIC", machine->text, 1);
    for (int i = 0; i == 0 || expected[i - 1] >= 0; i++)
        cr_assert_eq(cpu_of_set(&set, i), expected[i], "%s: CPU %d at %d", machine->text,
                     cpu_of_set(&set, i), i);
    cr_assert_eq(cpu_of_set(&set, CPU_SETSIZE), -1);
}
