/* Shared memory that is filled while other parts of it are multiplied: copies that run by
 * themselves (cp.async), and fragments of mma.cuh from where they put them (ldmatrix); both from
 * sm_80 on. For the host their meaning: there a copy is made when it is waited for, no sooner. */
#ifndef PHASOR_KERNELS_CUDA_STAGE_CUH
#define PHASOR_KERNELS_CUDA_STAGE_CUH

#include "kernels/cuda/parts.cuh"

#define STAGE_UNIT   16                                   /* bytes that a copy moves */
#define STAGE_VALUES (STAGE_UNIT / (int)sizeof(uint16_t)) /* of 16 bits in them */

#if defined(SIMT_HOST)
#include <deque>

struct stage_pending {
    void *to;
    const void *from; /* NULL: zeros */
    int group;
};

/* Of a thread of the block. */
struct stage_thread {
    std::deque<stage_pending> pending;
    int group; /* that the next copy belongs to */
};

inline stage_thread &stage_of_thread() /* one for all sources */
{
    static stage_thread threads[1024];
    return threads[threadIdx.x];
}
#endif

/* Begins to copy 16 bytes to shared memory, or to put zeros there. */
__device__ inline void stage_copy(void *to, const void *from, bool is_there)
{
#if defined(SIMT_HOST)
    stage_thread &own = stage_of_thread();
    memset(to, 0xFF, STAGE_UNIT); /* no number: who does not wait for it sees that */
    own.pending.push_back({to, is_there ? from : NULL, own.group});
#elif __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(
                     (uint32_t)__cvta_generic_to_shared(to)),
                 "l"(from), "r"(is_there ? STAGE_UNIT : 0)
                 : "memory");
#else
    __trap(); /* launchers never choose it */
#endif
}

/* The copies that this thread began since the last call are a group, even if there are none. */
__device__ inline void stage_commit()
{
#if defined(SIMT_HOST)
    stage_of_thread().group++;
#elif __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/* Waits until only the last COUNT groups of this thread may still be under way. Others see what it
 * copied after a barrier. */
template <int COUNT> __device__ inline void stage_wait()
{
#if defined(SIMT_HOST)
    stage_thread &own = stage_of_thread();
    while (!own.pending.empty() && own.pending.front().group < own.group - COUNT) {
        stage_pending copy = own.pending.front();
        if (copy.from != NULL)
            memcpy(copy.to, copy.from, STAGE_UNIT);
        else
            memset(copy.to, 0, STAGE_UNIT);
        own.pending.pop_front();
    }
#elif __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(COUNT) : "memory");
#endif
}

/* Four matrices [8][8] of 16-bit values in shared memory: lane 8m + r brings the address of line r
 * of matrix m. With g and t as in mma.cuh a lane gets of matrix m column g of lines 2t and 2t + 1:
 * where lines are k, that is a pair of a right operand. All lanes call it; when one is done, all
 * have read. */
__device__ inline void stage_matrices(uint32_t out[4], const uint16_t *line)
{
#if defined(SIMT_HOST)
    static const uint16_t *brought[1024 / WARP][WARP];
    const uint16_t **lines = brought[warp_id()];
    lines[lane_id()] = line;
    __syncwarp();
    for (int m = 0; m < 4; m++) {
        const uint16_t *const *at = lines + 8 * m + lane_id() % 4 * 2;
        out[m] = at[0][lane_id() / 4] | (uint32_t)at[1][lane_id() / 4] << 16;
    }
    __syncwarp();
#elif __CUDA_ARCH__ >= 800
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(line))
                 : "memory");
#else
    __trap();
#endif
}

/* Where unit `unit` of line `line` stands among lines of UNITS units (8 or 16), in values: lines
 * are turned against each other, so that eight of them have no bank in common. */
template <int UNITS> __device__ inline int stage_place(int line, int unit)
{
    return (line * UNITS + (unit ^ line % 8)) * STAGE_VALUES;
}

/* Begins to copy LINES lines of UNITS units, which in memory begin `line_stride` values apart, with
 * thread `thread` of THREADS. From line `line_end` and unit `unit_end` on there are none in memory:
 * zeros. */
template <int UNITS, int LINES, int THREADS>
__device__ inline void stage_lines(uint16_t *to, const uint16_t *from, int line_stride,
                                   int line_end, int unit_end, int thread)
{
    int line = thread / UNITS, unit = thread % UNITS;
    from += line * line_stride + unit * STAGE_VALUES;
    line_end = unit < unit_end ? line_end : 0;
#pragma unroll
    for (int i = 0; i < LINES * UNITS / THREADS; i++) {
        stage_copy(to + stage_place<UNITS>(line, unit), from, line < line_end);
        line += THREADS / UNITS;
        from += THREADS / UNITS * line_stride;
    }
}

/* Right operands of two tiles, columns 8 x unit .. + 15 (`unit` is even) and lines `first` .. + 15
 * (a multiple of 8): tile i of the two is out[2i] and out[2i + 1]. */
template <int UNITS>
__device__ inline void stage_operands(uint32_t out[4], const uint16_t *lines, int first, int unit)
{
    int own = lane_id() / 16 ^ lane_id() % 8; /* as stage_place has it, but for `unit` */
    stage_matrices(out, lines + ((first + lane_id() % 16) * UNITS + (unit ^ own)) * STAGE_VALUES);
}

#endif
