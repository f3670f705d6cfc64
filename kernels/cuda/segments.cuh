/* Rows of a pass and the sequences that they belong to (struct segment, device/ops.h). */
#ifndef PHASOR_KERNELS_CUDA_SEGMENTS_CUH
#define PHASOR_KERNELS_CUDA_SEGMENTS_CUH

#include "kernels/cuda/parts.cuh"

/* Pieces of segments are counted through, segment by segment. Finds the segment of piece `index`,
 * and which of its own pieces that is; a segment has ceil(tokens x rows / rows_per_piece) of them.
 * False behind the last. All lanes of a warp call it, with the same arguments. */
__device__ inline bool segment_find(int64_t *segment, int64_t *piece,
                                    const struct segment *segments, int64_t count, int64_t index,
                                    int64_t rows, int64_t rows_per_piece)
{
    for (int64_t first = 0; first < count; first += WARP) {
        int64_t s = first + lane_id();
        int pieces = 0;
        if (s < count)
            pieces = (int)device_ceil_div(segments[s].token_count * rows, rows_per_piece);
        int end = warp_prefix(pieces); /* of those of this warp's segments */
        unsigned behind = __ballot_sync(ALL_LANES, index < end);
        if (behind != 0) {
            int owner = __ffs((int)behind) - 1;
            *segment = first + owner;
            *piece = index - __shfl_sync(ALL_LANES, end - pieces, owner);
            return true;
        }
        index -= __shfl_sync(ALL_LANES, end, WARP - 1);
    }
    return false;
}

#endif
