/* The matrix instruction of wgmma.cuh as attention uses it, with pages of the cache as they lie for
 * right operands; for the host its meaning, as in mma.cuh.
 *
 * A warpgroup (four warps, WARPGROUP threads that call these together) multiplies 64 rows, the left
 * operand, from registers, with a right operand in shared memory: warp w has rows 16w .. 16w + 15,
 * in the lanes of mma_bf16, and its sums in those of mma_bf16, eight columns after eight. A value
 * has the bits of mma_bf16. The instruction runs beside what follows: what it reads and writes is
 * left alone until wgmma_wait. */
#ifndef PHASOR_KERNELS_CUDA_ATTENTION_WGMMA_CUH
#define PHASOR_KERNELS_CUDA_ATTENTION_WGMMA_CUH

#include "kernels/cuda/wgmma.cuh"

#define WARPGROUP 128

/* What this thread's copies brought can be read by the instruction of those that it tells. */
__device__ inline void wgmma_show()
{
#if ASYNC_PTX
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/* ---- The instruction --------------------------------------------------------------------------
 */

/* A right operand in shared memory: lines of one k each, of 64 columns (128 bytes), in which unit
 * u of 16 bytes stands at u ^ (line % 8); the first line is aligned to 1024. Further columns, 64 at
 * a time, stand `block_bytes` on. */
struct wgmma_right {
#if defined(SIMT_HOST)
    const unsigned char *lines;
    int block_bytes;
#else
    uint32_t low, high; /* of the instruction's descriptor */
#endif
};

__device__ inline struct wgmma_right wgmma_right_at(const void *lines, int block_bytes)
{
    struct wgmma_right right;
#if defined(SIMT_HOST)
    right.lines = (const unsigned char *)lines;
    right.block_bytes = block_bytes;
#else
    const uint32_t swizzle_128 = 1u << 30, eight_lines = 8 * 128 / 16;
    right.low = (uint32_t)block_bytes / 16 << 16 | (shared_address(lines) & 0x3FFFFu) / 16;
    right.high = swizzle_128 | eight_lines;
#endif
    return right;
}

/* The same from line 16 x `step` on. */
__device__ inline struct wgmma_right wgmma_right_step(struct wgmma_right right, int step)
{
    const int step_bytes = 16 * 128;
#if defined(SIMT_HOST)
    right.lines += step * step_bytes;
#else
    right.low += (uint32_t)(step * (step_bytes / 16));
#endif
    return right;
}

#if defined(SIMT_HOST)
/* Lines 2 x pair and 2 x pair + 1 of one column. */
static inline uint32_t wgmma_right_pair(struct wgmma_right right, int column, int pair)
{
    uint32_t both = 0;
    for (int i = 0; i < 2; i++) {
        int line = 2 * pair + i, unit = column % 64 / 8 ^ line % 8;
        const unsigned char *at = right.lines + column / 64 * right.block_bytes + line * 128;
        both |= (uint32_t)((const uint16_t *)(at + unit * 16))[column % 8] << 16 * i;
    }
    return both;
}

template <int N>
static inline void wgmma_twin(float (&sum)[N / 2], const uint32_t (&a)[4], struct wgmma_right right,
                              bool keeps)
{
    for (int n = 0; n < N / 8; n++) {
        uint32_t b[2] = {wgmma_right_pair(right, 8 * n + lane_id() / 4, lane_id() % 4),
                         wgmma_right_pair(right, 8 * n + lane_id() / 4, lane_id() % 4 + 4)};
        for (int i = 0; i < 4 && !keeps; i++)
            sum[4 * n + i] = 0;
        mma_bf16(sum + 4 * n, a, b);
    }
}
#else
__device__ inline uint64_t wgmma_descriptor(struct wgmma_right right)
{
    return (uint64_t)right.high << 32 | right.low;
}
#endif

/* sum [64][64] = a [64][16] x b [16][64], added to what it was if `keeps`. */
__device__ inline void wgmma_bf16(float (&sum)[32], const uint32_t (&a)[4], struct wgmma_right b,
                                  bool keeps)
{
#if defined(SIMT_HOST)
    wgmma_twin<64>(sum, a, b, keeps);
#elif ASYNC_PTX
    asm volatile("{\n.reg .pred keep;\nsetp.ne.b32 keep, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
                 "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
                 "}, {%32, %33, %34, %35}, %36, keep, 1, 1, 1;\n}"
                 : WGMMA_SUMS_32(sum)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(wgmma_descriptor(b)),
                   "r"((int)keeps));
#else
    __trap(); /* launchers never choose it */
#endif
}

/* The same of 128 columns. */
__device__ inline void wgmma_bf16(float (&sum)[64], const uint32_t (&a)[4], struct wgmma_right b,
                                  bool keeps)
{
#if defined(SIMT_HOST)
    wgmma_twin<128>(sum, a, b, keeps);
#elif ASYNC_PTX
    asm volatile("{\n.reg .pred keep;\nsetp.ne.b32 keep, %69, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
                 "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, "
                 "%34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, "
                 "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
                 "}, {%64, %65, %66, %67}, %68, keep, 1, 1, 1;\n}"
                 : WGMMA_SUMS_64(sum)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(wgmma_descriptor(b)),
                   "r"((int)keeps));
#else
    __trap(); /* launchers never choose it */
#endif
}

#endif
