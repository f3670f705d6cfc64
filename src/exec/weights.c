#include "exec/weights.h"

#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#include "base/memory.h"
#include "base/system.h"
#include "exec/weight_slices.h"
#include "quant/int4.h"

/* Small enough for a core's cache: what was read is packed from there, and the kernel's copy into
 * it does not go to memory. */
#define STAGING_BYTES ((int64_t)512 << 10)

/* One slice on its way from the checkpoint to its place. */
struct load_task {
    struct weight_slice slice;
    int64_t slab;
    uint64_t offset; /* in its slab */
};

struct loader {
    struct weights *weights;
    const struct checkpoint *checkpoint;
    const struct model_config *config;
    struct load_task *tasks;
    size_t task_count, task_capacity;
    uint64_t *slab_bytes;
    int64_t staging_bytes; /* of each half */
    const struct weights_progress *progress;
    atomic_uint_fast64_t bytes_done;
    atomic_size_t next_task;
    atomic_int failed;
    struct load_worker *workers;
};

struct load_worker {
    char *staging; /* [2][staging_bytes]: as on disk, then in the target type (int4: f32) */
    enum status status;
    struct error error;
};

/* ---- Where each weight is found ------------------------------------------------------------- */

#define NOWHERE ((size_t)-1)

/* The offset of a per-layer weight's pointer or matrix in struct layer_weights. */
static size_t layer_offset(enum weight weight)
{
    switch (weight) {
    case WEIGHT_INPUT_NORM:
        return offsetof(struct layer_weights, input_norm);
    case WEIGHT_Q:
        return offsetof(struct layer_weights, q);
    case WEIGHT_K:
        return offsetof(struct layer_weights, k);
    case WEIGHT_V:
        return offsetof(struct layer_weights, v);
    case WEIGHT_O:
        return offsetof(struct layer_weights, o);
    case WEIGHT_Q_BIAS:
        return offsetof(struct layer_weights, q_bias);
    case WEIGHT_K_BIAS:
        return offsetof(struct layer_weights, k_bias);
    case WEIGHT_V_BIAS:
        return offsetof(struct layer_weights, v_bias);
    case WEIGHT_O_BIAS:
        return offsetof(struct layer_weights, o_bias);
    case WEIGHT_Q_NORM:
        return offsetof(struct layer_weights, q_norm);
    case WEIGHT_K_NORM:
        return offsetof(struct layer_weights, k_norm);
    case WEIGHT_FFN_NORM:
        return offsetof(struct layer_weights, ffn_norm);
    case WEIGHT_ROUTER:
        return offsetof(struct layer_weights, router);
    case WEIGHT_SHARED_GATE:
        return offsetof(struct layer_weights, shared.gate);
    case WEIGHT_SHARED_UP:
        return offsetof(struct layer_weights, shared.up);
    case WEIGHT_SHARED_DOWN:
        return offsetof(struct layer_weights, shared.down);
    case WEIGHT_SHARED_SIGMOID:
        return offsetof(struct layer_weights, shared_sigmoid);
    case WEIGHT_DENSE_GATE:
        return offsetof(struct layer_weights, dense.gate);
    case WEIGHT_DENSE_UP:
        return offsetof(struct layer_weights, dense.up);
    case WEIGHT_DENSE_DOWN:
        return offsetof(struct layer_weights, dense.down);
    default:
        return NOWHERE;
    }
}

/* Where the vector's pointer or the matrix of a slice stands. */
static void *target_of(struct weights *weights, const struct weight_slice *slice)
{
    struct layer_weights *layer = &weights->layers[slice->layer];
    switch (slice->weight) {
    case WEIGHT_EMBEDDING:
        return &weights->embedding;
    case WEIGHT_HEAD:
        return &weights->head;
    case WEIGHT_FINAL_NORM:
        return &weights->final_norm;
    case WEIGHT_EXPERT_GATE:
        return &layer->experts[slice->local_expert].gate;
    case WEIGHT_EXPERT_UP:
        return &layer->experts[slice->local_expert].up;
    case WEIGHT_EXPERT_DOWN:
        return &layer->experts[slice->local_expert].down;
    default:
        break;
    }
    size_t offset = layer_offset(slice->weight);
    ASSERT(offset != NOWHERE);
    return (char *)layer + offset;
}

/* Rows that are read and packed together are a multiple of it, or all. int4 needs it; other types
 * are packed a tile at a time. */
