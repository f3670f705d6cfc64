/* What rounding the experts to INT4 costs and saves: for each scheme the bytes of a weight, how
 * near the weights are, what becomes of the model's predictions, and how fast a core makes the
 * backup; see bench/README.md.
 *
 * Inside the timed windows, on one thread: what phasor quantize does (reading the checkpoint from
 * the page cache, rounding, compressing with zstd, writing the file), and what --verify does
 * (reading the file from the page cache, decompressing, checksums). Processor time of the process
 * (user and system), so that other processes do not count. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
#include "base/memory.h"
#include "head.h"
#include "model/safetensors.h"
#include "predictions.h"
#include "quant/backup_write.h"

#define REPEATS 3

static void check(enum status status, const struct error *err)
{
    if (status == STATUS_OK)
        return;
    fprintf(stderr, "bench_quantize: %s\n", err->message);
    exit(1);
}

/* ---- A checkpoint whose experts come from a backup ----------------------------------------- */

/* f32, so that nothing is rounded again. */
static void tensor_fill(float *out, const struct backup *backup, int64_t moe_layer, int64_t expert,
                        enum backup_matrix which)
{
    const struct backup_form *form = backup_form(backup);
    struct error err;
    char *bytes = memory_alloc_raw((size_t)backup_granule_bytes_max(backup), 1);
    char *scratch = memory_alloc_raw((size_t)form->content_bytes, 1);
    for (int64_t part = 0; part < form->parts; part++) {
        const void *content;
        int64_t number = backup_granule(form, moe_layer, expert, part);
        check(backup_granule_read(&content, backup, number, bytes, scratch, &err), &err);
        struct matrix matrix = backup_granule_matrix(form, content, which);
        const uint8_t *nibbles = matrix.data;
        bool is_down = which == BACKUP_DOWN;
        for (int64_t r = 0; r < matrix.rows; r++) {
            for (int64_t c = 0; c < matrix.columns; c++) {
                int64_t at =
                    packed_index(matrix.packing, DTYPE_INT4, matrix.rows, matrix.columns, r, c);
                int64_t group = packed_scale_index(&matrix, r, c);
                float scale = bf16_to_f32(matrix.scales[group]);
                float least =
                    matrix.minima == NULL ? -8 * scale : bf16_to_f32(matrix.minima[group]);
                int64_t row = is_down ? r : part * form->granule_width + r;
                int64_t column = is_down ? part * form->granule_width + c : c;
                out[row * (is_down ? form->expert_dim : form->hidden_dim) + column] =
                    scale * (float)(nibbles[at / 2] >> at % 2 * 4 & 15) + least;
            }
        }
    }
    memory_free(bytes);
    memory_free(scratch);
}

struct tensor {
    char name[WEIGHT_NAME_BYTES];
    enum weight weight;
    int64_t layer, expert;
};

static bool is_expert(enum weight weight)
{
    return weight >= WEIGHT_EXPERT_GATE && weight <= WEIGHT_EXPERT_DOWN;
}

static int64_t tensors_list(struct tensor *out, const struct model_config *config)
{
    int64_t count = 0;
    for (int64_t layer = -1; layer < config->layer_count; layer++) {
        for (int w = layer < 0 ? 0 : WEIGHT_INPUT_NORM;
             w < (layer < 0 ? WEIGHT_INPUT_NORM : WEIGHT_KIND_COUNT); w++) {
            enum weight weight = (enum weight)w;
            int64_t at = layer < 0 ? 0 : layer;
            if (weight == WEIGHT_FUSED_GATE_UP || weight == WEIGHT_FUSED_DOWN ||
                !weight_is_present(config, weight, at))
                continue;
            for (int64_t e = 0; e < (is_expert(weight) ? config->expert_count : 1); e++) {
                struct tensor *tensor = &out[count++];
                *tensor = (struct tensor){.weight = weight, .layer = at, .expert = e};
                weight_name(tensor->name, sizeof tensor->name, config, weight, at, e);
            }
        }
    }
    return count;
}

