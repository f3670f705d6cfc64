/* The time of a stream by its stages, and the weights that each read: told by events on the stream
 * and by numbers that kernels write to memory of the host, both looked at when the stream has
 * settled.
 *
 * An event between two kernels of a graph costs as much as a small kernel. So of the launches of a
 * graph one in CUDA_STAGE_SAMPLE records them all, the first of them, too; of the others the time
 * as a whole is known, and shared out as the last one's was. */
#ifndef PHASOR_KERNELS_CUDA_DEVICE_CUDA_STAGES_H
#define PHASOR_KERNELS_CUDA_DEVICE_CUDA_STAGES_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#include "device/device.h"

/* Changes of the stage, of which so many beside graphs, and operations whose weights depend on
 * numbers of the GPU, until the stream settles: some seventy layers, and a hundred in graphs, so
 * that a pass of most models waits for none of its stages. */
#define CUDA_STAGE_MARKS  2048
#define CUDA_STAGE_OWN    1024
#define CUDA_STAGE_READS  512
#define CUDA_STAGE_SAMPLE 16

/* An operation on groups, whose kernel says how many have rows. */
struct cuda_stage_read {
    int stage;
    uint64_t group_bytes; /* of the weights of a group */
};

/* What a graph adds each time that it is launched. Its marks are events of its own, which it
 * records anew: so the stream settles between two launches. */
struct cuda_stages_part {
    int stage_before, stage; /* that stand before it and behind it */
    cudaEvent_t *marks;      /* [mark_count] */
    int *stage_of;           /* [mark_count] */
    int mark_count;
    struct cuda_stage_read *reads; /* [read_count] */
    int read_first, read_count;    /* where its numbers stand */
    uint64_t weight_bytes[DEVICE_STAGES];
    bool is_sampled;               /* as it was launched last: all of its marks are recorded */
    double seconds[DEVICE_STAGES]; /* from its first mark on, when all were recorded last */
};

struct cuda_stages {
    int ordinal;
    cudaStream_t stream;
    struct cuda_stages_part *part;       /* that is captured; NULL: none */
    int stage;                           /* that stands */
    cudaEvent_t marks[CUDA_STAGE_MARKS]; /* the beginnings of stages, the last one's included */
    int stage_of[CUDA_STAGE_MARKS];
    struct cuda_stages_part *part_of[CUDA_STAGE_MARKS]; /* whose mark it is; NULL: no part's */
    int mark_count;                                     /* >= 1 */
    cudaEvent_t own[CUDA_STAGE_OWN]; /* of which own_count are marks, the last mark, too */
    int own_count;                   /* >= 1 */
    struct cuda_stage_read reads[CUDA_STAGE_READS];
    int read_count;
    int32_t *numbers; /* [CUDA_STAGE_READS] groups that have rows, of each read; pinned */
    struct stage_total totals[DEVICE_STAGES];
};

/* Of zeros; what a failure leaves, deinit frees. Stage 0 begins. */
enum status cuda_stages_init(struct cuda_stages *stages, int ordinal, cudaStream_t stream,
                             struct error *err) MUST_CHECK;
void cuda_stages_deinit(struct cuda_stages *stages); /* nothing is on the stream */

/* Whether the next change and the next read find no room: then the stream settles before. */
bool cuda_stages_are_full(const struct cuda_stages *stages);

enum status cuda_stages_change(struct cuda_stages *stages, int stage, struct error *err) MUST_CHECK;

/* Weights that an operation reads: as many bytes. */
void cuda_stages_count(struct cuda_stages *stages, uint64_t bytes);

/* Weights that an operation reads: group_bytes for each group that has rows. Its kernel writes how
 * many have to the address that is returned, which host and GPU know. There is room. */
int32_t *cuda_stages_read(struct cuda_stages *stages, uint64_t group_bytes);

/* From here on, until it is called with NULL, changes and reads are put on the stream for `part`
 * and counted there: its arrays have room for all that come, and its marks are events. Unless it is
 * sampled, only its first mark is recorded. */
void cuda_stages_capture(struct cuda_stages *stages, struct cuda_stages_part *part,
                         bool is_sampled);

/* Whether there is room for a part with so many. */
bool cuda_stages_have_room(const struct cuda_stages *stages, int mark_count, int read_count);

/* Whether the part, captured before, is what would be captured now. */
bool cuda_stages_part_holds(const struct cuda_stages *stages, const struct cuda_stages_part *part);

/* Its graph has been launched, one that was captured as sampled or one that was not; there was
 * room. The part stays until the stream has settled. */
enum status cuda_stages_add(struct cuda_stages *stages, struct cuda_stages_part *part,
                            bool is_sampled, struct error *err) MUST_CHECK;

/* Adds up, when everything on the stream has run. */
enum status cuda_stages_settle(struct cuda_stages *stages, struct error *err) MUST_CHECK;

#endif
