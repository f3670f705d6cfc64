/* Every set of kernels: those that a device may choose, and three of x86 that only the tests have,
 * in which the pairs of bf16 are taken without the instruction. So all of such a set but one
 * instruction is tested on machines that lack it. */
#ifndef PHASOR_TESTS_KERNELS_KERNEL_SETS_H
#define PHASOR_TESTS_KERNELS_KERNEL_SETS_H

#include "kernels/cpu/kernels.h"

#define SET_COUNT 9

extern const char *const set_names[SET_COUNT];

/* NULL: the machine or the build has it not. */
const struct cpu_kernels *set_find(const char *name);

#endif
