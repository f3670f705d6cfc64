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
#include "base/random.h"
#include "engine/engine.h"
#include "exec/exec.h"
#include "head.h"
#include "model/safetensors.h"
#include "quant/backup_write.h"

#define TEXT_TOKENS 512 /* of a window */
#define WINDOWS_MAX 16
#define PAGES       (TEXT_TOKENS / 64 + 1)
#define REPEATS     3

static void check(enum status status, const struct error *err)
{
    if (status == STATUS_OK)
        return;
    fprintf(stderr, "bench_quantize: %s\n", err->message);
    exit(1);
}

/* ---- Windows of tokens --------------------------------------------------------------------- */

struct windows {
    int count, length[WINDOWS_MAX];
    int32_t tokens[WINDOWS_MAX][TEXT_TOKENS];
};

/* The bundled model's validation text by its ids, or random ids where there is none. */
static void windows_read(struct windows *windows, const char *dir, int64_t vocab_count)
{
    char path[4096];
    struct error err;
    json_t *metrics;
    struct random random = {.seed = 1};
    snprintf(path, sizeof path, "%s/metrics.json", dir);
    bool has_text = access(path, R_OK) == 0;
    if (has_text)
        check(json_load_object(&metrics, path, 4 << 20, &err), &err);
    for (int w = 0; w < WINDOWS_MAX; w++) {
        const json_t *window =
            has_text ? json_array_get(json_object_get(metrics, "per_window"), (size_t)w) : NULL;
        const json_t *ids = json_object_get(window, "token_ids");
        if (has_text && ids == NULL)
            break;
        int length = has_text ? (int)json_array_size(ids) : 256;
        length = length < TEXT_TOKENS ? length : TEXT_TOKENS;
        for (int i = 0; i < length; i++)
            windows->tokens[w][i] =
                has_text ? (int32_t)json_integer_value(json_array_get(ids, (size_t)i))
                         : (int32_t)random_below(&random, (uint64_t)vocab_count);
        windows->length[w] = length;
        windows->count = w + 1;
    }
    if (has_text)
        json_decref(metrics);
}

/* ---- Predictions --------------------------------------------------------------------------- */

/* Log probabilities of all tokens at every position of the windows. */
struct predictions {
    int64_t row_count, vocab_count;
    float *logprobs; /* [row_count][vocab_count] */
};

static void to_logprobs(float *out, const float *logits, int64_t count)
{
    double most = logits[0], sum = 0;
    for (int64_t i = 1; i < count; i++)
        most = fmax(most, (double)logits[i]);
    for (int64_t i = 0; i < count; i++)
        sum += exp((double)logits[i] - most);
    for (int64_t i = 0; i < count; i++)
        out[i] = (float)((double)logits[i] - most - log(sum));
}

static void window_predict(struct predictions *out, struct exec *exec, struct kv_cache *cache,
                           const int32_t *tokens, int length)
{
    int32_t pages[PAGES], rows[EXEC_LOGIT_ROWS];
    struct error err;
    for (int p = 0; p < PAGES; p++)
        pages[p] = p;
    const struct exec_segment segment = {.tokens = tokens, .token_count = length, .pages = pages};
    check(exec_forward(exec, cache, FORM_OWNED, &segment, 1, &err), &err);
    for (int first = 0; first + 1 < length; first += EXEC_LOGIT_ROWS) {
        int64_t count = length - 1 - first;
        count = count < EXEC_LOGIT_ROWS ? count : EXEC_LOGIT_ROWS;
        for (int64_t i = 0; i < count; i++)
            rows[i] = (int32_t)(first + i);
        struct exec_head head = {.rows = rows, .row_count = count};
        check(exec_head(exec, &head, &err), &err);
        for (int64_t i = 0; i < count; i++)
            to_logprobs(out->logprobs + out->row_count++ * out->vocab_count,
                        head.logits + i * head.stride, out->vocab_count);
    }
}

/* In f32, so that the experts' rounding is all that differs. */
static void predict(struct predictions *out, const char *dir, const struct windows *windows)
{
    struct error err;
    struct engine *engine;
    struct exec *exec;
    struct kv_cache cache;
    const struct engine_params params = {.model = dir, .dtype = DTYPE_F32};
    check(engine_open(&engine, &params, &err), &err);
    check(engine_exec_create(&exec, engine, TEXT_TOKENS, EXEC_LOGIT_ROWS, &err), &err);
    const struct kv_cache_params kv = {.box = exec_box(exec),
                                       .config = exec_config(exec),
                                       .layout = exec_layout(exec),
                                       .dtype = exec_kv_dtype(exec),
                                       .page_count = PAGES};
    check(kv_cache_init(&cache, &kv, &err), &err);
    *out = (struct predictions){.vocab_count = exec_config(exec)->vocab_count};
    out->logprobs =
        memory_alloc_raw((size_t)(windows->count * TEXT_TOKENS * out->vocab_count), sizeof(float));
    for (int w = 0; w < windows->count; w++)
        window_predict(out, exec, &cache, windows->tokens[w], windows->length[w]);
    kv_cache_deinit(&cache);
    exec_destroy(exec);
    engine_close(engine);
}

struct difference {
    double nll, divergence, agreement; /* means over positions; KL(native, other) */
};

