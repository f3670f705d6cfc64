#include <string.h>

#include "kernels/cpu/kernels.h"

const struct cpu_kernels *cpu_kernels_choose(const char *wanted)
{
#if defined(PHASOR_X86_KERNELS)
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    bool vnni = avx512 && __builtin_cpu_supports("avx512vnni");
#if defined(PHASOR_BF16_KERNELS)
    if (vnni && __builtin_cpu_supports("avx512bf16") &&
        (wanted == NULL || strcmp(wanted, "avx512bf16") == 0))
        return &cpu_kernels_avx512bf16;
#endif
    if (vnni && (wanted == NULL || strcmp(wanted, "avx512vnni") == 0))
        return &cpu_kernels_avx512vnni;
    if (avx512 && (wanted == NULL || strcmp(wanted, "avx512") == 0))
        return &cpu_kernels_avx512;
    if (avx2 && (wanted == NULL || strcmp(wanted, "avx2") == 0))
        return &cpu_kernels_avx2;
#endif
    if (wanted == NULL || strcmp(wanted, "plain") == 0)
        return &cpu_kernels_plain;
    return NULL;
}
