#include "kernels/cuda/device/cuda_stages.h"

#include <string.h>

#include "kernels/cuda/device/cuda_error.h"
#include "kernels/cuda/device/cuda_pinned.h"

enum status cuda_stages_init(struct cuda_stages *stages, int ordinal, cudaStream_t stream,
                             struct error *err)
{
    stages->ordinal = ordinal;
    stages->stream = stream;
    TRY(cuda_pinned_malloc(ordinal, (void **)&stages->numbers,
                           CUDA_STAGE_NUMBERS * sizeof *stages->numbers, err));
    for (int i = 0; i < CUDA_STAGE_OWN; i++)
        CUDA_TRY(ordinal, cudaEventCreateWithFlags(&stages->own[i], cudaEventDefault), err);
    return cuda_stages_change(stages, 0, err);
}

void cuda_stages_deinit(struct cuda_stages *stages)
{
    for (int i = 0; i < CUDA_STAGE_OWN; i++) {
        if (stages->own[i] != NULL)
            (void)cudaEventDestroy(stages->own[i]);
    }
    (void)cudaFreeHost(stages->numbers);
    (void)cudaGetLastError();
}

bool cuda_stages_are_full(const struct cuda_stages *stages, int64_t group_count)
{
    return stages->part == NULL && !cuda_stages_have_room(stages, 0, 1, group_count + 1);
}

static void mark_add(struct cuda_stages *stages, cudaEvent_t mark, int stage)
{
    ASSERT(stages->mark_count < CUDA_STAGE_MARKS);
    stages->marks[stages->mark_count] = mark;
    stages->stage_of[stages->mark_count++] = stage;
    stages->stage = stage;
}

/* An event that is to be added. */
static enum status own_record(cudaEvent_t *out, struct cuda_stages *stages, struct error *err)
{
    ASSERT(stages->own_count < CUDA_STAGE_OWN);
    *out = stages->own[stages->own_count];
    CUDA_TRY(stages->ordinal, cudaEventRecord(*out, stages->stream), err);
    stages->own_count++;
    return STATUS_OK;
}

/* In a graph, so that each launch records it. */
static enum status change_capture(struct cuda_stages *stages, int stage, struct error *err)
{
    struct cuda_stages_part *part = stages->part;
    CUDA_TRY(stages->ordinal,
             cudaEventRecordWithFlags(part->marks[part->mark_count], stages->stream,
                                      cudaEventRecordExternal),
             err);
    part->stage = stage;
    part->stage_of[part->mark_count++] = stage;
    return STATUS_OK;
}

enum status cuda_stages_change(struct cuda_stages *stages, int stage, struct error *err)
{
    if (stages->part != NULL)
        return change_capture(stages, stage, err);
    cudaEvent_t mark;
    TRY(own_record(&mark, stages, err));
    mark_add(stages, mark, stage);
    return STATUS_OK;
}

void cuda_stages_count(struct cuda_stages *stages, uint64_t bytes)
{
    if (stages->part != NULL)
        stages->part->weight_bytes[stages->part->stage] += bytes;
    else
        stages->totals[stages->stage].weight_bytes += bytes;
}

enum status cuda_stages_read(struct cuda_stages *stages, const int32_t *offsets,
                             int64_t group_count, uint64_t group_bytes, struct error *err)
{
    struct cuda_stages_part *part = stages->part;
    int64_t first = part != NULL ? part->number_first + part->number_count : stages->number_count;
    ASSERT(!cuda_stages_are_full(stages, group_count));
    CUDA_TRY(stages->ordinal,
             cudaMemcpyAsync(stages->numbers + first, offsets,
                             (size_t)(group_count + 1) * sizeof *offsets, cudaMemcpyDeviceToHost,
                             stages->stream),
             err);
    struct cuda_stage_read read = {.stage = part != NULL ? part->stage : stages->stage,
                                   .first = first,
                                   .group_count = group_count,
                                   .group_bytes = group_bytes};
    if (part != NULL) {
        part->reads[part->read_count++] = read;
        part->number_count += group_count + 1;
    } else {
        stages->reads[stages->read_count++] = read;
        stages->number_count += group_count + 1;
    }
    return STATUS_OK;
}

