# Whether compiler and assembler have AVX512-BF16, and the compiler the question whether a processor
# has it: gcc 10 and clang 9, or later. And AMX: gcc 11 and clang 12, or later, on Linux, which is
# asked for its registers.
include(CheckCSourceCompiles)

set(CMAKE_REQUIRED_FLAGS "-mavx512f -mavx512bf16")
check_c_source_compiles("
    typedef float v16 __attribute__((vector_size(64)));
    v16 dot(v16 sum, v16 weights, const float *inputs)
    {
        __asm__(\"vdpbf16ps %2%{1to16%}, %1, %0\" : \"+v\"(sum) : \"v\"(weights), \"m\"(*inputs));
        return sum;
    }
    int main(void) { return __builtin_cpu_supports(\"avx512bf16\"); }
" PHASOR_BF16_KERNELS_WORK)

set(CMAKE_REQUIRED_FLAGS "-mavx512f -mamx-tile -mamx-bf16 -mamx-int8")
check_c_source_compiles("
    #include <immintrin.h>
    #include <sys/syscall.h>
    #ifndef __linux__
    #error
    #endif
    int main(void)
    {
        _tile_loadd(1, (void *)0, 64);
        _tile_dpbf16ps(0, 1, 2);
        _tile_dpbsud(0, 1, 2);
        return SYS_arch_prctl;
    }
" PHASOR_AMX_KERNELS_WORK)
unset(CMAKE_REQUIRED_FLAGS)
