/* Backups of small checkpoints: their content against the quantizer over whole matrices, the same
 * bytes from any number of threads, and what is refused. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backup_tools.h"
#include "base/memory.h"
#include "quant/backup_part.h"
#include "quant/int4.h"

static const char *const presets[] = {"tiny-mixtral", "tiny-qwen2moe", "tiny-qwen3moe"};
#define PRESET_COUNT (sizeof presets / sizeof *presets)

static const struct backup_settings all_settings[] = {
    {.scheme = BACKUP_PER_GROUP, .group = 64},
    {.scheme = BACKUP_PER_GROUP, .group = 16, .is_asymmetric = true},
    {.scheme = BACKUP_PER_GROUP, .group = 48, .has_zstd = true},
    {.scheme = BACKUP_PER_CHANNEL},
    {.scheme = BACKUP_PER_CHANNEL, .is_asymmetric = true, .has_zstd = true},
    {.scheme = BACKUP_PER_TENSOR},
    {.scheme = BACKUP_PER_TENSOR, .is_asymmetric = true},
};
#define SETTINGS_COUNT (sizeof all_settings / sizeof *all_settings)

/* ---- Content ------------------------------------------------------------------------------- */

/* A whole matrix of an expert, rounded in one go. */
struct whole {
    float *values;
    struct matrix matrix;
    struct int4_target target;
};

static void whole_init(struct whole *whole, const struct bench *bench,
                       const struct backup_form *form, enum backup_matrix which, int64_t layer,
                       int64_t expert)
{
    static const enum weight weights[] = {WEIGHT_EXPERT_GATE, WEIGHT_EXPERT_UP, WEIGHT_EXPERT_DOWN};
    struct error err;
    struct weight_location where;
    char staging[1 << 16];
    bool is_down = which == BACKUP_DOWN;
    int64_t rows = is_down ? form->hidden_dim : form->expert_dim;
    int64_t columns = is_down ? form->expert_dim : form->hidden_dim;
    int64_t bad_row, bad_column, group = form->settings.group;
    enum packing packing = is_down ? PACK_INPUT : PACK_OUTPUT;
    size_t scale_count = (size_t)packed_scale_count(packing, rows, columns, group);
    whole->values = memory_alloc((size_t)(rows * columns), sizeof *whole->values);
    whole->target = (struct int4_target){
        .data = memory_alloc((size_t)packed_bytes(rows, columns, DTYPE_INT4), 1),
        .scales = memory_alloc(scale_count, 2),
        .minima = form->settings.is_asymmetric ? memory_alloc(scale_count, 2) : NULL,
        .packing = packing,
        .rows = rows,
        .columns = columns,
        .group = group,
        .panel = memory_alloc((size_t)group, PACK_BLOCK * sizeof(float)),
    };
    cr_assert_eq(checkpoint_locate(&where, bench->checkpoint, weights[which], layer, expert, &err),
                 STATUS_OK);
    cr_assert_eq(checkpoint_read_rows(bench->checkpoint, &where, 0, rows, whole->values, DTYPE_F32,
                                      staging, sizeof staging, &err),
                 STATUS_OK);
    struct int4_common common = {.is_asymmetric = form->settings.is_asymmetric};
    struct int4_scales scales;
    if (form->settings.scheme == BACKUP_PER_TENSOR) {
        for (int pass = 0; pass < 2; pass++)
            cr_assert(int4_common_rows(&common, pass, &whole->target, whole->values, rows, &bad_row,
                                       &bad_column));
        int4_common_find(&scales, &common);
        whole->target.common = &scales;
    }
    cr_assert(int4_pack_rows(&whole->target, whole->values, 0, rows, &bad_row, &bad_column));
    whole->matrix = (struct matrix){.data = whole->target.data,
                                    .dtype = DTYPE_INT4,
                                    .packing = packing,
                                    .rows = rows,
                                    .columns = columns,
                                    .scales = whole->target.scales,
                                    .minima = whole->target.minima,
                                    .group = group};
}

static void whole_deinit(struct whole *whole)
{
    memory_free(whole->values);
    memory_free(whole->target.data);
    memory_free(whole->target.scales);
    memory_free(whole->target.minima);
    memory_free(whole->target.panel);
}

