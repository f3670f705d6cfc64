/* The matrix instruction that the fast paths stand on, from sm_80 on; for the host its meaning, by
 * shuffles, so that everything around it is tested there. */
#ifndef PHASOR_KERNELS_CUDA_MMA_CUH
#define PHASOR_KERNELS_CUDA_MMA_CUH

#include "kernels/cuda/parts.cuh"

/* sum [16][8] += a [16][16] x b [16][8], a and b of bf16. With g = lane / 4 and t = lane % 4 a lane
 * has, as pairs of neighbouring k,
 *   a[0], a[1]: rows g and g + 8, k = 2t;  a[2], a[3]: the same rows, k = 2t + 8
 *   b[0], b[1]: column g, k = 2t and 2t + 8
 *   sum[0], sum[1]: row g, columns 2t and 2t + 1;  sum[2], sum[3]: row g + 8
 * A value of `sum` depends on its row of a and its column of b alone. All lanes call it. */
__device__ inline void mma_bf16(float sum[4], const uint32_t a[4], const uint32_t b[2])
{
#if defined(SIMT_HOST)
    int g = lane_id() / 4, t = lane_id() % 4;
    for (int pair = 0; pair < 8; pair++) {
        int high = pair / 4, from = pair % 4;
        for (int i = 0; i < 4; i++) {
            uint32_t left = __shfl_sync(ALL_LANES, a[i / 2 + 2 * high], g * 4 + from);
            uint32_t right = __shfl_sync(ALL_LANES, b[high], (2 * t + i % 2) * 4 + from);
            sum[i] = fmaf(pair_low(left), pair_low(right), sum[i]);
            sum[i] = fmaf(pair_high(left), pair_high(right), sum[i]);
        }
    }
#elif __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    __trap(); /* launchers never choose it */
#endif
}

#endif
