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
                           CUDA_STAGE_READS * sizeof *stages->numbers, err));
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

bool cuda_stages_are_full(const struct cuda_stages *stages)
{
    return stages->part == NULL && !cuda_stages_have_room(stages, 0, 1);
}

static void mark_add(struct cuda_stages *stages, cudaEvent_t mark, int stage,
                     struct cuda_stages_part *part)
{
    ASSERT(stages->mark_count < CUDA_STAGE_MARKS);
    stages->marks[stages->mark_count] = mark;
    stages->part_of[stages->mark_count] = part;
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
    if (part->is_sampled || part->mark_count == 0)
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
    mark_add(stages, mark, stage, NULL);
    return STATUS_OK;
}

void cuda_stages_count(struct cuda_stages *stages, uint64_t bytes)
{
    if (stages->part != NULL)
        stages->part->weight_bytes[stages->part->stage] += bytes;
    else
        stages->totals[stages->stage].weight_bytes += bytes;
}

int32_t *cuda_stages_read(struct cuda_stages *stages, uint64_t group_bytes)
{
    struct cuda_stages_part *part = stages->part;
    struct cuda_stage_read read = {part != NULL ? part->stage : stages->stage, group_bytes};
    ASSERT(!cuda_stages_are_full(stages));
    if (part == NULL) {
        stages->reads[stages->read_count] = read;
        return stages->numbers + stages->read_count++;
    }
    part->reads[part->read_count] = read;
    return stages->numbers + part->read_first + part->read_count++;
}

/* ---- Parts that are launched again ----------------------------------------------------------- */

void cuda_stages_capture(struct cuda_stages *stages, struct cuda_stages_part *part, bool is_sampled)
{
    stages->part = part;
    if (part == NULL)
        return;
    part->stage_before = part->stage = stages->stage;
    part->mark_count = part->read_count = 0;
    part->read_first = stages->read_count;
    part->is_sampled = is_sampled;
    memset(part->weight_bytes, 0, sizeof part->weight_bytes);
}

bool cuda_stages_have_room(const struct cuda_stages *stages, int mark_count, int read_count)
{
    return stages->mark_count + mark_count < CUDA_STAGE_MARKS &&
           stages->own_count < CUDA_STAGE_OWN &&
           stages->read_count + read_count <= CUDA_STAGE_READS;
}

bool cuda_stages_part_holds(const struct cuda_stages *stages, const struct cuda_stages_part *part)
{
    return part->stage_before == stages->stage && part->read_first == stages->read_count;
}

/* A mark beside the graph ends it: the graph's own are recorded anew, while the last mark still
 * begins what comes. Without it nothing is added. */
enum status cuda_stages_add(struct cuda_stages *stages, struct cuda_stages_part *part,
                            bool is_sampled, struct error *err)
{
    cudaEvent_t end;
    int recorded = is_sampled || part->mark_count == 0 ? part->mark_count : 1;
    ASSERT(cuda_stages_have_room(stages, part->mark_count, part->read_count));
    TRY(own_record(&end, stages, err));
    part->is_sampled = is_sampled;
    if (is_sampled)
        memset(part->seconds, 0, sizeof part->seconds);
    for (int i = 0; i < recorded; i++)
        mark_add(stages, part->marks[i], part->stage_of[i], part);
    mark_add(stages, end, part->stage, NULL);
    for (int i = 0; i < part->read_count; i++)
        stages->reads[stages->read_count++] = part->reads[i];
    for (int stage = 0; stage < DEVICE_STAGES; stage++)
        stages->totals[stage].weight_bytes += part->weight_bytes[stage];
    return STATUS_OK;
}

/* ---- Adding up ------------------------------------------------------------------------------- */

/* Of a part without its marks but the first: as its last sample was. */
static void part_share_out(struct cuda_stages *stages, const struct cuda_stages_part *part,
                           int stage_first, double seconds)
{
    double sampled = 0;
    for (int stage = 0; stage < DEVICE_STAGES; stage++)
        sampled += part->seconds[stage];
    for (int stage = 0; stage < DEVICE_STAGES; stage++) {
        double share = sampled > 0 ? part->seconds[stage] / sampled : stage == stage_first;
        stages->totals[stage].seconds += seconds * share;
    }
}

/* From mark `i` to the next. */
static void interval_add(struct cuda_stages *stages, int i, double seconds)
{
    struct cuda_stages_part *part = stages->part_of[i];
    if (part != NULL && !part->is_sampled) {
        part_share_out(stages, part, stages->stage_of[i], seconds);
        return;
    }
    stages->totals[stages->stage_of[i]].seconds += seconds;
    if (part != NULL)
        part->seconds[stages->stage_of[i]] += seconds;
}

/* The last mark becomes the first: the stage that stands goes on from there. */
static enum status times_add(struct cuda_stages *stages, struct error *err)
{
    int last = stages->mark_count - 1;
    for (int i = 0; i < last; i++) {
        float milliseconds;
        CUDA_TRY(stages->ordinal,
                 cudaEventElapsedTime(&milliseconds, stages->marks[i], stages->marks[i + 1]), err);
        interval_add(stages, i, (double)milliseconds * 1e-3);
    }
    cudaEvent_t mark = stages->marks[last];
    ASSERT(mark == stages->own[stages->own_count - 1]);
    stages->own[stages->own_count - 1] = stages->own[0];
    stages->own[0] = stages->marks[0] = mark;
    stages->stage_of[0] = stages->stage;
    stages->part_of[0] = NULL;
    stages->mark_count = stages->own_count = 1;
    return STATUS_OK;
}

enum status cuda_stages_settle(struct cuda_stages *stages, struct error *err)
{
    for (int i = 0; i < stages->read_count; i++)
        stages->totals[stages->reads[i].stage].weight_bytes +=
            (uint64_t)stages->numbers[i] * stages->reads[i].group_bytes;
    stages->read_count = 0;
    return times_add(stages, err);
}