static int64_t row_step(const struct weight_slice *slice)
{
    if (slice->is_vector)
        return 1;
    return slice->dtype == DTYPE_INT4 && slice->packing == PACK_INPUT ? INT4_GROUP : PACK_BLOCK;
}

/* Rows that are read at a time into STAGING_BYTES; at least what is packed together. */
static int64_t rows_per_read(const struct weight_slice *slice)
{
    int64_t row_bytes = slice->block.column_count * (int64_t)sizeof(float);
    int64_t step = row_step(slice), fitting = STAGING_BYTES / row_bytes / step * step;
    fitting = fitting < step ? step : fitting;
    return slice->block.row_count < fitting ? slice->block.row_count : fitting;
}

static int64_t staging_of(const struct weight_slice *slice)
{
    return rows_per_read(slice) * slice->block.column_count * (int64_t)sizeof(float);
}

static enum status check_int4(const struct weight_slice *slice, struct error *err)
{
    const struct block *block = &slice->block;
    if (slice->dtype != DTYPE_INT4 ||
        (block->row_count % PACK_BLOCK == 0 && block->column_count % PACK_BLOCK == 0))
        return STATUS_OK;
    return error_set(err, STATUS_UNSUPPORTED,
                     "int4 experts need a hidden size and a width on each rank that are multiples "
                     "of %d; a matrix here is %lld x %lld; another plan cuts it less, and "
                     "--expert-dtype auto runs it as it is",
                     PACK_BLOCK, (long long)block->row_count, (long long)block->column_count);
}

static enum status task_add(void *context, const struct weight_slice *slice, struct error *err)
{
    struct loader *loader = context;
    TRY(check_int4(slice, err));
    int64_t staging = staging_of(slice);
    loader->staging_bytes = staging > loader->staging_bytes ? staging : loader->staging_bytes;
    struct load_task task = {.slice = *slice,
                             .slab = weight_is_expert(slice->weight) ? 1 + slice->layer : 0};
    task.offset = loader->slab_bytes[task.slab];
    loader->slab_bytes[task.slab] += (uint64_t)round_up((int64_t)slice->bytes, 64);
    TRY(memory_reserve(&loader->tasks, &loader->task_capacity, loader->task_count + 1, sizeof task,
                       "the list of weights", err));
    loader->tasks[loader->task_count++] = task;
    return STATUS_OK;
}

/* ---- Memory -------------------------------------------------------------------------------- */

static enum status tables_get(struct loader *loader, struct error *err)
{
    struct weights *weights = loader->weights;
    const struct model_config *config = loader->config;
    size_t layers = (size_t)config->layer_count;
    weights->slab_count = 1 + config->layer_count;
    TRY(memory_get((void **)&weights->layers, layers, sizeof *weights->layers, "the layer table",
                   err));
    TRY(memory_get((void **)&weights->all_experts, layers * (size_t)weights->expert_count,
                   sizeof *weights->all_experts, "the expert table", err));
    TRY(memory_get((void **)&weights->slabs, layers + 1, sizeof *weights->slabs, "the slab table",
                   err));
    for (int64_t layer = 0; layer < config->layer_count; layer++)
        weights->layers[layer].experts = weights->all_experts + layer * weights->expert_count;
    return memory_get((void **)&loader->slab_bytes, layers + 1, sizeof *loader->slab_bytes,
                      "the slab table", err);
}

static enum status slabs_get(struct loader *loader, struct error *err)
{
    struct weights *weights = loader->weights;
    weights->resident_bytes = loader->slab_bytes[0];
    for (int64_t s = 1; s < weights->slab_count; s++)
        weights->expert_bytes += loader->slab_bytes[s];
    for (int64_t s = 0; s < weights->slab_count; s++) {
        if (loader->slab_bytes[s] > 0)
            TRY(weights->device->ops->memory_get(weights->device, &weights->slabs[s],
                                                 loader->slab_bytes[s], "weights", err));
    }
    return STATUS_OK;
}

static char *place_of(const struct loader *loader, const struct load_task *task)
{
    return (char *)loader->weights->slabs[task->slab] + task->offset;
}