static void config_copy(const char *from, const char *to)
{
    char command[9000];
    snprintf(command, sizeof command, "cp '%s/config.json' '%s/'", from, to);
    if (system(command) != 0)
        exit(1);
}

static void model_write(const char *dir, const struct checkpoint *checkpoint,
                        const struct backup *backup)
{
    char path[128];
    struct error err;
    struct safetensors_writer *writer;
    const struct model_config *config = checkpoint_config(checkpoint);
    size_t room = (size_t)(16 + config->layer_count * (32 + 3 * config->expert_count));
    struct tensor *tensors = memory_alloc(room, sizeof *tensors);
    int64_t count = tensors_list(tensors, config), shape[3];
    static char staging[1 << 20];
    snprintf(path, sizeof path, "%.60s/model.safetensors", dir);
    config_copy(checkpoint_dir(checkpoint), dir);
    check(safetensors_writer_create(&writer, path, &err), &err);
    for (int64_t i = 0; i < count; i++) {
        int rank = weight_shape(shape, config, tensors[i].weight);
        check(safetensors_writer_add(writer, tensors[i].name, DTYPE_F32, shape, rank, &err), &err);
    }
    check(safetensors_writer_begin(writer, &err), &err);
    for (int64_t i = 0; i < count; i++) {
        const struct tensor *tensor = &tensors[i];
        struct weight_location where;
        check(checkpoint_locate(&where, checkpoint, tensor->weight, tensor->layer, tensor->expert,
                                &err),
              &err);
        size_t values = (size_t)(where.row_count * where.column_count);
        float *data = memory_alloc_raw(values, sizeof *data);
        if (is_expert(tensor->weight))
            tensor_fill(data, backup, backup_moe_layer(config, tensor->layer), tensor->expert,
                        (enum backup_matrix)(tensor->weight - WEIGHT_EXPERT_GATE));
        else
            check(checkpoint_read_rows(checkpoint, &where, 0, where.row_count, data, DTYPE_F32,
                                       staging, sizeof staging, &err),
                  &err);
        check(safetensors_writer_data(writer, data, values * sizeof *data, &err), &err);
        memory_free(data);
    }
    check(safetensors_writer_finish(writer, &err), &err);
    memory_free(tensors);
}

/* ---- The table ----------------------------------------------------------------------------- */

#define PACKED_SCHEME "group 64" /* what decode runs on, unless one says */

static const struct {
    const char *name;
    struct backup_settings settings;
} schemes[] = {
    {"group 32", {.group = 32}},
    {PACKED_SCHEME, {.group = 64}},
    {"group 64, zstd", {.group = 64, .has_zstd = true}},
    {"group 128", {.group = 128}},
    {"group 64, asymmetric", {.group = 64, .is_asymmetric = true}},
    {"group 128, asymmetric", {.group = 128, .is_asymmetric = true}},
    {"channel", {.scheme = BACKUP_PER_CHANNEL}},
    {"channel, asymmetric", {.scheme = BACKUP_PER_CHANNEL, .is_asymmetric = true}},
    {"tensor", {.scheme = BACKUP_PER_TENSOR}},
    {"tensor, asymmetric", {.scheme = BACKUP_PER_TENSOR, .is_asymmetric = true}},
};