/* The granule's arrays are those ranges of the whole matrix's that its part of the width is. */
static void expect_ranges(const struct backup_form *form, const char *content, int64_t part,
                          enum backup_matrix which, const struct whole *whole)
{
    struct range nibbles = backup_nibbles(form, which), scales = backup_scales(form, which);
    struct range minima = backup_minima(form, which);
    cr_assert_eq(memcmp(content + nibbles.first,
                        (const char *)whole->matrix.data + part * nibbles.count,
                        (size_t)nibbles.count),
                 0);
    cr_assert_eq(memcmp(content + scales.first,
                        (const char *)whole->matrix.scales + part * scales.count,
                        (size_t)scales.count),
                 0);
    cr_assert_eq(minima.count > 0, form->settings.is_asymmetric);
    cr_assert(minima.count == 0 || memcmp(content + minima.first,
                                          (const char *)whole->matrix.minima + part * minima.count,
                                          (size_t)minima.count) == 0);
}

static double value_at(const struct matrix *matrix, int64_t row, int64_t column)
{
    const uint8_t *data = matrix->data;
    int64_t at =
        packed_index(matrix->packing, DTYPE_INT4, matrix->rows, matrix->columns, row, column);
    int64_t group = packed_scale_index(matrix, row, column);
    double scale = bf16_to_f32(matrix->scales[group]), nibble = data[at / 2] >> at % 2 * 4 & 15;
    return matrix->minima == NULL ? scale * nibble - 8 * scale
                                  : scale * nibble + bf16_to_f32(matrix->minima[group]);
}

/* What the reader gives as bf16 is what the words of layout/packing.h say. */
static void expect_dequantized(const struct backup_form *form, const char *content,
                               enum backup_matrix which)
{
    struct matrix matrix = backup_granule_matrix(form, content, which);
    uint16_t *values =
        memory_alloc((size_t)packed_bytes(matrix.rows, matrix.columns, DTYPE_BF16), 1);
    backup_granule_dequantize(values, form, content, which);
    for (int64_t row = 0; row < matrix.rows; row++) {
        for (int64_t column = 0; column < matrix.columns; column++) {
            int64_t at =
                packed_index(matrix.packing, DTYPE_BF16, matrix.rows, matrix.columns, row, column);
            cr_assert_eq(values[at], bf16_from_f32((float)value_at(&matrix, row, column)));
        }
    }
    memory_free(values);
}

static double cosine_of(const struct whole *whole)
{
    double product = 0, before = 0, after = 0;
    for (int64_t i = 0; i < whole->matrix.rows * whole->matrix.columns; i++) {
        double w = whole->values[i];
        double v = value_at(&whole->matrix, i / whole->matrix.columns, i % whole->matrix.columns);
        product += w * v, before += w * w, after += v * v;
    }
    return product / sqrt(before * after);
}

static void check_backup(const struct bench *bench, const struct backup_report *report,
                         const char *label)
{
    struct error err;
    struct backup *backup;
    const struct model_config *config = checkpoint_config(bench->checkpoint);
    cr_assert_eq(backup_open(&backup, bench->path, &err), STATUS_OK, "%s", err.message);
    cr_assert_eq(backup_match(backup, config, &bench->fingerprint, &err), STATUS_OK);
    const struct backup_form *form = backup_form(backup);
    char *bytes = memory_alloc((size_t)backup_granule_bytes_max(backup), 1);
    char *scratch = memory_alloc((size_t)form->content_bytes, 1);
    double least = 1, sum = 0;
    int64_t count = 0;
    for (int64_t layer = 0; layer < config->layer_count; layer++) {
        if (config->layers[layer].ffn != FFN_MOE)
            continue;
        for (int64_t expert = 0; expert < config->expert_count; expert++) {
            for (int which = 0; which < BACKUP_MATRICES; which++, count++) {
                struct whole whole;
                whole_init(&whole, bench, form, (enum backup_matrix)which, layer, expert);
                for (int64_t part = 0; part < form->parts; part++) {
                    const void *content;
                    int64_t number =
                        backup_granule(form, backup_moe_layer(config, layer), expert, part);
                    cr_assert_eq(
                        backup_granule_read(&content, backup, number, bytes, scratch, &err),
                        STATUS_OK, "%s: %s", label, err.message);
                    expect_ranges(form, content, part, (enum backup_matrix)which, &whole);
                    if (expert == 1)
                        expect_dequantized(form, content, (enum backup_matrix)which);
                }
                double cosine = cosine_of(&whole);
                least = cosine < least ? cosine : least;
                sum += cosine;
                whole_deinit(&whole);
            }
        }
    }
    cr_assert_eq(report->matrix_count, (uint64_t)count);
    cr_assert_float_eq(report->cosine_min, least, 1e-6, "%s", label);
    cr_assert_float_eq(report->cosine_mean, sum / (double)count, 1e-6, "%s", label);
    memory_free(bytes);
    memory_free(scratch);
    backup_close(backup);
}

