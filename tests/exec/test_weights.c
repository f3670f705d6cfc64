/* Loading: what is packed is what is on disk; every allocation that fails leaves nothing. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "model_runner.h"
#include "scenarios.h"

static const char *const models[] = {"mixtral",  "mixtral-tied",     "mixtral-fused",
                                     "qwen2moe", "qwen2moe-mlponly", "qwen3moe-bias"};
#define MODEL_COUNT (sizeof models / sizeof models[0])

/* ---- Values -------------------------------------------------------------------------------- */

static float packed_at(const struct matrix *matrix, int64_t row, int64_t column)
{
    int64_t at =
        packed_index(matrix->packing, matrix->dtype, matrix->rows, matrix->columns, row, column);
    return matrix->dtype == DTYPE_BF16 ? bf16_to_f32(((const uint16_t *)matrix->data)[at])
                                       : ((const float *)matrix->data)[at];
}

/* What padding there is, bit by bit: the sum of all magnitudes is that of the elements. */
static void check_padding(const struct matrix *matrix)
{
    double inside = 0, all = 0;
    for (int64_t r = 0; r < matrix->rows; r++) {
        for (int64_t c = 0; c < matrix->columns; c++)
            inside += packed_at(matrix, r, c) != 0;
    }
    for (int64_t i = 0; i < packed_count(matrix->rows, matrix->columns); i++)
        all += matrix->dtype == DTYPE_BF16 ? ((const uint16_t *)matrix->data)[i] << 1 != 0
                                           : ((const float *)matrix->data)[i] != 0;
    cr_assert_eq(inside, all, "padding is not zero");
}

struct disk {
    const struct checkpoint *checkpoint;
    int64_t layer;
};

static void check_matrix(const struct disk *disk, const struct matrix *matrix, enum weight weight,
                         int64_t expert, enum packing packing)
{
    struct weight_location where;
    struct error err;
    static char staging[1 << 16];
    static float row[4096];
    cr_assert_eq(checkpoint_locate(&where, disk->checkpoint, weight, disk->layer, expert, &err),
                 STATUS_OK);
    cr_assert_eq(matrix->rows, where.row_count);
    cr_assert_eq(matrix->columns, where.column_count);
    cr_assert_eq(matrix->packing, packing);
    for (int64_t r = 0; r < matrix->rows; r++) {
        cr_assert_eq(checkpoint_read_rows(disk->checkpoint, &where, r, 1, row, DTYPE_F32, staging,
                                          sizeof staging, &err),
                     STATUS_OK);
        for (int64_t c = 0; c < matrix->columns; c++) {
            float expected =
                matrix->dtype == DTYPE_BF16 ? bf16_to_f32(bf16_from_f32(row[c])) : row[c];
            cr_assert_eq(packed_at(matrix, r, c), expected, "weight %d, expert %lld", (int)weight,
                         (long long)expert);
        }
    }
    check_padding(matrix);
}

static void check_vector(const struct disk *disk, const float *vector, enum weight weight)
{
    const struct model_config *config = checkpoint_config(disk->checkpoint);
    struct weight_location where;
    struct error err;
    static char staging[1 << 16];
    static float row[4096];
    if (!weight_is_present(config, weight, disk->layer)) {
        cr_assert_null(vector);
        return;
    }
    cr_assert_eq(checkpoint_locate(&where, disk->checkpoint, weight, disk->layer, 0, &err),
                 STATUS_OK);
    cr_assert_eq(checkpoint_read_rows(disk->checkpoint, &where, 0, 1, row, DTYPE_F32, staging,
                                      sizeof staging, &err),
                 STATUS_OK);
    cr_assert_arr_eq(vector, row, (size_t)where.column_count * sizeof *row);
    for (int64_t i = where.column_count; i % 16 != 0; i++)
        cr_assert_eq(vector[i], 0);
}

static void check_ffn(const struct disk *disk, const struct ffn_weights *ffn, enum weight gate,
                      int64_t expert)
{
    if (!weight_is_present(checkpoint_config(disk->checkpoint), gate, disk->layer)) {
        cr_assert_null(ffn->gate.data);
        return;
    }
    check_matrix(disk, &ffn->gate, gate, expert, PACK_OUTPUT);
    check_matrix(disk, &ffn->up, gate + 1, expert, PACK_OUTPUT);
    check_matrix(disk, &ffn->down, gate + 2, expert, PACK_INPUT);
}