static int64_t likeliest(const float *logprobs, int64_t count)
{
    int64_t best = 0;
    for (int64_t i = 1; i < count; i++)
        best = logprobs[i] > logprobs[best] ? i : best;
    return best;
}

static struct difference compare(const struct predictions *native, const struct predictions *other,
                                 const struct windows *windows)
{
    struct difference sum = {0};
    int64_t row = 0, vocab = native->vocab_count;
    for (int w = 0; w < windows->count; w++) {
        for (int i = 0; i + 1 < windows->length[w]; i++, row++) {
            const float *p = native->logprobs + row * vocab, *q = other->logprobs + row * vocab;
            sum.nll -= (double)q[windows->tokens[w][i + 1]];
            sum.agreement += likeliest(p, vocab) == likeliest(q, vocab);
            for (int64_t t = 0; t < vocab; t++)
                sum.divergence += exp((double)p[t]) * ((double)p[t] - (double)q[t]);
        }
    }
    return (struct difference){sum.nll / (double)row, sum.divergence / (double)row,
                               sum.agreement / (double)row};
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

static const struct {
    const char *name;
    struct backup_settings settings;
} schemes[] = {
    {"group 32", {.group = 32}},
    {"group 64", {.group = 64}},
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

/* For phasor report --quality. */
static json_t *row_of(size_t s, double bytes_per_weight, const struct backup_report *report,
                      const struct difference *difference, double native_nll)
{
    return json_pack("{s:s, s:f, s:f, s:f, s:f, s:f, s:f}", "scheme", schemes[s].name,
                     "bytes_per_weight", bytes_per_weight, "cosine_min", report->cosine_min,
                     "cosine_mean", report->cosine_mean, "nll_ratio", difference->nll / native_nll,
                     "kl_mean", difference->divergence, "same_top_1", difference->agreement);
}

static void print_scheme(size_t s, const char *folder, const struct checkpoint *checkpoint,
                         const struct predictions *native, double native_nll,
                         const struct windows *windows, json_t *rows)
{
    char path[128], model[64];
    struct error err;
    struct backup *backup;
    struct backup_report report;
    struct predictions other;
    snprintf(path, sizeof path, "%.50s/backup", folder);
    snprintf(model, sizeof model, "%.50s/model", folder);
    double seconds = backup_make(&report, checkpoint, path, &schemes[s].settings);
    check(backup_open(&backup, path, &err), &err);
    double weights = (double)report.weight_count, bytes = stored_bytes(backup);
    double made = 2e-9 * weights / seconds;
    double checked = 2e-9 * weights / backup_check(checkpoint, path);
    if (windows->count > 0) {
        model_write(model, checkpoint, backup);
        predict(&other, model, windows);
        struct difference difference = compare(native, &other, windows);
        printf("%-22s %7.4f  %.5f  %.5f  %+8.3f %%  %9.6f  %8.2f %%  %6.2f  %6.2f\n",
               schemes[s].name, bytes / weights, report.cosine_min, report.cosine_mean,
               100 * (difference.nll / native_nll - 1), difference.divergence,
               100 * difference.agreement, made, checked);
        json_t *row = row_of(s, bytes / weights, &report, &difference, native_nll);
        if (json_array_append_new(rows, row) != 0) {
            fprintf(stderr, "bench_quantize: %s: no finite numbers\n", schemes[s].name);
            exit(1);
        }
        memory_free(other.logprobs);
    } else {
        printf("%-22s %7.4f  %.5f  %.5f  %41s  %6.2f  %6.2f\n", schemes[s].name, bytes / weights,
               report.cosine_min, report.cosine_mean, "", made, checked);
    }
    fflush(stdout);
    backup_close(backup);
}

/* Takes the rows. False where the file cannot be written. */
static bool rows_write(const char *path, const char *model, const struct predictions *native,
                       double native_nll, json_t *rows)
{
    char commit[64];
    bench_commit(commit);
    json_t *root =
        json_pack("{s:s, s:s, s:s, s:I, s:f, s:o}", "kind", "quality", "model", model, "commit",
                  *commit == 0 ? "unknown" : commit, "positions", (json_int_t)native->row_count,
                  "native_nll", native_nll, "schemes", rows);
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
        predict(&native, argv[1], &windows);
        native_nll = compare(&native, &native, &windows).nll;
        printf("# predictions in float32 at %lld positions; native NLL %.4f\n",
               (long long)native.row_count, native_nll);
    }
    printf("# make, check: GB/s of bfloat16 on one thread, clock: processor time, best of %d\n",
           REPEATS);
    printf("%-22s %7s  %-7s  %-7s  %10s  %9s  %10s  %6s  %6s\n", "scheme", "bytes/w", "cos min",
           "mean", "NLL", "mean KL", "same top-1", "make", "check");
    json_t *rows = json_array();
    for (size_t s = 0; s < sizeof schemes / sizeof *schemes; s++)
        print_scheme(s, folder, checkpoint, &native, native_nll, &windows, rows);
    checkpoint_close(checkpoint);
    snprintf(command, sizeof command, "rm -r '%s'", folder);
    bool is_written = true;
    if (is_file)
        is_written = rows_write(argv[2], argv[1], &native, native_nll, rows);
    else
        json_decref(rows);
    if (!is_written)
        fprintf(stderr, "bench_quantize: %s: cannot be written\n", argv[2]);
    return system(command) != 0 || !is_written;
}