Test(backup_write, a_granule_is_its_range_of_the_whole_matrix)
{
    for (size_t p = 0; p < PRESET_COUNT; p++) {
        struct bench bench;
        bench_init(&bench, presets[p], 5 + p, p == 1);
        struct resources before = resources_now();
        for (size_t s = 0; s < SETTINGS_COUNT; s++) {
            char label[64];
            snprintf(label, sizeof label, "%s, settings %zu", presets[p], s);
            struct backup_write_params params = bench_params(&bench);
            params.settings = all_settings[s];
            params.overwrites = true;
            params.thread_count = 1 + (int)(s % 3);
            struct backup_report report = bench_write(&bench, &params);
            check_backup(&bench, &report, label);
            expect_resources(label, before);
        }
        bench_deinit(&bench);
    }
}

Test(backup_write, any_number_of_threads_gives_the_same_bytes)
{
    struct bench bench;
    bench_init(&bench, "tiny-qwen3moe", 1, false);
    for (size_t s = 0; s < SETTINGS_COUNT; s++) {
        struct backup_write_params params = bench_params(&bench);
        params.settings = all_settings[s];
        params.overwrites = true;
        size_t length;
        bench_write(&bench, &params);
        char *wanted = bench_bytes(&bench, &length);
        for (int threads = 2; threads <= 9; threads += 7) {
            params.thread_count = threads;
            bench_write(&bench, &params);
            bench_expect_bytes(&bench, wanted, length, "threads");
        }
        free(wanted);
    }
    bench_deinit(&bench);
}

/* ---- What is there already ----------------------------------------------------------------- */

Test(backup_write, a_whole_backup_is_left_as_it_is)
{
    struct bench bench;
    bench_init(&bench, "tiny-mixtral", 1, false);
    struct backup_write_params params = bench_params(&bench);
    struct backup_report first = bench_write(&bench, &params);
    cr_assert_eq(first.bytes_found, 0);
    int64_t size = file_size(bench.path);
    cr_assert_eq((uint64_t)size, first.file_bytes);
    struct backup_report again = bench_write(&bench, &params);
    cr_assert_eq(again.bytes_found, again.file_bytes);
    cr_assert_eq(memcmp(&again.cosine_min, &first.cosine_min, sizeof first.cosine_min), 0);
    cr_assert_eq(again.cosine_mean, first.cosine_mean);
    params.overwrites = true;
    again = bench_write(&bench, &params);
    cr_assert_eq(again.bytes_found, 0);
    bench_deinit(&bench);
}

/* What reads it by io_uring would be told that it has to wait. */
Test(backup_write, a_backup_is_open_for_reads_that_wait)
{
    struct error err;
    struct bench bench;
    struct backup *backup;
    bench_init(&bench, "tiny-mixtral", 1, false);
    struct backup_write_params params = bench_params(&bench);
    bench_write(&bench, &params);
    cr_assert_eq(backup_open(&backup, bench.path, &err), STATUS_OK);
    cr_assert_eq(fcntl(backup_fd(backup), F_GETFL) & O_NONBLOCK, 0);
    backup_close(backup);
    bench_deinit(&bench);
}

Test(backup_write, what_is_something_else_is_refused)
{
    struct error err;
    struct bench bench;
    bench_init(&bench, "tiny-mixtral", 1, false);
    struct backup_write_params params = bench_params(&bench);
    bench_write(&bench, &params);
    params.settings.is_asymmetric = true;
    expect_failure("other settings", bench_try(&bench, &params, &err), &err,
                   STATUS_INVALID_ARGUMENT, "another backup|--overwrite");
    params.overwrites = true;
    bench_write(&bench, &params);
    file_write_text(bench.path, "a letter");
    expect_failure("no backup", bench_try(&bench, &params, &err), &err, STATUS_INVALID_ARGUMENT,
                   "no backup of phasor's");
    file_write_text(bench.path, "");
    expect_failure("an empty file", bench_try(&bench, &params, &err), &err, STATUS_INVALID_ARGUMENT,
                   "no backup of phasor's");
    unlink(bench.path);
    cr_assert_eq(mkfifo(bench.path, 0600), 0);
    expect_failure("no file", bench_try(&bench, &params, &err), &err, STATUS_INVALID_ARGUMENT,
                   "no backup of phasor's");
    unlink(bench.path);
    const char *part = path_of(bench.folder, "b.backup" BACKUP_PART_SUFFIX);
    file_write_text(part, "a letter");
    expect_failure("in the way", bench_try(&bench, &params, &err), &err, STATUS_IO,
                   "in the way|b.backup.phasor-part");
    cr_assert_eq(file_size(part), 8);
    params.settings.group = 24;
    expect_failure("group", bench_try(&bench, &params, &err), &err, STATUS_INVALID_ARGUMENT,
                   "--group|24");
    params.path = path_of(bench.folder, "no/folder");
    params.settings.group = 32;
    expect_failure("folder", bench_try(&bench, &params, &err), &err, STATUS_NOT_FOUND, "no/folder");
    bench_deinit(&bench);
}