static void check_layer(const struct disk *disk, const struct weights *weights)
{
    const struct layer_weights *layer = &weights->layers[disk->layer];
    const struct ffn_weights *experts = weights->experts.layers[disk->layer].weights;
    const struct model_config *config = checkpoint_config(disk->checkpoint);
    check_matrix(disk, &layer->q, WEIGHT_Q, 0, PACK_OUTPUT);
    cr_assert_eq(layer->qkv.data, layer->q.data);
    cr_assert_eq((const char *)layer->qkv.data + matrix_bytes(&layer->qkv),
                 (const char *)layer->v.data + matrix_bytes(&layer->v));
    check_matrix(disk, &layer->k, WEIGHT_K, 0, PACK_OUTPUT);
    check_matrix(disk, &layer->v, WEIGHT_V, 0, PACK_OUTPUT);
    check_matrix(disk, &layer->o, WEIGHT_O, 0, PACK_OUTPUT);
    check_vector(disk, layer->input_norm, WEIGHT_INPUT_NORM);
    check_vector(disk, layer->ffn_norm, WEIGHT_FFN_NORM);
    check_vector(disk, layer->q_bias, WEIGHT_Q_BIAS);
    check_vector(disk, layer->o_bias, WEIGHT_O_BIAS);
    check_vector(disk, layer->k_norm, WEIGHT_K_NORM);
    check_vector(disk, layer->shared_sigmoid, WEIGHT_SHARED_SIGMOID);
    check_ffn(disk, &layer->shared, WEIGHT_SHARED_GATE, 0);
    check_ffn(disk, &layer->dense, WEIGHT_DENSE_GATE, 0);
    if (config->layers[disk->layer].ffn != FFN_MOE) {
        cr_assert_null(experts);
        return;
    }
    check_matrix(disk, &layer->router, WEIGHT_ROUTER, 0, PACK_OUTPUT);
    cr_assert_eq(layer->router.dtype, DTYPE_F32);
    for (int64_t expert = 0; expert < config->expert_count; expert++)
        check_ffn(disk, &experts[expert], WEIGHT_EXPERT_GATE, expert);
}

/* `of` says which and of what type. */
static void check_model(const struct runner_params *of)
{
    struct model_runner runner;
    struct runner_params params = *of;
    params.thread_count = 2;
    params.token_max = 8;
    params.page_count = 1;
    model_runner_open(&runner, &params);
    const struct model_config *config = runner.config;
    const struct weights *weights = &runner.weights[0];
    struct disk disk = {runner.checkpoint, 0};
    check_matrix(&disk, &weights->embedding, WEIGHT_EMBEDDING, 0, PACK_OUTPUT);
    if (config->tied_embedding)
        cr_assert_eq(weights->head.data, weights->embedding.data);
    else
        check_matrix(&disk, &weights->head, WEIGHT_HEAD, 0, PACK_OUTPUT);
    check_vector(&disk, weights->final_norm, WEIGHT_FINAL_NORM);
    for (disk.layer = 0; disk.layer < config->layer_count; disk.layer++)
        check_layer(&disk, weights);
    model_runner_close(&runner);
}

Test(weights, are_those_on_disk)
{
    for (size_t i = 0; i < MODEL_COUNT; i++) {
        check_model(&(struct runner_params){.name = models[i], .dtype = DTYPE_F32});
        check_model(&(struct runner_params){.name = models[i], .dtype = DTYPE_BF16});
    }
}

/* A head and an embedding of which a worker takes some 2,000 or 4,000 rows at a time; the last rows
 * fill no block. */
Test(weights, that_are_taken_in_parts, .fini = scenario_checkpoints_remove)
{
    const char *dir = scenario_checkpoint("mixtral-parts", DTYPE_BF16);
    check_model(&(struct runner_params){.dir = dir, .dtype = DTYPE_F32});
    check_model(&(struct runner_params){.dir = dir, .dtype = DTYPE_BF16});
}

/* ---- One rank ----------------------------------------------------------------------------------
 */

static struct device *device_of(int thread_count)
{
    struct cpu_share share = {.thread_count = thread_count, .first_cpu = -1};
    struct device *device;
    struct error err;
    cr_assert_eq(device_cpu_create(&device, &share, &err), STATUS_OK);
    test_device_warm(device);
    return device;
}

#define ALONE                                                                                      \
    {                                                                                              \
        .rank_count = 1, .attention = {.tp = 1, .dp = 1}, .experts = {.tp = 1, .ep = 1 }           \
    }
static const struct layout alone = ALONE;
static const struct weights_share f32 = {.layouts = {{ALONE, ALONE}},
                                         .types = {DTYPE_F32, DTYPE_F32}};
static const struct weights_share bf16 = {.layouts = {{ALONE, ALONE}},
                                          .types = {DTYPE_BF16, DTYPE_BF16}};

/* ---- Progress ------------------------------------------------------------------------------ */

struct progress_seen {
    uint64_t last, total, calls;
    uint64_t stop_at; /* this call; 0: none */
};

static enum status progress_see(void *context, uint64_t done, struct error *err)
{
    struct progress_seen *seen = context;
    cr_assert(done >= seen->last && done <= seen->total, "%llu after %llu of %llu",
              (unsigned long long)done, (unsigned long long)seen->last,
              (unsigned long long)seen->total);
    seen->last = done;
    seen->calls++;
    return seen->calls == seen->stop_at ? error_set(err, STATUS_CANCELLED, "stop") : STATUS_OK;
}

