#include "exec/weights.h"

#include <stdatomic.h>
#include <string.h>

#include "base/memory.h"
#include "base/system.h"

#define STAGING_BYTES (4u << 20)

/* One weight on its way from the checkpoint to its place. */
struct load_task {
    enum weight weight;
    int64_t layer, expert;
    int64_t slab;
    uint64_t offset; /* in its slab */
    uint64_t bytes;  /* there, padding included */
    int64_t rows, columns;
    bool is_vector; /* f32, whatever the matrices are */
    enum packing packing;
    enum dtype dtype;
    union {
        const float **vector;
        struct matrix *matrix;
    } target; /* set when the slab has its address */
};

struct loader {
    struct weights *weights;
    const struct checkpoint *checkpoint;
    const struct model_config *config;
    struct load_task *tasks;
    size_t task_count, task_capacity;
    uint64_t *slab_bytes;
    const struct weights_progress *progress;
    uint64_t bytes_total; /* on disk */
    atomic_uint_fast64_t bytes_done;
    atomic_size_t next_task;
    atomic_int failed;
    struct load_worker *workers;
};

struct load_worker {
    void *staging; /* [2][STAGING_BYTES]: as on disk, then in the target type */
    enum status status;
    struct error error;
};

/* ---- Which weights there are, and where they go -------------------------------------------- */

static enum status task_add(struct loader *loader, struct load_task task, struct error *err)
{
    if (!weight_is_present(loader->config, task.weight, task.layer))
        return STATUS_OK;
    int64_t shape[3];
    int rank = weight_shape(shape, loader->config, task.weight);
    task.is_vector = rank == 1 || task.weight == WEIGHT_SHARED_SIGMOID;
    task.rows = task.is_vector ? 1 : shape[0];
    task.columns = shape[rank - 1];
    ASSERT(task.columns <= (int64_t)(STAGING_BYTES / sizeof(float))); /* config.c limits widths */
    task.bytes = (uint64_t)(task.is_vector ? round_up(task.columns, PACK_BLOCK) * 4
                                           : packed_bytes(task.rows, task.columns, task.dtype));
    task.offset = loader->slab_bytes[task.slab];
    loader->slab_bytes[task.slab] += (uint64_t)round_up((int64_t)task.bytes, 64);
    TRY(memory_reserve(&loader->tasks, &loader->task_capacity, loader->task_count + 1, sizeof task,
                       "the list of weights", err));
    loader->tasks[loader->task_count++] = task;
    return STATUS_OK;
}

static enum status add_matrix(struct loader *loader, struct matrix *target, enum weight weight,
                              int64_t layer, struct error *err)
{
    /* The router decides between experts: it keeps full precision (it is tiny). */
    enum dtype dtype = weight == WEIGHT_ROUTER ? DTYPE_F32 : loader->weights->dtype;
    return task_add(loader,
                    (struct load_task){.weight = weight,
                                       .layer = layer,
                                       .dtype = dtype,
                                       .packing = PACK_OUTPUT,
                                       .target.matrix = target},
                    err);
}

static enum status add_vector(struct loader *loader, const float **target, enum weight weight,
                              int64_t layer, struct error *err)
{
    return task_add(
        loader,
        (struct load_task){
            .weight = weight, .layer = layer, .dtype = DTYPE_F32, .target.vector = target},
        err);
}

static enum status add_ffn(struct loader *loader, struct ffn_weights *target, enum weight gate,
                           int64_t layer, int64_t expert, int64_t slab, struct error *err)
{
    /* gate, up and down follow one another in enum weight for all three kinds of network. */
    struct matrix *matrices[3] = {&target->gate, &target->up, &target->down};
    for (int i = 0; i < 3; i++) {
        struct load_task task = {.weight = (enum weight)(gate + i),
                                 .layer = layer,
                                 .expert = expert,
                                 .slab = slab,
                                 .dtype = loader->weights->dtype,
                                 .packing = i < 2 ? PACK_OUTPUT : PACK_INPUT,
                                 .target.matrix = matrices[i]};
        TRY(task_add(loader, task, err));
    }
    return STATUS_OK;
}