static struct matrix matrix_of(const struct weight_slice *slice, char *place)
{
    struct matrix matrix = {.data = place,
                            .dtype = slice->dtype,
                            .packing = slice->packing,
                            .rows = slice->block.row_count,
                            .columns = slice->block.column_count};
    if (slice->dtype == DTYPE_INT4) {
        matrix.scales =
            (const uint16_t *)(place + packed_bytes(matrix.rows, matrix.columns, DTYPE_INT4));
        matrix.group = INT4_GROUP;
    }
    return matrix;
}

static void targets_set(struct loader *loader)
{
    for (size_t i = 0; i < loader->task_count; i++) {
        const struct load_task *task = &loader->tasks[i];
        void *target = target_of(loader->weights, &task->slice);
        if (task->slice.is_vector)
            *(const float **)target = (const float *)place_of(loader, task);
        else
            *(struct matrix *)target = matrix_of(&task->slice, place_of(loader, task));
    }
    if (loader->config->tied_embedding)
        loader->weights->head = loader->weights->embedding;
}

/* ---- Reading ------------------------------------------------------------------------------- */

static uint64_t bytes_on_disk(const struct weight_location *where, int64_t values)
{
    return (uint64_t)values * (where->tensor->dtype == TENSOR_F32 ? 4 : 2);
}

static enum status locate(struct weight_location *out, const struct loader *loader,
                          const struct load_task *task, struct error *err)
{
    return checkpoint_locate(out, loader->checkpoint, task->slice.weight, task->slice.layer,
                             task->slice.expert, err);
}

struct disk_count {
    const struct checkpoint *checkpoint;
    uint64_t bytes;
};

static enum status count_on_disk(void *context, const struct weight_slice *slice, struct error *err)
{
    struct disk_count *count = context;
    struct weight_location where;
    TRY(checkpoint_locate(&where, count->checkpoint, slice->weight, slice->layer, slice->expert,
                          err));
    count->bytes += bytes_on_disk(&where, slice->block.row_count * slice->block.column_count);
    return STATUS_OK;
}

enum status weights_bytes_on_disk(uint64_t *out, const struct checkpoint *checkpoint,
                                  const struct layout *layout, int rank, struct error *err)
{
    struct disk_count count = {.checkpoint = checkpoint};
    const struct weight_types any = {DTYPE_F32, DTYPE_F32};
    TRY(weight_slices_each(checkpoint_config(checkpoint), layout, rank, &any, count_on_disk, &count,
                           err));
    *out = count.bytes;
    return STATUS_OK;
}

static void report_progress(struct loader *loader, uint64_t bytes)
{
    uint64_t done = atomic_fetch_add(&loader->bytes_done, bytes) + bytes;
    if (loader->progress->report != NULL)
        loader->progress->report(loader->progress->context, done);
}

/* Rows of a matrix that were read, from `row` on, to their place. */
static enum status pack_rows(const struct weight_slice *slice, char *place, const void *values,
                             int64_t row, int64_t row_count, const struct weight_location *where,
                             struct error *err)
{
    int64_t rows = slice->block.row_count, columns = slice->block.column_count;
    int64_t bad_row, bad_column;
    if (slice->dtype != DTYPE_INT4) {
        matrix_pack_rows(place, slice->packing, slice->dtype, rows, columns, values, row,
                         row_count);
        return STATUS_OK;
    }
    const struct int4_target target = {
        .data = (uint8_t *)place,
        .scales = (uint16_t *)(place + packed_bytes(rows, columns, DTYPE_INT4)),
        .packing = slice->packing,
        .rows = rows,
        .columns = columns,
        .group = INT4_GROUP,
    };
    if (int4_pack_rows(&target, values, row, row_count, &bad_row, &bad_column))
        return STATUS_OK;
    return error_set(
        err, STATUS_FORMAT,
        "tensor %s: the weight at row %lld, column %lld of expert %lld is none that int4 "
        "can hold (not a number, or beyond 1e15); --expert-dtype auto runs it as it is",
        where->tensor->name, (long long)(slice->block.row + bad_row),
        (long long)(slice->block.column + bad_column), (long long)slice->expert);
}

/* Bytes of its place that no weight is written to. A matrix without any is not zeroed: that would
 * be one more pass over most of the memory. */
static bool has_padding(const struct weight_slice *slice)
{
    const struct block *block = &slice->block;
    return slice->is_vector || block->row_count % PACK_BLOCK != 0 ||
           block->column_count % PACK_BLOCK != 0;
}