static double processor_seconds(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

/* As they are stored, without trailers and padding. */
static double stored_bytes(const struct backup *backup)
{
    double sum = 0;
    for (int64_t i = 0; i < backup_form(backup)->granule_count; i++)
        sum += (double)backup_granule_stored(backup, i);
    return sum;
}

static double backup_check(const struct checkpoint *checkpoint, const char *path)
{
    struct error err;
    struct backup_report report;
    double best = INFINITY;
    const struct backup_write_params params = {.path = path, .thread_count = 1};
    for (int i = 0; i < REPEATS; i++) {
        double start = processor_seconds();
        check(backup_verify(&report, checkpoint, &params, &err), &err);
        best = fmin(best, processor_seconds() - start);
    }
    return best;
}

static double backup_make(struct backup_report *report, const struct checkpoint *checkpoint,
                          const char *path, const struct backup_settings *settings)
{
    struct error err;
    double best = INFINITY;
    const struct backup_write_params params = {
        .path = path, .settings = *settings, .overwrites = true, .thread_count = 1};
    for (int i = 0; i < REPEATS; i++) {
        double start = processor_seconds();
        check(backup_write(report, checkpoint, &params, &err), &err);
        best = fmin(best, processor_seconds() - start);
    }
    return best;
}

/* What a scheme leaves of the weights. */
struct scheme_kept {
    double bytes_per_weight;
    struct backup_report report;
};

static void kept_print(const char *name, const struct scheme_kept *kept)
{
    printf("%-22s %7.4f  %.5f  %.5f", name, kept->bytes_per_weight, kept->report.cosine_min,
           kept->report.cosine_mean);
}

static void difference_print(const struct difference *difference, double native_nll)
{
    printf("  %+8.3f %%  %9.6f  %8.2f %%", 100 * (difference->nll / native_nll - 1),
           difference->divergence, 100 * difference->agreement);
}

/* For phasor report --quality. */
static json_t *row_of(const char *name, const struct scheme_kept *kept,
                      const struct difference *difference, double native_nll)
{
    return json_pack("{s:s, s:f, s:f, s:f, s:f, s:f, s:f}", "scheme", name, "bytes_per_weight",
                     kept->bytes_per_weight, "cosine_min", kept->report.cosine_min, "cosine_mean",
                     kept->report.cosine_mean, "nll_ratio", difference->nll / native_nll, "kl_mean",
                     difference->divergence, "same_top_1", difference->agreement);
}

static struct scheme_kept print_scheme(size_t s, const char *folder,
                                       const struct checkpoint *checkpoint,
                                       const struct predictions *native, double native_nll,
                                       const struct windows *windows, json_t *rows)
{
    char path[128], model[64];
    struct error err;
    struct backup *backup;
    struct scheme_kept kept;
    struct predictions other;
    snprintf(path, sizeof path, "%.50s/backup", folder);
    snprintf(model, sizeof model, "%.50s/model", folder);
    double seconds = backup_make(&kept.report, checkpoint, path, &schemes[s].settings);
    check(backup_open(&backup, path, &err), &err);
    double weights = (double)kept.report.weight_count;
    kept.bytes_per_weight = stored_bytes(backup) / weights;
    double made = 2e-9 * weights / seconds;
    double checked = 2e-9 * weights / backup_check(checkpoint, path);
    kept_print(schemes[s].name, &kept);
    if (windows->count > 0) {
        model_write(model, checkpoint, backup);
        predictions_make(&other, model, windows, PREDICTIONS_F32);
        struct difference difference = predictions_compare(native, &other, windows);
        difference_print(&difference, native_nll);
        json_t *row = row_of(schemes[s].name, &kept, &difference, native_nll);
        if (json_array_append_new(rows, row) != 0) {
            fprintf(stderr, "bench_quantize: %s: no finite numbers\n", schemes[s].name);
            exit(1);
        }
        predictions_free(&other);
    } else {
        printf("  %41s", "");
    }
    printf("  %6.2f  %6.2f\n", made, checked);
    fflush(stdout);
    backup_close(backup);
    return kept;
}

/* Steps of decode, as a run has them: products with the packed nibbles beside those with bf16. For
 * phasor report. */
static json_t *print_decode(const char *dir, const struct scheme_kept *kept,
                            const struct windows *windows)
{
    struct predictions native, packed;
    predictions_make(&native, dir, windows, PREDICTIONS_DECODE);
    predictions_make(&packed, dir, windows, PREDICTIONS_DECODE_INT4);
    struct difference difference = predictions_compare(&native, &packed, windows);
    double native_nll = predictions_compare(&native, &native, windows).nll;
    kept_print(PACKED_SCHEME ", decode", kept);
    difference_print(&difference, native_nll);
    printf(
        "\n# decode: the next token of each of %d windows in a step, packed INT4 beside bfloat16 "
        "(NLL %.4f), %s\n",
        windows->count, native_nll, packed.kernels);
    json_t *out = json_pack("{s:s, s:s, s:i, s:f, s:f, s:f, s:f}", "scheme", PACKED_SCHEME,
                            "kernels", packed.kernels, "windows", windows->count, "native_nll",
                            native_nll, "nll_ratio", difference.nll / native_nll, "kl_mean",
                            difference.divergence, "same_top_1", difference.agreement);
    predictions_free(&native);
    predictions_free(&packed);
    return out;
}

/* Takes rows and decode. False where the file cannot be written. */
static bool rows_write(const char *path, const char *model, const struct predictions *native,
                       double native_nll, json_t *rows, json_t *decode)
{
    char commit[64];
    bench_commit(commit);
    json_t *root = json_pack("{s:s, s:s, s:s, s:I, s:f, s:o, s:o}", "kind", "quality", "model",
                             model, "commit", *commit == 0 ? "unknown" : commit, "positions",
                             (json_int_t)native->row_count, "native_nll", native_nll, "schemes",
                             rows, "decode", decode);
    bool is_good = json_dump_file(root, path, JSON_INDENT(1) | JSON_REAL_PRECISION(9)) == 0;
    json_decref(root);
    return is_good;
}

int main(int argc, char **argv)
{
    char folder[] = "/tmp/bench-quantize-XXXXXX", model[64], command[128];
    static struct windows windows;
    struct checkpoint *checkpoint;
    struct predictions native;
    struct error err;
    double native_nll = 0;
    bool is_speed = argc == 3 && strcmp(argv[2], "speed") == 0;
    const char *end = argc == 3 ? strrchr(argv[2], '.') : NULL;
    bool is_file = end != NULL && strcmp(end, ".json") == 0;
    if (argc != 2 && !is_speed && !is_file) {
        fprintf(stderr, "usage: bench_quantize MODEL [speed|FILE.json]\n");
        return 2;
    }
    check(checkpoint_open(&checkpoint, argv[1], &err), &err);
    if (mkdtemp(folder) == NULL)
        return 1;
    snprintf(model, sizeof model, "%s/model", folder);
    mkdir(model, 0700);
    bench_print_head(argc, argv);
    if (!is_speed) {
        windows_read(&windows, argv[1], checkpoint_config(checkpoint)->vocab_count);
        predictions_make(&native, argv[1], &windows, PREDICTIONS_F32);
        native_nll = predictions_compare(&native, &native, &windows).nll;
        printf("# predictions in float32 at %lld positions; native NLL %.4f\n",
               (long long)native.row_count, native_nll);
    }
    printf("# make, check: GB/s of bfloat16 on one thread, clock: processor time, best of %d\n",
           REPEATS);
    printf("%-22s %7s  %-7s  %-7s  %10s  %9s  %10s  %6s  %6s\n", "scheme", "bytes/w", "cos min",
           "mean", "NLL", "mean KL", "same top-1", "make", "check");
    json_t *rows = json_array();
    struct scheme_kept packed = {0};
    for (size_t s = 0; s < sizeof schemes / sizeof *schemes; s++) {
        struct scheme_kept kept =
            print_scheme(s, folder, checkpoint, &native, native_nll, &windows, rows);
        if (strcmp(schemes[s].name, PACKED_SCHEME) == 0)
            packed = kept;
    }
    json_t *decode = windows.count > 0 ? print_decode(argv[1], &packed, &windows) : NULL;
    checkpoint_close(checkpoint);
    snprintf(command, sizeof command, "rm -r '%s'", folder);
    bool is_written = true;
    if (is_file)
        is_written = rows_write(argv[2], argv[1], &native, native_nll, rows, decode);
    else {
        json_decref(rows);
        json_decref(decode);
    }
    if (!is_written)
        fprintf(stderr, "bench_quantize: %s: cannot be written\n", argv[2]);
    return system(command) != 0 || !is_written;
}