/* Puts another file under the backup's name when the work has begun. */
static enum status put_letter(void *context, uint64_t bytes_done, uint64_t bytes_total)
{
    (void)bytes_total;
    if (bytes_done == 0)
        file_write_text(context, "a letter");
    return STATUS_OK;
}

/* Renames what lies beside it to the backup's name. */
static enum status put_other(void *context, uint64_t bytes_done, uint64_t bytes_total)
{
    (void)bytes_total;
    const struct bench *bench = context;
    if (bytes_done == 0)
        rename(path_of(bench->folder, "other"), bench->path);
    return STATUS_OK;
}

/* One of other settings is not, one of the same is. */
Test(backup_write, another_backup_that_comes_meanwhile_is_not_replaced)
{
    struct error err;
    struct bench bench;
    bench_init(&bench, "tiny-mixtral", 1, false);
    for (int is_same = 0; is_same < 2; is_same++) {
        struct backup_write_params params = bench_params(&bench);
        params.settings.group = is_same ? 64 : 32;
        bench_write(&bench, &params);
        cr_assert_eq(rename(bench.path, path_of(bench.folder, "other")), 0);
        off_t bytes = file_size(path_of(bench.folder, "other"));
        params.settings.group = 64;
        params.progress = put_other;
        params.progress_context = &bench;
        enum status status = bench_try(&bench, &params, &err);
        if (is_same)
            cr_assert_eq(status, STATUS_OK, "%s", err.message);
        else
            expect_failure("meanwhile", status, &err, STATUS_INVALID_ARGUMENT, "another backup");
        cr_assert_eq(file_size(bench.path), bytes);
        unlink(bench.path);
    }
    bench_deinit(&bench);
}

Test(backup_write, what_comes_meanwhile_is_not_replaced)
{
    struct error err;
    struct bench bench;
    bench_init(&bench, "tiny-mixtral", 1, false);
    struct backup_write_params params = bench_params(&bench);
    params.progress = put_letter;
    params.progress_context = (void *)bench.path;
    expect_failure("meanwhile", bench_try(&bench, &params, &err), &err, STATUS_INVALID_ARGUMENT,
                   "no backup of phasor's");
    cr_assert_eq(file_size(bench.path), 8);
    bench_deinit(&bench);
}

static enum status stop_now(void *context, uint64_t bytes_done, uint64_t bytes_total)
{
    (void)context;
    (void)bytes_done;
    (void)bytes_total;
    return STATUS_CANCELLED;
}

/* A check that was stopped does not go on: it begins anew, and says nothing else. */
Test(backup_write, a_check_that_is_stopped_promises_nothing)
{
    struct error err;
    struct bench bench;
    struct backup_report report;
    bench_init(&bench, "tiny-mixtral", 1, false);
    struct backup_write_params params = bench_params(&bench);
    bench_write(&bench, &params);
    params.progress = stop_now;
    cr_assert_eq(backup_verify(&report, bench.checkpoint, &params, &err), STATUS_CANCELLED);
    cr_assert_str_eq(err.message, "stopped");
    bench_deinit(&bench);
}

Test(backup_write, a_backup_of_another_checkpoint_is_refused)
{
    struct error err;
    struct bench bench, other, wider;
    bench_init(&bench, "tiny-mixtral", 1, false);
    bench_init(&other, "tiny-mixtral", 2, false);
    bench_init(&wider, "tiny-qwen3moe", 1, false);
    struct backup_write_params params = bench_params(&bench);
    bench_write(&bench, &params);
    struct backup_report report;
    expect_failure("other weights", backup_verify(&report, other.checkpoint, &params, &err), &err,
                   STATUS_INVALID_ARGUMENT, "another checkpoint|fingerprint");
    expect_failure("other sizes", backup_verify(&report, wider.checkpoint, &params, &err), &err,
                   STATUS_INVALID_ARGUMENT, "another checkpoint|this one's is");
    bench_deinit(&bench);
    bench_deinit(&other);
    bench_deinit(&wider);
}