static enum status task_run(struct loader *loader, const struct load_task *task, int worker,
                            struct error *err)
{
    const struct weight_slice *slice = &task->slice;
    char *staging = loader->workers[worker].staging;
    char *place = place_of(loader, task);
    enum dtype dtype = slice->dtype == DTYPE_INT4 ? DTYPE_F32 : slice->dtype;
    if (has_padding(slice))
        memset(place, 0, slice->bytes);
    struct weight_location where;
    TRY(locate(&where, loader, task, err));
    int64_t step = rows_per_read(slice);
    for (int64_t row = 0; row < slice->block.row_count; row += step) {
        struct block part = slice->block;
        part.row += row;
        part.row_count = part.row_count - row < step ? part.row_count - row : step;
        void *values = slice->is_vector ? place : staging + loader->staging_bytes;
        TRY(checkpoint_read_block(loader->checkpoint, &where, part, values, dtype, staging,
                                  (size_t)loader->staging_bytes, err));
        if (!slice->is_vector)
            TRY(pack_rows(slice, place, values, row, part.row_count, &where, err));
        report_progress(loader, bytes_on_disk(&where, part.row_count * part.column_count));
    }
    return STATUS_OK;
}

static void load_work(void *context, int index)
{
    struct loader *loader = context;
    struct load_worker *worker = &loader->workers[index];
    size_t i;
    while (!atomic_load(&loader->failed) &&
           (i = atomic_fetch_add(&loader->next_task, 1)) < loader->task_count) {
        worker->status = task_run(loader, &loader->tasks[i], index, &worker->error);
        if (worker->status != STATUS_OK)
            atomic_store(&loader->failed, 1);
    }
}

static enum status read_all(struct loader *loader, struct error *err)
{
    struct device *device = loader->weights->device;
    int worker_count = device->ops->host_workers(device);
    TRY(memory_get((void **)&loader->workers, (size_t)worker_count, sizeof *loader->workers,
                   "the loading workers", err));
    for (int w = 0; w < worker_count; w++)
        TRY(memory_get_raw((void **)&loader->workers[w].staging, 2, (size_t)loader->staging_bytes,
                           "loading", err));
    device->ops->host_run(device, load_work, loader);
    for (int w = 0; w < worker_count; w++) {
        if (loader->workers[w].status != STATUS_OK) {
            if (err != NULL)
                *err = loader->workers[w].error;
            return loader->workers[w].status;
        }
    }
    loader->weights->bytes_read = atomic_load(&loader->bytes_done);
    return STATUS_OK;
}

static void loader_deinit(struct loader *loader)
{
    int worker_count = loader->weights->device->ops->host_workers(loader->weights->device);
    for (int w = 0; loader->workers != NULL && w < worker_count; w++)
        memory_free(loader->workers[w].staging);
    memory_free(loader->workers);
    memory_free(loader->tasks);
    memory_free(loader->slab_bytes);
}

enum status weights_load(struct weights *out, struct device *device,
                         const struct checkpoint *checkpoint, const struct layout *layout, int rank,
                         const struct weight_types *types, const struct weights_progress *progress,
                         struct error *err)
{
    const struct model_config *config = checkpoint_config(checkpoint);
    struct model_shape shape = weights_shape(config);
    struct weights weights = {.types = *types,
                              .device = device,
                              .vocab = layout_vocab(&shape, layout->rank_count, rank),
                              .expert_count = weight_slices_expert_count(config, layout, rank)};
    struct loader loader = {
        .weights = &weights, .checkpoint = checkpoint, .config = config, .progress = progress};
    enum status status;
    TRY_GOTO(tables_get(&loader, err), done);
    TRY_GOTO(weight_slices_each(config, layout, rank, types, task_add, &loader, err), done);
    TRY_GOTO(slabs_get(&loader, err), done);
    targets_set(&loader);
    TRY_GOTO(read_all(&loader, err), done);
    *out = weights;

done:
    loader_deinit(&loader);
    if (status != STATUS_OK)
        weights_deinit(&weights);
    return status;
}

void weights_deinit(struct weights *weights)
{
    for (int64_t s = 0; weights->slabs != NULL && s < weights->slab_count; s++)
        weights->device->ops->memory_free(weights->device, weights->slabs[s]);
    memory_free(weights->slabs);
    memory_free(weights->all_experts);
    memory_free(weights->layers);
    *weights = (struct weights){0};
}
