#define _GNU_SOURCE
#include <string.h>

#include "kernels/cpu/kernels.h"

#if defined(PHASOR_AMX_KERNELS)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ARCH_REQ_XCOMP_PERM 0x1023 /* of asm/prctl.h, Linux 5.16 */
#define XFEATURE_XTILEDATA  18

/* Whether processor and kernel let this process use AMX for bf16 and for bytes. */
static bool amx_is_there(void)
{
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & bit_AMX_TILE) == 0 ||
        (d & bit_AMX_BF16) == 0 || (d & bit_AMX_INT8) == 0)
        return false;
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}
#endif

#if defined(PHASOR_BF16_KERNELS)
/* Whether bf16 pairs are worth their rounding. The instruction for them (vdpbf16ps) does two
 * products where one of f32 does one. AMD's processors start as many as products of f32 (Zen 4 one
 * each cycle, Zen 5 two); Intel's one each second cycle, and of f32 two each cycle, so that f32 has
 * twice its rate (and so products of 256 rows: bench/results/kernels-emerald-rapids-2-cores.txt);
 * what is fast there is AMX.
 */
static bool pairs_are_fast(void)
{
    return !__builtin_cpu_is("intel");
}
#endif

const struct cpu_kernels *cpu_kernels_choose(const char *wanted)
{
#if defined(PHASOR_X86_KERNELS)
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    bool vnni = avx512 && __builtin_cpu_supports("avx512vnni");
#if defined(PHASOR_AMX_KERNELS)
    if (vnni && __builtin_cpu_supports("avx512bf16") &&
        (wanted == NULL || strcmp(wanted, "amx") == 0) && amx_is_there())
        return &cpu_kernels_amx;
#endif
#if defined(PHASOR_BF16_KERNELS)
    if (vnni && __builtin_cpu_supports("avx512bf16") &&
        (wanted == NULL ? pairs_are_fast() : strcmp(wanted, "avx512bf16") == 0))
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