Test(weights, progress_rises_to_the_end)
{
    struct checkpoint *checkpoint = test_checkpoint_open("mixtral");
    struct progress_seen seen = {0};
    struct weights_progress progress = {.report = progress_see, .context = &seen};
    struct weights weights;
    struct error err;
    struct device *device = device_of(1);
    cr_assert_eq(weights_bytes_on_disk(&seen.total, checkpoint, &alone, 0, &err), STATUS_OK);
    cr_assert_eq(weights_load(&weights, device, checkpoint, &f32, &progress, &err), STATUS_OK);
    cr_assert_gt(seen.calls, 10);
    cr_assert_gt(seen.total, 0);
    cr_assert_eq(seen.last, seen.total);
    cr_assert_eq(weights.bytes_read, seen.total);
    weights_deinit(&weights);
    device_destroy(device);
    checkpoint_close(checkpoint);
}

/* Whoever is told may end it: then nobody is told any more, and nothing is kept. */
Test(weights, loading_may_be_stopped)
{
    struct checkpoint *checkpoint = test_checkpoint_open("mixtral");
    struct device *device = device_of(1);
    uint64_t live = memory_counters_get().live_count;
    for (uint64_t n = 1; n < 30; n += 4) {
        struct progress_seen seen = {.total = UINT64_MAX, .stop_at = n};
        struct weights_progress progress = {.report = progress_see, .context = &seen};
        struct weights weights;
        struct error err;
        cr_assert_eq(weights_load(&weights, device, checkpoint, &f32, &progress, &err),
                     STATUS_CANCELLED);
        cr_assert_str_eq(err.message, "stop");
        cr_assert_eq(seen.calls, n);
        cr_assert_eq(memory_counters_get().live_count, live);
    }
    device_destroy(device);
    checkpoint_close(checkpoint);
}

/* ---- Failures ------------------------------------------------------------------------------ */

static void sweep(const char *name, int thread_count, int sticky)
{
    struct checkpoint *checkpoint = test_checkpoint_open(name);
    struct weights_progress silent = {0};
    struct error err;
    struct device *device = device_of(thread_count);
    uint64_t live = memory_counters_get().live_count;
    struct weights weights, untouched;
    memset(&untouched, 0xA5, sizeof untouched);
    for (uint64_t n = 1;; n++) {
        memcpy(&weights, &untouched, sizeof weights);
        memory_fail_at(n, sticky);
        err.message[0] = 0;
        enum status status = weights_load(&weights, device, checkpoint, &bf16, &silent, &err);
        memory_fail_at(0, 0);
        if (status == STATUS_OK) {
            cr_assert_gt(n, 5, "only %llu allocations", (unsigned long long)n);
            break;
        }
        cr_assert_eq(status, STATUS_NO_MEMORY, "allocation %llu", (unsigned long long)n);
        cr_assert_neq(err.message[0], 0);
        cr_assert(memcmp(&weights, &untouched, sizeof weights) == 0);
        cr_assert_eq(memory_counters_get().live_count, live, "allocation %llu leaks",
                     (unsigned long long)n);
    }
    weights_deinit(&weights);
    cr_assert_eq(memory_counters_get().live_count, live);
    device_destroy(device);
    checkpoint_close(checkpoint);
}

Test(weights, every_failed_allocation_leaves_nothing)
{
    sweep("mixtral", 1, 0);
    sweep("mixtral", 3, 1);
    sweep("qwen2moe", 2, 0);
}

static void copy_file(const char *to_dir, const char *from_dir, const char *name)
{
    char path[1024], *bytes;
    size_t length;
    struct error err;
    snprintf(path, sizeof path, "%s/%s", from_dir, name);
    cr_assert_eq(file_read_whole(&bytes, &length, path, 64 << 20, &err), STATUS_OK);
    snprintf(path, sizeof path, "%s/%s", to_dir, name);
    FILE *file = fopen(path, "wb");
    cr_assert(file != NULL && fwrite(bytes, 1, length, file) == length && fclose(file) == 0);
    memory_free(bytes);
}

/* A file that shrinks between opening and reading: the sentence names it, nothing is left. */
Test(weights, a_file_that_shrinks)
{
    char dir[] = "/tmp/phasor-test-XXXXXX", path[128];
    struct checkpoint *checkpoint;
    struct weights_progress silent = {0};
    struct weights weights;
    struct error err;
    cr_assert_not_null(mkdtemp(dir));
    copy_file(dir, TEST_DATA "/models/mixtral", "config.json");
    copy_file(dir, TEST_DATA "/models/mixtral", "model.safetensors");
    cr_assert_eq(checkpoint_open(&checkpoint, dir, &err), STATUS_OK);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    cr_assert_eq(truncate(path, 100000), 0);
    struct device *device = device_of(2);
    uint64_t live = memory_counters_get().live_count;
    cr_assert_eq(weights_load(&weights, device, checkpoint, &f32, &silent, &err), STATUS_FORMAT);
    cr_assert_not_null(strstr(err.message, path), "%s", err.message);
    cr_assert_not_null(strstr(err.message, "ends at byte 100000"), "%s", err.message);
    cr_assert_eq(weights_load(&weights, device, checkpoint, &f32, &silent, NULL), STATUS_FORMAT);
    cr_assert_eq(memory_counters_get().live_count, live);
    device_destroy(device);
    checkpoint_close(checkpoint);
    unlink(path);
    snprintf(path, sizeof path, "%s/config.json", dir);
    unlink(path);
    rmdir(dir);
}
