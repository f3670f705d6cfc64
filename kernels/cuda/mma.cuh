/* The matrix instructions that the fast paths stand on; for the host their meaning, so that
 * everything around them is tested there. GPUs from sm_80 on multiply bf16, those before fp16
 * alone, Volta's with operands in other lanes than all later ones. All lanes call them. */
#ifndef PHASOR_KERNELS_CUDA_MMA_CUH
#define PHASOR_KERNELS_CUDA_MMA_CUH

#include "kernels/cuda/parts.cuh"

/* The group of four lanes, and the lane in it, by which instructions name their operands' places.
 */
__device__ inline int lane_group()
{
    return lane_id() / 4;
}

__device__ inline int lane_in_group()
{
    return lane_id() % 4;
}

#if defined(SIMT_HOST)
template <bool BF16> static inline float2 mma_widen(uint32_t pair)
{
    if (BF16)
        return make_float2(pair_low(pair), pair_high(pair));
    return make_float2(__half2float(__ushort_as_half((uint16_t)pair)),
                       __half2float(__ushort_as_half((uint16_t)(pair >> 16))));
}

static inline float mma_pair(float sum, float2 a, float2 b)
{
    return fmaf(a.y, b.y, fmaf(a.x, b.x, sum));
}

/* What each lane of the block's warps brings: a lane sees that of its warp between the two calls.
 */
typedef float2 mma_pairs[WARP][6];

template <bool BF16>
static inline const mma_pairs &mma_bring(const uint32_t *a, int a_count, const uint32_t *b)
{
    static mma_pairs brought[1024 / WARP];
    float2 *own = brought[warp_id()][lane_id()];
    for (int i = 0; i < a_count; i++)
        own[i] = mma_widen<BF16>(a[i]);
    own[a_count] = mma_widen<BF16>(b[0]);
    own[a_count + 1] = mma_widen<BF16>(b[1]);
    __syncwarp();
    return brought[warp_id()];
}

static inline void mma_leave()
{
    __syncwarp();
}

template <bool BF16>
static inline void mma_16_8_16(float sum[4], const uint32_t a[4], const uint32_t b[2])
{
    int g = lane_id() / 4, t = lane_id() % 4;
    const mma_pairs &of = mma_bring<BF16>(a, 4, b);
    for (int pair = 0; pair < 8; pair++) {
        int high = pair / 4, from = pair % 4;
        for (int i = 0; i < 4; i++)
            sum[i] = mma_pair(sum[i], of[g * 4 + from][i / 2 + 2 * high],
                              of[(2 * t + i % 2) * 4 + from][4 + high]);
    }
    mma_leave();
}
#endif

/* sum [16][8] += a [16][16] x b [16][8], a and b of bf16; from sm_80 on. With g = lane / 4 and
 * t = lane % 4 a lane has, as pairs of neighbouring k,
 *   a[0], a[1]: rows g and g + 8, k = 2t;  a[2], a[3]: the same rows, k = 2t + 8
 *   b[0], b[1]: column g, k = 2t and 2t + 8
 *   sum[0], sum[1]: row g, columns 2t and 2t + 1;  sum[2], sum[3]: row g + 8
 * A value of `sum` depends on its row of a and its column of b alone. */
__device__ inline void mma_bf16(float sum[4], const uint32_t a[4], const uint32_t b[2])
{
#if defined(SIMT_HOST)
    mma_16_8_16<true>(sum, a, b);
#elif __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    __trap(); /* launchers never choose it */
#endif
}

/* a x b + c of pairs of bf16, rounded once; from sm_80 on. On the host rounded to f32 before: the
 * same unless c is not 0 and below 2^-24 of the product. */
__device__ inline uint32_t bf16_pair_fma(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t result = 0;
#if defined(SIMT_HOST)
    result = bf16_pair(fmaf(pair_low(a), pair_low(b), pair_low(c)),
                       fmaf(pair_high(a), pair_high(b), pair_high(c)));
#elif __CUDA_ARCH__ >= 800
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
#else
    __trap();
#endif
    return result;
}

/* The same of fp16, on Turing: its instruction has half as many k, in the same lanes. */
__device__ inline void mma_turing(float sum[4], const uint32_t a[4], const uint32_t b[2])
{
#if defined(SIMT_HOST)
    mma_16_8_16<false>(sum, a, b);
#elif __CUDA_ARCH__ >= 750 && __CUDA_ARCH__ < 800
#pragma unroll
    for (int i = 0; i < 2; i++)
        asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
            "{%0, %1, %2, %3};"
            : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
            : "r"(a[2 * i]), "r"(a[2 * i + 1]), "r"(b[i]));
#else
    __trap();
#endif
}

/* On Volta lanes 4q .. 4q + 3 and 16 + 4q .. 16 + 4q + 3 are quad-pair q of four, each with a
 * product of its own: sum [8][8] += a [8][4] x b [4][8], of fp16. With h = lane / 16 and
 * r = lane % 4 + 4h a lane has
 *   a[0], a[1]: row r, k = 0 and 2;  b[0], b[1]: column r, k = 0 and 2
 *   left[i]: row lane % 2 + i / 2 x 2 + 4h, column lane / 2 % 2 x 2 + i % 2;  right[i]: column + 4
 * Later GPUs have the instruction, but not the circuits. */
__device__ inline void mma_volta(float left[4], float right[4], const uint32_t a[2],
                                 const uint32_t b[2])
{
#if defined(SIMT_HOST)
    int first = lane_id() / 4 % 4 * 4; /* lane of the quad-pair */
    const mma_pairs &of = mma_bring<false>(a, 2, b);
    for (int pair = 0; pair < 2; pair++) {
        for (int i = 0; i < 8; i++) {
            int row = lane_id() % 2 + i % 4 / 2 * 2 + lane_id() / 16 * 4;
            int column = lane_id() / 2 % 2 * 2 + i % 2 + i / 4 * 4;
            float *sum = i < 4 ? &left[i] : &right[i - 4];
            *sum = mma_pair(*sum, of[first + row % 4 + row / 4 * 16][pair],
                            of[first + column % 4 + column / 4 * 16][2 + pair]);
        }
    }
    mma_leave();
#elif __CUDA_ARCH__ >= 700 && __CUDA_ARCH__ < 750
    asm("mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%0, %1, %2, %3, %4, %5, %6, %7}, "
        "{%8, %9}, {%10, %11}, {%0, %1, %2, %3, %4, %5, %6, %7};"
        : "+f"(left[0]), "+f"(left[1]), "+f"(left[2]), "+f"(left[3]), "+f"(right[0]),
          "+f"(right[1]), "+f"(right[2]), "+f"(right[3])
        : "r"(a[0]), "r"(a[1]), "r"(b[0]), "r"(b[1]));
#else
    __trap();
#endif
}

#endif
