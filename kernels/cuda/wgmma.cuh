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
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3]), "+f"(sum[4]),
                   "+f"(sum[5]), "+f"(sum[6]), "+f"(sum[7]), "+f"(sum[8]), "+f"(sum[9]),
                   "+f"(sum[10]), "+f"(sum[11]), "+f"(sum[12]), "+f"(sum[13]), "+f"(sum[14]),
                   "+f"(sum[15]), "+f"(sum[16]), "+f"(sum[17]), "+f"(sum[18]), "+f"(sum[19]),
                   "+f"(sum[20]), "+f"(sum[21]), "+f"(sum[22]), "+f"(sum[23]), "+f"(sum[24]),
                   "+f"(sum[25]), "+f"(sum[26]), "+f"(sum[27]), "+f"(sum[28]), "+f"(sum[29]),
                   "+f"(sum[30]), "+f"(sum[31])
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
    asm volatile(
        "{\n.reg .pred adds;\nsetp.ne.b32 adds, %69, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, "
        "%30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "
        "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, "
        "%58, %59, %60, %61, %62, %63 "
        "}, {%64, %65, %66, %67}, %68, adds, 1, 1, 0;\n}"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3]), "+f"(sum[4]), "+f"(sum[5]),
          "+f"(sum[6]), "+f"(sum[7]), "+f"(sum[8]), "+f"(sum[9]), "+f"(sum[10]), "+f"(sum[11]),
          "+f"(sum[12]), "+f"(sum[13]), "+f"(sum[14]), "+f"(sum[15]), "+f"(sum[16]), "+f"(sum[17]),
          "+f"(sum[18]), "+f"(sum[19]), "+f"(sum[20]), "+f"(sum[21]), "+f"(sum[22]), "+f"(sum[23]),
          "+f"(sum[24]), "+f"(sum[25]), "+f"(sum[26]), "+f"(sum[27]), "+f"(sum[28]), "+f"(sum[29]),
          "+f"(sum[30]), "+f"(sum[31]), "+f"(sum[32]), "+f"(sum[33]), "+f"(sum[34]), "+f"(sum[35]),
          "+f"(sum[36]), "+f"(sum[37]), "+f"(sum[38]), "+f"(sum[39]), "+f"(sum[40]), "+f"(sum[41]),
          "+f"(sum[42]), "+f"(sum[43]), "+f"(sum[44]), "+f"(sum[45]), "+f"(sum[46]), "+f"(sum[47]),
          "+f"(sum[48]), "+f"(sum[49]), "+f"(sum[50]), "+f"(sum[51]), "+f"(sum[52]), "+f"(sum[53]),
          "+f"(sum[54]), "+f"(sum[55]), "+f"(sum[56]), "+f"(sum[57]), "+f"(sum[58]), "+f"(sum[59]),
          "+f"(sum[60]), "+f"(sum[61]), "+f"(sum[62]), "+f"(sum[63])
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
    asm volatile(
        "{\n.reg .pred adds;\nsetp.ne.b32 adds, %85, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n160k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, "
        "%30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "
        "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, "
        "%58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, "
        "%72, %73, %74, %75, %76, %77, %78, %79 "
        "}, {%80, %81, %82, %83}, %84, adds, 1, 1, 0;\n}"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3]), "+f"(sum[4]), "+f"(sum[5]),
          "+f"(sum[6]), "+f"(sum[7]), "+f"(sum[8]), "+f"(sum[9]), "+f"(sum[10]), "+f"(sum[11]),
          "+f"(sum[12]), "+f"(sum[13]), "+f"(sum[14]), "+f"(sum[15]), "+f"(sum[16]), "+f"(sum[17]),
          "+f"(sum[18]), "+f"(sum[19]), "+f"(sum[20]), "+f"(sum[21]), "+f"(sum[22]), "+f"(sum[23]),
          "+f"(sum[24]), "+f"(sum[25]), "+f"(sum[26]), "+f"(sum[27]), "+f"(sum[28]), "+f"(sum[29]),
          "+f"(sum[30]), "+f"(sum[31]), "+f"(sum[32]), "+f"(sum[33]), "+f"(sum[34]), "+f"(sum[35]),
          "+f"(sum[36]), "+f"(sum[37]), "+f"(sum[38]), "+f"(sum[39]), "+f"(sum[40]), "+f"(sum[41]),
          "+f"(sum[42]), "+f"(sum[43]), "+f"(sum[44]), "+f"(sum[45]), "+f"(sum[46]), "+f"(sum[47]),
          "+f"(sum[48]), "+f"(sum[49]), "+f"(sum[50]), "+f"(sum[51]), "+f"(sum[52]), "+f"(sum[53]),
          "+f"(sum[54]), "+f"(sum[55]), "+f"(sum[56]), "+f"(sum[57]), "+f"(sum[58]), "+f"(sum[59]),
          "+f"(sum[60]), "+f"(sum[61]), "+f"(sum[62]), "+f"(sum[63]), "+f"(sum[64]), "+f"(sum[65]),
          "+f"(sum[66]), "+f"(sum[67]), "+f"(sum[68]), "+f"(sum[69]), "+f"(sum[70]), "+f"(sum[71]),
          "+f"(sum[72]), "+f"(sum[73]), "+f"(sum[74]), "+f"(sum[75]), "+f"(sum[76]), "+f"(sum[77]),
          "+f"(sum[78]), "+f"(sum[79])
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
    asm volatile(
        "{\n.reg .pred adds;\nsetp.ne.b32 adds, %97, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n184k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, "
        "%30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "
        "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, "
        "%58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, "
        "%72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, "
        "%86, %87, %88, %89, %90, %91 "
        "}, {%92, %93, %94, %95}, %96, adds, 1, 1, 0;\n}"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3]), "+f"(sum[4]), "+f"(sum[5]),
          "+f"(sum[6]), "+f"(sum[7]), "+f"(sum[8]), "+f"(sum[9]), "+f"(sum[10]), "+f"(sum[11]),
          "+f"(sum[12]), "+f"(sum[13]), "+f"(sum[14]), "+f"(sum[15]), "+f"(sum[16]), "+f"(sum[17]),
          "+f"(sum[18]), "+f"(sum[19]), "+f"(sum[20]), "+f"(sum[21]), "+f"(sum[22]), "+f"(sum[23]),
          "+f"(sum[24]), "+f"(sum[25]), "+f"(sum[26]), "+f"(sum[27]), "+f"(sum[28]), "+f"(sum[29]),
          "+f"(sum[30]), "+f"(sum[31]), "+f"(sum[32]), "+f"(sum[33]), "+f"(sum[34]), "+f"(sum[35]),
          "+f"(sum[36]), "+f"(sum[37]), "+f"(sum[38]), "+f"(sum[39]), "+f"(sum[40]), "+f"(sum[41]),
          "+f"(sum[42]), "+f"(sum[43]), "+f"(sum[44]), "+f"(sum[45]), "+f"(sum[46]), "+f"(sum[47]),
          "+f"(sum[48]), "+f"(sum[49]), "+f"(sum[50]), "+f"(sum[51]), "+f"(sum[52]), "+f"(sum[53]),
          "+f"(sum[54]), "+f"(sum[55]), "+f"(sum[56]), "+f"(sum[57]), "+f"(sum[58]), "+f"(sum[59]),
          "+f"(sum[60]), "+f"(sum[61]), "+f"(sum[62]), "+f"(sum[63]), "+f"(sum[64]), "+f"(sum[65]),
          "+f"(sum[66]), "+f"(sum[67]), "+f"(sum[68]), "+f"(sum[69]), "+f"(sum[70]), "+f"(sum[71]),
          "+f"(sum[72]), "+f"(sum[73]), "+f"(sum[74]), "+f"(sum[75]), "+f"(sum[76]), "+f"(sum[77]),
          "+f"(sum[78]), "+f"(sum[79]), "+f"(sum[80]), "+f"(sum[81]), "+f"(sum[82]), "+f"(sum[83]),
          "+f"(sum[84]), "+f"(sum[85]), "+f"(sum[86]), "+f"(sum[87]), "+f"(sum[88]), "+f"(sum[89]),
          "+f"(sum[90]), "+f"(sum[91])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(rows), "r"((int)adds));
#else
    __trap(); /* launchers never choose it */
#endif
}

#endif
