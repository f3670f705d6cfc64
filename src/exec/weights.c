#include "exec/weights.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#include "base/memory.h"
#include "base/system.h"
#include "exec/weight_slices.h"
#include "exec/weights_image.h"
#include "store/packed_read.h"

/* The disk is asked for so much more than has been read, in the order of the list and in requests
 * of so much at most: it reads while the workers pack, and many requests at a time are what a disk
 * is fast with. Smaller requests take the workers' time: at 128 KiB a disk of 3 GB/s loads at 0.93
 * of the rate. */
#define AHEAD_BYTES   ((uint64_t)64 << 20)
#define REQUEST_BYTES ((int64_t)512 << 10)

/* What a worker takes at a time, of a slice that can be taken in parts: so none has a head alone
 * while the others have nothing left to do. */
#define PART_BYTES ((int64_t)4 << 20)

/* One slice on its way from the checkpoint to its place. */
struct load_task {
    struct weight_slice slice;
    uint64_t offset; /* in the slab; not of experts, which have slots */
};

/* Some rows of a slice, for one worker. */
struct load_part {
    size_t task;
    int64_t row, row_count;
};

/* Up to where workers have taken parts. */
struct taken {
    pthread_mutex_t lock;
    size_t task;
    int64_t row; /* of the task's slice */
};

/* Up to where the disk was asked. */
struct ahead {
    pthread_mutex_t lock;
    size_t task;
    int64_t row;    /* of the task's slice */
    uint64_t bytes; /* of all before, those in the page cache and parts of rows included */
};

struct loader {
    struct weights *weights;
    const struct checkpoint *checkpoint;
    const struct model_config *config;
    struct load_task *tasks;
    size_t task_count, task_capacity;
    struct packed_room room; /* of each worker */
    const struct weights_progress *progress;
    atomic_uint_fast64_t bytes_done;
    struct taken taken;
    struct ahead ahead;
    atomic_int failed;
    struct load_worker *workers;
};

struct load_worker {
    struct packed_staging staging;
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
    default:
        break;
    }
    size_t offset = layer_offset(slice->weight);
    ASSERT(offset != NOWHERE);
    return (char *)layer + offset;
}

/* A slice as packed_read takes it, but for its place. */
static struct packed_block block_of(const struct weight_slice *slice)
{
    return (struct packed_block){
        .weight = slice->weight,
        .layer = slice->layer,
        .expert = slice->expert,
        .block = slice->block,
        .is_vector = slice->is_vector,
        .packing = slice->packing,
        .dtype = slice->dtype,
    };
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
    struct packed_block block = block_of(slice);
    packed_room_add(&loader->room, &block);
    struct load_task task = {.slice = *slice, .offset = loader->weights->resident_bytes};
    if (!weight_is_expert(slice->weight))
        loader->weights->resident_bytes += (uint64_t)round_up((int64_t)slice->bytes, 64);
    TRY(memory_reserve(&loader->tasks, &loader->task_capacity, loader->task_count + 1, sizeof task,
                       "the list of weights", err));
    loader->tasks[loader->task_count++] = task;
    return STATUS_OK;
}

/* ---- Memory -------------------------------------------------------------------------------- */

static enum status memory_take(struct loader *loader, const struct weights_share *share,
                               struct error *err)
{
    struct weights *weights = loader->weights;
    struct expert_slots_params slots;
    struct model_shape shape;
    bool has_experts[MODEL_LAYERS_MAX];
    TRY(memory_get((void **)&weights->layers, (size_t)loader->config->layer_count,
                   sizeof *weights->layers, "the layer table", err));
    TRY(weights->device->ops->memory_get(weights->device, &weights->slab, weights->resident_bytes,
                                         "weights", err));
    weight_slices_slots(&slots, &shape, has_experts, loader->config, share);
    TRY(expert_slots_init(&weights->experts, weights->device, &slots, err));
    weights->expert_bytes = weights->experts.bytes;
    return STATUS_OK;
}

static char *place_of(const struct loader *loader, const struct load_task *task)
{
    return (char *)loader->weights->slab + task->offset;
}

static struct matrix matrix_of(const struct weight_slice *slice, const char *place)
{
    return (struct matrix){.data = place,
                           .dtype = slice->dtype,
                           .packing = slice->packing,
                           .rows = slice->block.row_count,
                           .columns = slice->block.column_count};
}

static const char *matrix_end(const struct matrix *matrix)
{
    return (const char *)matrix->data + matrix_bytes(matrix);
}