/* ---- Parts that are launched again ----------------------------------------------------------- */

void cuda_stages_capture(struct cuda_stages *stages, struct cuda_stages_part *part)
{
    stages->part = part;
    if (part == NULL)
        return;
    part->stage_before = part->stage = stages->stage;
    part->mark_count = part->read_count = 0;
    part->number_first = stages->number_count;
    part->number_count = 0;
    memset(part->weight_bytes, 0, sizeof part->weight_bytes);
}

bool cuda_stages_have_room(const struct cuda_stages *stages, int64_t mark_count, int64_t read_count,
                           int64_t number_count)
{
    return stages->mark_count + mark_count < CUDA_STAGE_MARKS &&
           stages->own_count < CUDA_STAGE_OWN &&
           stages->read_count + read_count <= CUDA_STAGE_READS &&
           stages->number_count + number_count <= CUDA_STAGE_NUMBERS;
}

bool cuda_stages_part_holds(const struct cuda_stages *stages, const struct cuda_stages_part *part)
{
    return part->stage_before == stages->stage && part->number_first == stages->number_count;
}

/* A mark beside the graph ends it: the graph's own are recorded anew, while the last mark still
 * begins what comes. Without it nothing is added. */
enum status cuda_stages_add(struct cuda_stages *stages, const struct cuda_stages_part *part,
                            struct error *err)
{
    cudaEvent_t end;
    ASSERT(cuda_stages_have_room(stages, part->mark_count, part->read_count, part->number_count));
    TRY(own_record(&end, stages, err));
    for (int i = 0; i < part->mark_count; i++)
        mark_add(stages, part->marks[i], part->stage_of[i]);
    mark_add(stages, end, part->stage);
    for (int i = 0; i < part->read_count; i++)
        stages->reads[stages->read_count++] = part->reads[i];
    for (int stage = 0; stage < DEVICE_STAGES; stage++)
        stages->totals[stage].weight_bytes += part->weight_bytes[stage];
    stages->number_count += part->number_count;
    return STATUS_OK;
}

/* ---- Adding up ------------------------------------------------------------------------------- */

static void weights_add(struct cuda_stages *stages, const struct cuda_stage_read *read)
{
    const int32_t *offsets = stages->numbers + read->first;
    for (int64_t g = 0; g < read->group_count; g++) {
        if (offsets[g + 1] > offsets[g])
            stages->totals[read->stage].weight_bytes += read->group_bytes;
    }
}

/* The last mark becomes the first: the stage that stands goes on from there. */
static enum status times_add(struct cuda_stages *stages, struct error *err)
{
    int last = stages->mark_count - 1;
    for (int i = 0; i < last; i++) {
        float milliseconds;
        CUDA_TRY(stages->ordinal,
                 cudaEventElapsedTime(&milliseconds, stages->marks[i], stages->marks[i + 1]), err);
        stages->totals[stages->stage_of[i]].seconds += (double)milliseconds * 1e-3;
    }
    cudaEvent_t mark = stages->marks[last];
    ASSERT(mark == stages->own[stages->own_count - 1]);
    stages->own[stages->own_count - 1] = stages->own[0];
    stages->own[0] = stages->marks[0] = mark;
    stages->stage_of[0] = stages->stage;
    stages->mark_count = stages->own_count = 1;
    return STATUS_OK;
}

enum status cuda_stages_settle(struct cuda_stages *stages, struct error *err)
{
    for (int i = 0; i < stages->read_count; i++)
        weights_add(stages, &stages->reads[i]);
    stages->read_count = 0;
    stages->number_count = 0;
    return times_add(stages, err);
}
