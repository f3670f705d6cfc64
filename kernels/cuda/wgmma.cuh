/* The matrix instruction of four warps together, on sm_90 alone (compiled for sm_90a); for the host
 * its meaning, so that everything around it is tested there. All lanes of the four warps call it.
 */
#ifndef PHASOR_KERNELS_CUDA_WGMMA_CUH
#define PHASOR_KERNELS_CUDA_WGMMA_CUH

#include "kernels/cuda/async.cuh"
#include "kernels/cuda/mma.cuh"

#define WGMMA_ROW_BYTES 128

/* Rows of bf16 in shared memory as the right operand: 64 columns of each, 128 bytes, row after row,
 * aligned to 1024; piece i of 16 bytes of row r stands at place i ^ r % 8, so that eight rows' same
 * pieces lie in different banks. */
typedef uint64_t wgmma_rows;

/* Where in them piece `piece` of row `row` stands, in bytes. */
__device__ inline int wgmma_place(int row, int piece)
{
    return row * WGMMA_ROW_BYTES + (piece ^ row % 8) * 16;
}

__device__ inline wgmma_rows wgmma_rows_at(const void *at)
{
#if defined(SIMT_HOST)
    return (uint64_t)(uintptr_t)at;
#else
    const uint64_t swizzle_128 = 1, stride = 8 * WGMMA_ROW_BYTES;
    return swizzle_128 << 62 | stride >> 4 << 32 | 1 << 16 | (shared_address(at) & 0x3FFFF) >> 4;
#endif
}

/* The same rows from column `column` on, a multiple of 16. */
__device__ inline wgmma_rows wgmma_columns(wgmma_rows rows, int column)
{
#if defined(SIMT_HOST)
    return rows + (uint64_t)column * 2;
#else
    return rows + (uint64_t)(column * 2 >> 4);
#endif
}

/* Before the first instruction, and wherever registers that one takes were written by others. */
__device__ inline void wgmma_fence()
{
#if ASYNC_PTX
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

/* What was given since the last one is a group. */
__device__ inline void wgmma_commit()
{
#if ASYNC_PTX
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

/* Until all groups but the last GROUPS are done: until then nobody touches their registers, but as
 * sums of the next ones. */
template <int GROUPS> __device__ inline void wgmma_wait()
{
#if ASYNC_PTX
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(GROUPS) : "memory");
#endif
}

/* wgmma_wait, behind which the caller reads `sum`. */
template <int LEFT, int COUNT> __device__ inline void wgmma_wait_for(float (&sum)[COUNT])
{
    wgmma_wait<LEFT>();
#if ASYNC_PTX
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        asm volatile("" : "+f"(sum[i])::"memory"); /* no use of it comes before */
#else
    (void)sum;
#endif
}

#if defined(SIMT_HOST)
template <int N>
static inline void wgmma_host(float *sum, const uint32_t a[4], wgmma_rows rows, bool adds)
{
    int g = lane_id() / 4, t = lane_id() % 4;
    const uint32_t none[2] = {0, 0};
    const mma_pairs &of = mma_bring<true>(a, 4, none);
    for (int i = 0; i < N / 2; i++) {
        int row = i / 4 * 8 + 2 * t + i % 2, output = i % 4 / 2;
        float value = adds ? sum[i] : 0;
        for (int pair = 0; pair < 8; pair++) {
            uint64_t at = rows + (uint64_t)(row * WGMMA_ROW_BYTES + pair * 4);
            uint32_t b;
            at ^= at >> 3 & 7 << 4;
            memcpy(&b, (const void *)(uintptr_t)at, sizeof b);
            value =
                mma_pair(value, of[g * 4 + pair % 4][output + 2 * (pair / 4)], mma_widen<true>(b));
        }
        sum[i] = value;
    }
    mma_leave();
}
#endif

/* Sums of an instruction, as operands. */
#define WGMMA_FOUR(sum, i)                                                                         \
    "+f"((sum)[i]), "+f"((sum)[i + 1]), "+f"((sum)[i + 2]), "+f"((sum)[i + 3])
#define WGMMA_TWELVE(sum, i) WGMMA_FOUR(sum, i), WGMMA_FOUR(sum, i + 4), WGMMA_FOUR(sum, i + 8)
#define WGMMA_16(sum, i)     WGMMA_TWELVE(sum, i), WGMMA_FOUR(sum, i + 12)
#define WGMMA_SUMS_32(sum)   WGMMA_16(sum, 0), WGMMA_16(sum, 16)
#define WGMMA_SUMS_64(sum)   WGMMA_SUMS_32(sum), WGMMA_16(sum, 32), WGMMA_16(sum, 48)
#define WGMMA_SUMS_80(sum)   WGMMA_SUMS_64(sum), WGMMA_16(sum, 64)
#define WGMMA_SUMS_92(sum)   WGMMA_SUMS_80(sum), WGMMA_TWELVE(sum, 80)

/* sum [64][N] (+)= a [64][16] x the rows' first 16 columns, of N rows; without `adds` what was in
 * sum does not count. Of a and sum warp w of the four has rows 16w .. 16w + 15, each in the lanes
 * of mma_bf16 (mma.cuh): sum[4n .. 4n + 3] is that of rows 8n .. 8n + 7. It runs on until
 * wgmma_wait. */
template <int N>
__device__ inline void wgmma(float sum[N / 2], const uint32_t a[4], wgmma_rows rows, bool adds);

template <>
__device__ inline void wgmma<64>(float sum[32], const uint32_t a[4], wgmma_rows rows, bool adds)
{
#if defined(SIMT_HOST)
    wgmma_host<64>(sum, a, rows, adds);
#elif ASYNC_PTX
    asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, "
                 "%30, %31 "
                 "}, {%32, %33, %34, %35}, %36, adds, 1, 1, 0;\n}"
                 : WGMMA_SUMS_32(sum)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(rows), "r"((int)adds));
#else
    __trap(); /* launchers never choose it */
#endif
}

