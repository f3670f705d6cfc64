/* The launchers of the CUDA kernels: cuda_NAME puts the work of op_NAME (device/ops.h holds its
 * contract) on launch->stream and returns what the launch said: cudaGetLastError() behind it, or
 * the first error of several. None waits, allocates, or copies from the host. An operation that has
 * nothing to do launches nothing and is cudaSuccess.
 *
 * All pointers in an operation are to memory of the device. Where ops.h says host memory (segments
 * and their pages, the groups of a feed-forward network), the device has made a copy and put the
 * copy's address in its place: a launcher never reads through them. What it must know of them on
 * the host is an argument of its own.
 *
 * Matrices are packed as layout/packing.h says, in the order of the CPU. Values are f32 as on the
 * CPU; results obey the same rules (a row's result depends on that row alone, in a fixed order).
 */
#ifndef PHASOR_KERNELS_CUDA_LAUNCH_H
#define PHASOR_KERNELS_CUDA_LAUNCH_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "device/ops.h"

/* Where a launch goes, and what it may use. */
struct cuda_launch {
    cudaStream_t stream;
    int multiprocessors;  /* for grids that loop over their work */
    int capability;       /* 10 x major + minor: 70, 75, 80, 90 */
    int shared_bytes_max; /* of a block that opts in (cudaFuncAttributeMaxDynamicSharedMemorySize)
                           */
    void *scratch;        /* device, aligned to 256, at least what cuda_NAME_scratch asked for; what
                           * stands in it is lost between launches */
    size_t scratch_bytes;
    int32_t *groups_with_rows; /* where cuda_ffn_up and cuda_ffn_down write how many groups have
                                  rows: the host's, which kernels reach; NULL: nowhere */
};

/* What the host knows of the segments of an operation (all token_count > 0). Launches depend on
 * these numbers alone: so they stay the same while contexts grow within a step. A chunk is a step's
 * positions of one segment, the first at 0. Their count grows with each segment that goes over a
 * step's end, most of them at times of their own: rounded up, it stays for about a step, too. */
struct cuda_segments {
    int64_t token_count;   /* of all */
    int64_t tokens_max;    /* of one */
    int64_t positions_max; /* first_position + token_count of one, rounded up to the step */
    int64_t chunk_count;   /* of all, rounded up to a multiple of the number of segments */
};
#define CUDA_POSITIONS_STEP 512

/* Behind a copy of segments stands where their chunks are, in i32, so that a block which is to have
 * a chunk looks and does not search: of each segment its first, as chunks are counted through all
 * segments [count]; of each chunk its segment, -1 behind the last [chunk_count]. */
static inline int32_t *cuda_segment_chunks(const struct segment *segments, int64_t count)
{
    return (int32_t *)(segments + count);
}

static inline int32_t *cuda_chunk_segments(const struct segment *segments, int64_t count)
{
    return cuda_segment_chunks(segments, count) + count;
}

/* From this on GPUs multiply bf16, and products with bf16 weights round their inputs to it. Before
 * they round both to fp16 (device/ops.h). */
#define CUDA_BF16_CAPABILITY 80

cudaError_t cuda_embed(const struct cuda_launch *launch, const struct op_embed *op);
cudaError_t cuda_rms_norm(const struct cuda_launch *launch, const struct op_rms_norm *op);
cudaError_t cuda_add(const struct cuda_launch *launch, const struct op_add *op);
cudaError_t cuda_matmul(const struct cuda_launch *launch, const struct op_matmul *op);
size_t cuda_matmul_scratch(const struct cuda_launch *launch, const struct op_matmul *op);

/* Both, the norm of the sum: `norm` has as many rows and the stride of `add`, and takes what that
 * makes. To the bit as one behind the other. */
cudaError_t cuda_add_norm(const struct cuda_launch *launch, const struct op_add *add,
                          const struct op_rms_norm *norm);

/* op->segments and their pages are the device's copies, with their chunks behind them. */
cudaError_t cuda_rope_append(const struct cuda_launch *launch, const struct op_rope_append *op,
                             const struct cuda_segments *segments);
cudaError_t cuda_attention(const struct cuda_launch *launch, const struct op_attention *op,
                           const struct cuda_segments *segments);
size_t cuda_attention_scratch(const struct cuda_launch *launch, const struct op_attention *op,
                              const struct cuda_segments *segments);

cudaError_t cuda_route(const struct cuda_launch *launch, const struct op_route *op);
cudaError_t cuda_dispatch(const struct cuda_launch *launch, const struct op_dispatch *op);
cudaError_t cuda_group(const struct cuda_launch *launch, const struct op_group *op);
size_t cuda_dispatch_scratch(const struct op_dispatch *op);
size_t cuda_group_scratch(const struct op_group *op);

/* op->groups is the device's copy; `first` is groups[0] on the host, whose shape, number type and
 * group size all have. How many rows there are, only op->offsets knows, on the device. */
cudaError_t cuda_ffn_up(const struct cuda_launch *launch, const struct op_ffn_up *op,
                        const struct ffn_weights *first);
size_t cuda_ffn_up_scratch(const struct cuda_launch *launch, const struct op_ffn_up *op,
                           const struct ffn_weights *first);
cudaError_t cuda_ffn_down(const struct cuda_launch *launch, const struct op_ffn_down *op,
                          const struct ffn_weights *first);
size_t cuda_ffn_down_scratch(const struct cuda_launch *launch, const struct op_ffn_down *op,
                             const struct ffn_weights *first);

cudaError_t cuda_combine(const struct cuda_launch *launch, const struct op_combine *op);
cudaError_t cuda_shared_add(const struct cuda_launch *launch, const struct op_shared_add *op);
cudaError_t cuda_choose(const struct cuda_launch *launch, const struct op_choose *op);
size_t cuda_choose_scratch(const struct op_choose *op);
cudaError_t cuda_candidates(const struct cuda_launch *launch, const struct op_candidates *op);
size_t cuda_candidates_scratch(const struct op_candidates *op);
cudaError_t cuda_gather(const struct cuda_launch *launch, const struct op_gather *op);
cudaError_t cuda_dequantize(const struct cuda_launch *launch, const struct op_dequantize *op);

/* out[i] = in[0][i] + in[1][i] + ... in f32, in this order, for collectives; `out` may be one of
 * them. Bytes: (in_count + 1) x count x 4. */
#define CUDA_SUM_MAX 64
struct cuda_sum {
    float *out;
    const float *in[CUDA_SUM_MAX];
    int in_count;
    int64_t count;
};
cudaError_t cuda_sum(const struct cuda_launch *launch, const struct cuda_sum *op);

/* By a clock of the GPU, in nanoseconds. */
struct cuda_pace {
    uint64_t until; /* when the link has done what it was taken for */
    uint64_t left;  /* until then, when it was taken */
};

/* The first takes `link` for so many nanoseconds, from now or from when it is free (0 in it: it
 * is), and writes when that ends; the second holds its stream until then, and so much longer. Both
 * are the device's; any of its streams may take the link. A clock that is set back holds nobody for
 * longer than that. */
cudaError_t cuda_pace_begin(const struct cuda_launch *launch, struct cuda_pace *out, uint64_t *link,
                            uint64_t nanoseconds);
cudaError_t cuda_pace_end(const struct cuda_launch *launch, const struct cuda_pace *pace,
                          uint64_t nanoseconds);

/* op_copy is the driver's: cudaMemcpyAsync and, of several rows, cudaMemcpy2DAsync. */

#ifdef __cplusplus
}
#endif

#endif