/* One product for the three: slices are placed in the order of enum weight. */
static void qkv_set(struct layer_weights *layer)
{
    ASSERT(layer->k.data == matrix_end(&layer->q) && layer->v.data == matrix_end(&layer->k));
    layer->qkv = layer->q;
    layer->qkv.rows = round_up(layer->q.rows, PACK_BLOCK) + 2 * round_up(layer->k.rows, PACK_BLOCK);
    const float *q_bias = layer->q_bias, *k_bias = layer->k_bias;
    ASSERT(q_bias == NULL || k_bias == q_bias + round_up(layer->q.rows, PACK_BLOCK));
    ASSERT(q_bias == NULL || layer->v_bias == k_bias + round_up(layer->k.rows, PACK_BLOCK));
}

static void targets_set(struct loader *loader)
{
    for (size_t i = 0; i < loader->task_count; i++) {
        const struct load_task *task = &loader->tasks[i];
        if (weight_is_expert(task->slice.weight))
            continue; /* the slots have them */
        void *target = target_of(loader->weights, &task->slice);
        if (task->slice.is_vector)
            *(const float **)target = (const float *)place_of(loader, task);
        else
            *(struct matrix *)target = matrix_of(&task->slice, place_of(loader, task));
    }
    for (int64_t i = 0; i < loader->config->layer_count; i++)
        qkv_set(&loader->weights->layers[i]);
    if (loader->config->tied_embedding)
        loader->weights->head = loader->weights->embedding;
}

/* ---- Reading ------------------------------------------------------------------------------- */

