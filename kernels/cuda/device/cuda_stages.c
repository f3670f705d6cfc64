#include "kernels/cuda/device/cuda_stages.h"

#include "kernels/cuda/device/cuda_error.h"

enum status cuda_stages_init(struct cuda_stages *stages, int ordinal, cudaStream_t stream,
                             struct error *err)
{
    stages->ordinal = ordinal;
    stages->stream = stream;
    CUDA_TRY(
        ordinal,
        cudaMallocHost((void **)&stages->numbers, CUDA_STAGE_NUMBERS * sizeof *stages->numbers),
        err);
    for (int i = 0; i < CUDA_STAGE_MARKS; i++)
        CUDA_TRY(ordinal, cudaEventCreateWithFlags(&stages->marks[i], cudaEventDefault), err);
    return cuda_stages_change(stages, 0, err);
}

void cuda_stages_deinit(struct cuda_stages *stages)
{
    for (int i = 0; i < CUDA_STAGE_MARKS; i++) {
        if (stages->marks[i] != NULL)
            (void)cudaEventDestroy(stages->marks[i]);
    }
    (void)cudaFreeHost(stages->numbers);
    (void)cudaGetLastError();
}

bool cuda_stages_are_full(const struct cuda_stages *stages, int64_t group_count)
{
    return stages->mark_count == CUDA_STAGE_MARKS || stages->read_count == CUDA_STAGE_READS ||
           stages->number_count + group_count + 1 > CUDA_STAGE_NUMBERS;
}

enum status cuda_stages_change(struct cuda_stages *stages, int stage, struct error *err)
{
    ASSERT(stages->mark_count < CUDA_STAGE_MARKS);
    CUDA_TRY(stages->ordinal, cudaEventRecord(stages->marks[stages->mark_count], stages->stream),
             err);
    stages->stage = stage;
    stages->stage_of[stages->mark_count++] = stage;
    return STATUS_OK;
}

enum status cuda_stages_read(struct cuda_stages *stages, const int32_t *offsets,
                             int64_t group_count, uint64_t group_bytes, struct error *err)
{
    ASSERT(!cuda_stages_are_full(stages, group_count));
    CUDA_TRY(stages->ordinal,
             cudaMemcpyAsync(stages->numbers + stages->number_count, offsets,
                             (size_t)(group_count + 1) * sizeof *offsets, cudaMemcpyDeviceToHost,
                             stages->stream),
             err);
    stages->reads[stages->read_count++] = (struct cuda_stage_read){
        .stage = stages->stage,
        .first = stages->number_count,
        .group_count = group_count,
        .group_bytes = group_bytes,
    };
    stages->number_count += group_count + 1;
    return STATUS_OK;
}

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
    stages->marks[last] = stages->marks[0];
    stages->marks[0] = mark;
    stages->stage_of[0] = stages->stage;
    stages->mark_count = 1;
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