static enum status add_layer(struct loader *loader, int64_t index, struct error *err)
{
    struct layer_weights *layer = &loader->weights->layers[index];
    const struct {
        struct matrix *target;
        enum weight weight;
    } matrices[] = {
        {&layer->q, WEIGHT_Q}, {&layer->k, WEIGHT_K},           {&layer->v, WEIGHT_V},
        {&layer->o, WEIGHT_O}, {&layer->router, WEIGHT_ROUTER},
    };
    const struct {
        const float **target;
        enum weight weight;
    } vectors[] = {
        {&layer->input_norm, WEIGHT_INPUT_NORM},
        {&layer->ffn_norm, WEIGHT_FFN_NORM},
        {&layer->q_bias, WEIGHT_Q_BIAS},
        {&layer->k_bias, WEIGHT_K_BIAS},
        {&layer->v_bias, WEIGHT_V_BIAS},
        {&layer->o_bias, WEIGHT_O_BIAS},
        {&layer->q_norm, WEIGHT_Q_NORM},
        {&layer->k_norm, WEIGHT_K_NORM},
        {&layer->shared_sigmoid, WEIGHT_SHARED_SIGMOID},
    };
    for (size_t i = 0; i < sizeof matrices / sizeof matrices[0]; i++)
        TRY(add_matrix(loader, matrices[i].target, matrices[i].weight, index, err));
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++)
        TRY(add_vector(loader, vectors[i].target, vectors[i].weight, index, err));
    TRY(add_ffn(loader, &layer->shared, WEIGHT_SHARED_GATE, index, 0, 0, err));
    TRY(add_ffn(loader, &layer->dense, WEIGHT_DENSE_GATE, index, 0, 0, err));
    if (loader->config->layers[index].ffn != FFN_MOE)
        return STATUS_OK;
    layer->experts = loader->weights->all_experts + index * loader->config->expert_count;
    for (int64_t expert = 0; expert < loader->config->expert_count; expert++)
        TRY(add_ffn(loader, &layer->experts[expert], WEIGHT_EXPERT_GATE, index, expert, 1 + index,
                    err));
    return STATUS_OK;
}

static enum status add_model(struct loader *loader, struct error *err)
{
    struct weights *weights = loader->weights;
    TRY(add_matrix(loader, &weights->embedding, WEIGHT_EMBEDDING, 0, err));
    TRY(add_matrix(loader, &weights->head, WEIGHT_HEAD, 0, err));
    TRY(add_vector(loader, &weights->final_norm, WEIGHT_FINAL_NORM, 0, err));
    for (int64_t layer = 0; layer < loader->config->layer_count; layer++)
        TRY(add_layer(loader, layer, err));
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
    TRY(memory_get((void **)&weights->all_experts, layers * (size_t)config->expert_count,
                   sizeof *weights->all_experts, "the expert table", err));
    TRY(memory_get((void **)&weights->slabs, layers + 1, sizeof *weights->slabs, "the slab table",
                   err));
    return memory_get((void **)&loader->slab_bytes, layers + 1, sizeof *loader->slab_bytes,
                      "the slab table", err);
}

static enum status slabs_get(struct loader *loader, struct error *err)
{
    struct weights *weights = loader->weights;
    weights->resident_bytes = loader->slab_bytes[0];
    for (int64_t s = 1; s < weights->slab_count; s++)
        weights->expert_bytes += loader->slab_bytes[s];
    uint64_t total = weights->resident_bytes + weights->expert_bytes;
    uint64_t available = system_memory_available();
    if (total > available)
        return error_set(err, STATUS_NO_MEMORY,
                         "the weights need %llu MiB as %s, and %llu MiB of memory are available; "
                         "use a smaller model or free memory",
                         (unsigned long long)(total >> 20), dtype_name(weights->dtype),
                         (unsigned long long)(available >> 20));
    for (int64_t s = 0; s < weights->slab_count; s++) {
        if (loader->slab_bytes[s] > 0)
            TRY(weights->device->ops->memory_get(weights->device, &weights->slabs[s],
                                                 loader->slab_bytes[s], "weights", err));
    }
    return STATUS_OK;
}

