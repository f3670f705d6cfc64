/* The time of a stream by its stages, and the weights that each read: told by events on the stream
 * and by numbers that come back from the GPU, both looked at when the stream has settled. */
#ifndef PHASOR_KERNELS_CUDA_DEVICE_CUDA_STAGES_H
#define PHASOR_KERNELS_CUDA_DEVICE_CUDA_STAGES_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#include "device/device.h"

/* Changes of the stage, operations whose weights depend on numbers of the GPU, and those numbers,
 * until the stream settles: some forty layers. */
#define CUDA_STAGE_MARKS   256
#define CUDA_STAGE_READS   128
#define CUDA_STAGE_NUMBERS 16384

/* Offsets of groups on their way to the host. */
struct cuda_stage_read {
    int stage;
    int64_t first; /* in numbers */
    int64_t group_count;
    uint64_t group_bytes; /* of the weights of a group */
};

struct cuda_stages {
    int ordinal;
    cudaStream_t stream;
    int stage;                           /* that stands */
    cudaEvent_t marks[CUDA_STAGE_MARKS]; /* the beginnings of stages, the last one's included */
    int stage_of[CUDA_STAGE_MARKS];
    int mark_count; /* >= 1 */
    struct cuda_stage_read reads[CUDA_STAGE_READS];
    int read_count;
    int32_t *numbers; /* pinned */
    int64_t number_count;
    struct stage_total totals[DEVICE_STAGES];
};

/* Of zeros; what a failure leaves, deinit frees. Stage 0 begins. */
enum status cuda_stages_init(struct cuda_stages *stages, int ordinal, cudaStream_t stream,
                             struct error *err) MUST_CHECK;
void cuda_stages_deinit(struct cuda_stages *stages); /* nothing is on the stream */

/* Whether the next change and the next read of so many groups find no room: then the stream settles
 * before. */
bool cuda_stages_are_full(const struct cuda_stages *stages, int64_t group_count);

enum status cuda_stages_change(struct cuda_stages *stages, int stage, struct error *err) MUST_CHECK;

/* Weights that an operation reads: group_bytes for each group that has rows, by its offsets
 * [group_count + 1] on the GPU. */
enum status cuda_stages_read(struct cuda_stages *stages, const int32_t *offsets,
                             int64_t group_count, uint64_t group_bytes,
                             struct error *err) MUST_CHECK;

/* Adds up, when everything on the stream has run. */
enum status cuda_stages_settle(struct cuda_stages *stages, struct error *err) MUST_CHECK;

#endif
