#include "kernel_sets.h"

#include <string.h>

#if defined(EMULATED_plain_pairs)
extern const struct cpu_kernels cpu_kernels_plain_pairs, cpu_kernels_plain_amx;
#endif
#if defined(EMULATED_avx512_pairs)
extern const struct cpu_kernels cpu_kernels_avx512_pairs;
#endif

const char *const set_names[SET_COUNT] = {"plain",       "avx2",       "avx512",
                                          "avx512vnni",  "avx512bf16", "amx",
                                          "plain_pairs", "plain_amx",  "avx512_pairs"};

const struct cpu_kernels *set_find(const char *name)
{
#if defined(EMULATED_plain_pairs)
    if (strcmp(name, "plain_pairs") == 0)
        return &cpu_kernels_plain_pairs;
    if (strcmp(name, "plain_amx") == 0)
        return &cpu_kernels_plain_amx;
#endif
#if defined(EMULATED_avx512_pairs)
    if (strcmp(name, "avx512_pairs") == 0)
        return cpu_kernels_choose("avx512") != NULL ? &cpu_kernels_avx512_pairs : NULL;
#endif
    return cpu_kernels_choose(name);
}
