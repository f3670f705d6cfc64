/* Arrays of the host that operations name (device/ops.h: segments, groups of a feed-forward
 * network), and their copies for kernels. */
#ifndef PHASOR_KERNELS_CUDA_DEVICE_CUDA_ARRAYS_H
#define PHASOR_KERNELS_CUDA_DEVICE_CUDA_ARRAYS_H

#include "kernels/cuda/launch.h"

enum cuda_array_kind { CUDA_ARRAY_NONE, CUDA_ARRAY_SEGMENTS, CUDA_ARRAY_GROUPS };

struct cuda_array {
    enum cuda_array_kind kind;
    const void *source; /* [count] of struct segment, and their pages, or of struct ffn_weights */
    int64_t count;
};

static inline struct cuda_array cuda_array_of_segments(const struct segment *segments,
                                                       int64_t count)
{
    return (struct cuda_array){CUDA_ARRAY_SEGMENTS, segments, count};
}

static inline struct cuda_array cuda_array_of_groups(const struct ffn_weights *groups,
                                                     int64_t count)
{
    return (struct cuda_array){CUDA_ARRAY_GROUPS, groups, count};
}

/* What launches depend on beside the operation: of segments, or the first group. What else an array
 * holds its copy says to the kernels. */
struct cuda_array_facts {
    struct cuda_segments segments;
    struct ffn_weights first;
};
struct cuda_segments cuda_segments_of(const struct segment *segments, int64_t count);
void cuda_array_facts_get(struct cuda_array_facts *out, const struct cuda_array *array);

/* Bytes of a copy: as it is now, and at most as long as the facts are the same. */
size_t cuda_array_bytes(const struct cuda_array *array);
size_t cuda_array_bytes_max(const struct cuda_array *array, const struct cuda_array_facts *facts);

/* Writes it to `host`, for kernels that find it at `device`; of groups only what differs from what
 * stands there, which is_new says is nothing yet. Returns whether it wrote. */
bool cuda_array_write(const struct cuda_array *array, void *host, const void *device, bool is_new);

#endif