static uint64_t bytes_on_disk(const struct weight_location *where, int64_t values)
{
    return (uint64_t)values * (where->tensor->dtype == TENSOR_F32 ? 4 : 2);
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

/* Asks for some rows of a task, but not where they are in the page cache, and not where rows are
 * read in parts: all of them would be more than what is read. False when a location is wrong, which
 * whoever reads it says. */
static bool ahead_step(struct ahead *ahead, const struct loader *loader)
{
    const struct weight_slice *slice = &loader->tasks[ahead->task].slice;
    const struct block *block = &slice->block;
    struct weight_location where;
    if (checkpoint_locate(&where, loader->checkpoint, slice->weight, slice->layer, slice->expert,
                          NULL) != STATUS_OK)
        return false;
    bool in_parts = block->column_count < where.column_count;
    int64_t row_bytes = (int64_t)bytes_on_disk(&where, block->column_count);
    int64_t rows = REQUEST_BYTES / row_bytes > 1 ? REQUEST_BYTES / row_bytes : 1;
    int64_t left = block->row_count - ahead->row, row = block->row + ahead->row;
    rows = in_parts || rows > left ? left : rows;
    /* Where it ends, because where it begins may be the end of what was read before. */
    if (!in_parts && !checkpoint_is_cached(loader->checkpoint, &where, row + rows - 1))
        checkpoint_read_ahead(loader->checkpoint, &where, row, rows);
    ahead->bytes += (uint64_t)(rows * row_bytes);
    ahead->row += rows;
    if (rows == left) {
        ahead->task++;
        ahead->row = 0;
    }
    return true;
}

/* Goes on until AHEAD_BYTES more are asked for than are done; one worker at a time does so. */
static void read_ahead(struct loader *loader)
{
    struct ahead *ahead = &loader->ahead;
    if (pthread_mutex_trylock(&ahead->lock) != 0)
        return;
    while (ahead->task < loader->task_count &&
           ahead->bytes < atomic_load(&loader->bytes_done) + AHEAD_BYTES) {
        if (!ahead_step(ahead, loader))
            ahead->task = loader->task_count;
    }
    pthread_mutex_unlock(&ahead->lock);
}

static enum status report_progress(void *context, uint64_t bytes, struct error *err)
{
    struct loader *loader = context;
    const struct weights_progress *progress = loader->progress;
    uint64_t done = atomic_fetch_add(&loader->bytes_done, bytes) + bytes;
    read_ahead(loader);
    return progress->report == NULL ? STATUS_OK : progress->report(progress->context, done, err);
}

static void place_set(struct packed_block *block, const struct loader *loader,
                      const struct load_task *task)
{
    const struct weight_slice *slice = &task->slice;
    if (!weight_is_expert(slice->weight)) {
        block->place = place_of(loader, task);
        return;
    }
    const struct expert_slots *slots = &loader->weights->experts;
    struct matrix matrix =
        expert_form_matrix(&slots->forms[PHASE_PREFILL], expert_slots_now(slots, slice->layer),
                           slice->local_expert, (int)slice->weight - WEIGHT_EXPERT_GATE);
    block->place = (void *)matrix.data;
    block->scales = (uint16_t *)matrix.scales;
}

/* Rows of a slice that one worker takes: some where they are one range of its place, else all. */
static int64_t rows_per_part(const struct weight_slice *slice)
{
    const struct block *block = &slice->block;
    if (slice->is_vector || slice->packing != PACK_OUTPUT || slice->dtype == DTYPE_INT4)
        return block->row_count;
    int64_t rows = PART_BYTES / packed_bytes(PACK_BLOCK, block->column_count, slice->dtype);
    rows = rows < 1 ? PACK_BLOCK : rows * PACK_BLOCK;
    return rows < block->row_count ? rows : block->row_count;
}

/* False when there is none left. */
static bool part_take(struct load_part *out, struct loader *loader)
{
    struct taken *taken = &loader->taken;
    pthread_mutex_lock(&taken->lock);
    bool is_left = taken->task < loader->task_count;
    if (is_left) {
        const struct weight_slice *slice = &loader->tasks[taken->task].slice;
        int64_t left = slice->block.row_count - taken->row, rows = rows_per_part(slice);
        *out = (struct load_part){taken->task, taken->row, rows < left ? rows : left};
        taken->row += out->row_count;
        if (out->row_count == left) {
            taken->task++;
            taken->row = 0;
        }
    }
    pthread_mutex_unlock(&taken->lock);
    return is_left;
}

static enum status part_run(struct loader *loader, const struct load_part *part, int worker,
                            struct error *err)
{
    const struct load_task *task = &loader->tasks[part->task];
    struct packed_block block = block_of(&task->slice);
    const struct packed_read_progress progress = {.report = report_progress, .context = loader};
    place_set(&block, loader, task);
    if (part->row > 0)
        block.place =
            (char *)block.place + packed_bytes(part->row, block.block.column_count, block.dtype);
    block.block.row += part->row;
    block.block.row_count = part->row_count;
    return packed_read(loader->checkpoint, &block, &loader->workers[worker].staging, &progress,
                       err);
}

static void load_work(void *context, int index)
{
    struct loader *loader = context;
    struct load_worker *worker = &loader->workers[index];
    struct load_part part;
    while (!atomic_load(&loader->failed) && part_take(&part, loader)) {
        worker->status = part_run(loader, &part, index, &worker->error);
        if (worker->status != STATUS_OK)
            atomic_store(&loader->failed, 1);
    }
}

static enum status read_all(struct loader *loader, struct error *err)
{
    struct device *device = loader->weights->device;
    int worker_count = device->ops->host_workers(device);
    read_ahead(loader);
    TRY(memory_get((void **)&loader->workers, (size_t)worker_count, sizeof *loader->workers,
                   "the loading workers", err));
    for (int w = 0; w < worker_count; w++)
        TRY(packed_staging_init(&loader->workers[w].staging, device, &loader->room, err));
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

static enum status map_image(struct loader *loader, const struct weights_share *share,
                             struct error *err)
{
    uint64_t bytes;
    if (share->image == NULL)
        return STATUS_OK;
    TRY(weights_bytes_on_disk(&bytes, loader->checkpoint, &share->layouts.of[PHASE_PREFILL],
                              share->rank, err));
    return weights_image_map(loader->weights, share->image, bytes, loader->progress, err);
}

static void loader_deinit(struct loader *loader)
{
    int worker_count = loader->weights->device->ops->host_workers(loader->weights->device);
    for (int w = 0; loader->workers != NULL && w < worker_count; w++)
        packed_staging_deinit(&loader->workers[w].staging);
    memory_free(loader->workers);
    memory_free(loader->tasks);
    pthread_mutex_destroy(&loader->ahead.lock);
    pthread_mutex_destroy(&loader->taken.lock);
}

enum status weights_load(struct weights *out, struct device *device,
                         const struct checkpoint *checkpoint, const struct weights_share *share,
                         const struct weights_progress *progress, struct error *err)
{
    const struct model_config *config = checkpoint_config(checkpoint);
    const struct layout *layout = &share->layouts.of[PHASE_PREFILL];
    struct model_shape shape = weights_shape(config);
    struct weights weights = {.types = share->types,
                              .device = device,
                              .vocab = layout_vocab(&shape, layout->rank_count, share->rank)};
    struct loader loader = {
        .weights = &weights,
        .checkpoint = checkpoint,
        .config = config,
        .progress = progress,
        .taken = {.lock = PTHREAD_MUTEX_INITIALIZER},
        .ahead = {.lock = PTHREAD_MUTEX_INITIALIZER},
    };
    enum status status;
    TRY_GOTO(weight_slices_each(config, layout, share->rank, &share->types, task_add, &loader, err),
             done);
    TRY_GOTO(memory_take(&loader, share, err), done);
    targets_set(&loader);
    TRY_GOTO(map_image(&loader, share, err), done);
    if (!weights.is_mapped)
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
    expert_slots_deinit(&weights->experts);
    if (weights->slab != NULL)
        weights->device->ops->memory_free(weights->device, weights->slab);
    memory_free(weights->layers);
    *weights = (struct weights){0};
}