static enum status stop_half_way(void *context, uint64_t bytes_done, uint64_t bytes_total)
{
    (void)context;
    return bytes_done * 2 < bytes_total ? STATUS_OK : STATUS_CANCELLED;
}

Test(backup_write, a_stopped_run_goes_on)
{
    struct error err;
    struct bench bench;
    size_t length;
    bench_init(&bench, "tiny-qwen3moe", 1, false);
    for (int zstd = 0; zstd < 2; zstd++) {
        struct backup_write_params params = bench_params(&bench);
        params.settings.has_zstd = zstd;
        bench_write(&bench, &params);
        char *wanted = bench_bytes(&bench, &length);
        unlink(bench.path);
        params.progress = stop_half_way;
        expect_failure("stopped", bench_try(&bench, &params, &err), &err, STATUS_CANCELLED,
                       "goes on from there");
        cr_assert_neq(access(bench.path, F_OK), 0);
        params.progress = NULL;
        struct backup_report report = bench_write(&bench, &params);
        cr_assert_gt(report.bytes_found, report.file_bytes / 4);
        cr_assert_lt(report.bytes_found, report.file_bytes);
        bench_expect_bytes(&bench, wanted, length, "after a stop");
        unlink(bench.path);
        free(wanted);
    }
    bench_deinit(&bench);
}

/* What an interrupted run left is looked through under the same progress, and may be stopped, too:
 * what is there stays. */
static enum status stop_at_a_quarter(void *context, uint64_t bytes_done, uint64_t bytes_total)
{
    *(uint64_t *)context = bytes_done;
    return bytes_done * 4 < bytes_total ? STATUS_OK : STATUS_CANCELLED;
}

Test(backup_write, looking_through_a_part_may_be_stopped)
{
    struct error err;
    struct bench bench;
    uint64_t at = 0;
    bench_init(&bench, "tiny-qwen3moe", 1, false);
    for (int zstd = 0; zstd < 2; zstd++) {
        struct backup_write_params params = bench_params(&bench);
        params.settings.has_zstd = zstd;
        params.progress = stop_half_way;
        params.thread_count = 1;
        expect_failure("stopped", bench_try(&bench, &params, &err), &err, STATUS_CANCELLED, "");
        params.progress = stop_at_a_quarter;
        params.progress_context = &at;
        expect_failure("stopped again", bench_try(&bench, &params, &err), &err, STATUS_CANCELLED,
                       "goes on from there");
        cr_assert_gt(at, 0);
        params.progress = NULL;
        params.thread_count = 3;
        struct backup_report report = bench_write(&bench, &params);
        cr_assert_gt(report.bytes_found, report.file_bytes / 3);
        uint64_t total = 2 * report.weight_count;
        cr_assert_lt(at, total / 2, "stopped at %llu of %llu", (unsigned long long)at,
                     (unsigned long long)total);
        unlink(bench.path);
    }
    bench_deinit(&bench);
}

Test(backup_write, a_weight_that_is_no_number_is_named)
{
    struct error err;
    struct bench bench;
    struct weight_location where;
    bench_init(&bench, "tiny-mixtral", 1, false);
    cr_assert_eq(checkpoint_locate(&where, bench.checkpoint, WEIGHT_EXPERT_DOWN, 1, 2, &err),
                 STATUS_OK);
    const char *file = path_of(path_of(bench.folder, "model"), "model.safetensors");
    size_t length;
    char *bytes = file_read(file, &length);
    int64_t row = 17, column = where.column_count - 3;
    uint16_t nan = 0x7FC0;
    memcpy(bytes + where.tensor->offset + 2 * (row * where.column_count + column), &nan, 2);
    file_write(file, bytes, length);
    free(bytes);
    char place[64];
    snprintf(place, sizeof place, "row 17, column %d of expert 2|not a number", (int)column);
    for (size_t s = 0; s < SETTINGS_COUNT; s++) {
        struct backup_write_params params = bench_params(&bench);
        params.settings = all_settings[s];
        expect_failure("nan", bench_try(&bench, &params, &err), &err, STATUS_FORMAT, place);
    }
    bench_deinit(&bench);
}