template <>
__device__ inline void wgmma<128>(float sum[64], const uint32_t a[4], wgmma_rows rows, bool adds)
{
#if defined(SIMT_HOST)
    wgmma_host<128>(sum, a, rows, adds);
#elif ASYNC_PTX
    asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, %69, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, "
                 "%30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "
                 "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, "
                 "%58, %59, %60, %61, %62, %63 "
                 "}, {%64, %65, %66, %67}, %68, adds, 1, 1, 0;\n}"
                 : WGMMA_SUMS_64(sum)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(rows), "r"((int)adds));
#else
    __trap(); /* launchers never choose it */
#endif
}

template <>
__device__ inline void wgmma<160>(float sum[80], const uint32_t a[4], wgmma_rows rows, bool adds)
{
#if defined(SIMT_HOST)
    wgmma_host<160>(sum, a, rows, adds);
#elif ASYNC_PTX
    asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, %85, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n160k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, "
                 "%30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "
                 "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, "
                 "%58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, "
                 "%72, %73, %74, %75, %76, %77, %78, %79 "
                 "}, {%80, %81, %82, %83}, %84, adds, 1, 1, 0;\n}"
                 : WGMMA_SUMS_80(sum)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(rows), "r"((int)adds));
#else
    __trap(); /* launchers never choose it */
#endif
}

template <>
__device__ inline void wgmma<184>(float sum[92], const uint32_t a[4], wgmma_rows rows, bool adds)
{
#if defined(SIMT_HOST)
    wgmma_host<184>(sum, a, rows, adds);
#elif ASYNC_PTX
    asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, %97, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n184k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, "
                 "%30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "
                 "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, "
                 "%58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, "
                 "%72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, "
                 "%86, %87, %88, %89, %90, %91 "
                 "}, {%92, %93, %94, %95}, %96, adds, 1, 1, 0;\n}"
                 : WGMMA_SUMS_92(sum)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(rows), "r"((int)adds));
#else
    __trap(); /* launchers never choose it */
#endif
}

#endif
