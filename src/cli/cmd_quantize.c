/* phasor quantize: the INT4 backup of a checkpoint's experts. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "commands.h"
#include "progress.h"
#include "stop_signal.h"
#include "table.h"

struct quantize_values {
    const char *output, *revision;
    int scheme;
    int64_t group, threads;
    bool asymmetric, zstd, overwrite, verify, quiet;
};

static struct quantize_values values = {.group = 64};

static const struct option_word scheme_words[] = {
    {"group", PHASOR_QUANT_GROUP, NULL},
    {"channel", PHASOR_QUANT_CHANNEL, NULL},
    {"tensor", PHASOR_QUANT_TENSOR, NULL},
    {NULL, 0, NULL},
};

#define AT(member) offsetof(struct quantize_values, member)

static const struct cli_option options[] = {
    {"output", 'o', OPTION_FILE, AT(output), "FILE",
     "the backup (in $PHASOR_CACHE or ~/.cache/phasor, by the checkpoint's fingerprint)", 0, 0,
     NULL},
    {"revision", 0, OPTION_TEXT, AT(revision), "NAME",
     "of a model in the Hugging Face cache (main)", 0, 0, NULL},
    {"scheme", 0, OPTION_WORD, AT(scheme), "SCHEME",
     "what has a scale of its own: a group, a channel (row) or a tensor (group)", 0, 0,
     scheme_words},
    {"group", 0, OPTION_COUNT, AT(group), "COUNT",
     "weights of a group, along the hidden dimension: a multiple of 16 (64)", 16, 65536, NULL},
    {"asymmetric", 0, OPTION_FLAG, AT(asymmetric), NULL, "a minimum beside each scale", 0, 0, NULL},
    {"zstd", 0, OPTION_FLAG, AT(zstd), NULL, "compress, for a slow disk: some percent less to read",
     0, 0, NULL},
    {"threads", 0, OPTION_COUNT, AT(threads), "COUNT", "threads (0: one for each core)", 0, 4096,
     NULL},
    {"overwrite", 0, OPTION_FLAG, AT(overwrite), NULL, "make a backup that is there anew", 0, 0,
     NULL},
    {"verify", 0, OPTION_FLAG, AT(verify), NULL,
     "write nothing: read the backup that is there, and check all of it", 0, 0, NULL},
    {"quiet", 'q', OPTION_FLAG, AT(quiet), NULL, "no progress, no summary", 0, 0, NULL},
    {.name = NULL},
};

static int on_progress(void *context, uint64_t bytes_done, uint64_t bytes_total)
{
    progress_bytes(context, values.verify ? "verify" : "quantize", bytes_done, bytes_total);
    return stop_signal_get();
}

static struct phasor_quantize_params params_of(const char *model, struct progress *progress)
{
    struct phasor_quantize_params params = phasor_quantize_params_default();
    params.model = model;
    params.revision = values.revision;
    params.output_path = values.output;
    params.scheme = (enum phasor_quant_scheme)values.scheme;
    params.group = values.group;
    params.asymmetric = values.asymmetric;
    params.zstd = values.zstd;
    params.overwrite = values.overwrite;
    params.verify = values.verify;
    params.thread_count = (int)values.threads;
    params.progress = on_progress;
    params.progress_context = progress;
    return params;
}

static void print_result(const struct phasor_quantize_result *result, const char *path)
{
    char text[128], bytes[48];
    double weights = (double)result->weight_count;
    table_row("backup", path);
    table_format_bytes(bytes, sizeof bytes, (double)result->file_bytes);
    snprintf(text, sizeof text, "%s, %.3f bits a weight", bytes,
             weights > 0 ? 8 * (double)result->file_bytes / weights : 0);
    table_row("size", text);
    snprintf(text, sizeof text, "min %.5f, mean %.5f of %" PRIu64 " matrices", result->cosine_min,
             result->cosine_mean, result->matrix_count);
    table_row("cosine", text);
    if (!values.verify && result->found_bytes == result->file_bytes) {
        table_row("written", "nothing: it was there");
        return;
    }
    uint64_t done_bytes = result->file_bytes - (values.verify ? 0 : result->found_bytes);
    double share = (double)done_bytes / (double)result->file_bytes;
    snprintf(text, sizeof text, "%.1f s, %.2f GB/s of bfloat16", result->elapsed_seconds,
             result->elapsed_seconds > 0 ? 2e-9 * weights * share / result->elapsed_seconds : 0);
    table_row(values.verify ? "checked in" : "made in", text);
}

static int run(const struct cli_command *command, char **operands, int operand_count)
{
    (void)operand_count;
    char *path = NULL;
    struct progress progress;
    struct phasor_error err;
    struct phasor_quantize_result result;
    struct phasor_quantize_params params = params_of(operands[0], &progress);
    if (values.group % 16 != 0)
        return options_mistake(command, "--group: expected a multiple of 16, found %" PRId64,
                               values.group);
    progress_init(&progress, values.quiet, false);
    stop_signal_catch(NULL);
    enum phasor_status status = PHASOR_OK;
    if (values.output == NULL)
        status = phasor_backup_path(&path, &params, &err);
    if (status == PHASOR_OK)
        status = phasor_quantize(&params, &result, &err);
    progress_erase(&progress);
    int exit_code = status == PHASOR_OK ? EXIT_DONE : fail(&err);
    if (status == PHASOR_OK && !values.quiet)
        print_result(&result, values.output != NULL ? values.output : path);
    phasor_text_free(path);
    bool was_stopped = status != PHASOR_OK && stop_signal_get() != 0;
    return was_stopped ? 128 + stop_signal_get() : exit_code;
}

const struct cli_command command_quantize = {
    .name = "quantize",
    .operands = "MODEL",
    .summary = "write the INT4 backup of a checkpoint's experts, or check one",
    .details = "A run that was interrupted, even by kill -9, goes on when the command is repeated.",
    .options = options,
    .values = &values,
    .operand_min = 1,
    .operand_max = 1,
    .run = run,
};
