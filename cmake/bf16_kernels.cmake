# Whether compiler and assembler have AVX512-BF16, and the compiler the question whether a processor
# has it: gcc 10 and clang 9, or later.
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
unset(CMAKE_REQUIRED_FLAGS)