static void targets_set(struct loader *loader)
{
    for (size_t i = 0; i < loader->task_count; i++) {
        struct load_task *task = &loader->tasks[i];
        char *place = (char *)loader->weights->slabs[task->slab] + task->offset;
        if (task->is_vector)
            *task->target.vector = (const float *)place;
        else
            *task->target.matrix = (struct matrix){.data = place,
                                                   .dtype = task->dtype,
                                                   .packing = task->packing,
                                                   .rows = task->rows,
                                                   .columns = task->columns};
    }
    if (loader->config->tied_embedding)
        loader->weights->head = loader->weights->embedding;
}

/* ---- Reading ------------------------------------------------------------------------------- */

static void report_progress(struct loader *loader, int worker, uint64_t bytes)
{
    uint64_t done = atomic_fetch_add(&loader->bytes_done, bytes) + bytes;
    if (worker == 0 && loader->progress->report != NULL)
        loader->progress->report(loader->progress->context, done, loader->bytes_total);
}

static enum status task_run(struct loader *loader, const struct load_task *task, int worker,
                            struct error *err)
{
    char *staging = loader->workers[worker].staging;
    char *place = (char *)loader->weights->slabs[task->slab] + task->offset;
    memset(place, 0, task->bytes);
    struct weight_location where;
    TRY(checkpoint_locate(&where, loader->checkpoint, task->weight, task->layer, task->expert,
                          err));
    int64_t rows_per_read = STAGING_BYTES / (task->columns * 4);
    for (int64_t row = 0; row < task->rows; row += rows_per_read) {
        int64_t count = task->rows - row < rows_per_read ? task->rows - row : rows_per_read;
        void *values = task->is_vector ? place : staging + STAGING_BYTES;
        TRY(checkpoint_read_rows(loader->checkpoint, &where, row, count, values, task->dtype,
                                 staging, STAGING_BYTES, err));
        if (!task->is_vector)
            matrix_pack_rows(place, task->packing, task->dtype, task->rows, task->columns, values,
                             row, count);
        report_progress(loader, worker,
                        (uint64_t)(count * task->columns) *
                            (where.tensor->dtype == TENSOR_F32 ? 4 : 2));
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
        TRY(memory_get_raw(&loader->workers[w].staging, 2, STAGING_BYTES, "loading", err));
    for (int64_t t = 0; t < checkpoint_tensor_count(loader->checkpoint); t++)
        loader->bytes_total += checkpoint_tensor(loader->checkpoint, t)->bytes;
    device->ops->host_run(device, load_work, loader);
    for (int w = 0; w < worker_count; w++) {
        if (loader->workers[w].status != STATUS_OK) {
            if (err != NULL)
                *err = loader->workers[w].error;
            return loader->workers[w].status;
        }
    }
    if (loader->progress->report != NULL)
        loader->progress->report(loader->progress->context, loader->bytes_total,
                                 loader->bytes_total);
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
                         const struct checkpoint *checkpoint, enum dtype dtype,
                         const struct weights_progress *progress, struct error *err)
{
    struct weights weights = {.dtype = dtype, .device = device};
    struct loader loader = {.weights = &weights,
                            .checkpoint = checkpoint,
                            .config = checkpoint_config(checkpoint),
                            .progress = progress};
    enum status status;
    TRY_GOTO(tables_get(&loader, err), done);
    TRY_GOTO(add_model(&loader, err), done);
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
