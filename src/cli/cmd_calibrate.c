/* phasor calibrate: how long operations, collectives and reads take on this machine. */
#include <inttypes.h>
#include <stdio.h>

#include "commands.h"
#include "progress.h"
#include "stop_signal.h"
#include "table.h"

struct calibrate_values {
    const char *output, *devices;
    int64_t threads;
    uint64_t memory;
    bool overwrite, quiet;
};

static struct calibrate_values values;

#define AT(member) offsetof(struct calibrate_values, member)

static const struct cli_option options[] = {
    {"output", 'o', OPTION_FILE, AT(output), "FILE",
     "the profile (that of these devices in $PHASOR_CACHE or ~/.cache/phasor, where phasor run "
     "looks "
     "for it)",
     0, 0, NULL},
    {"devices", 0, OPTION_TEXT, AT(devices), "DEVICES",
     "cpu, cpu:N, or GPUs such as cuda:0-3: as they will be in runs (cpu)", 0, 0, NULL},
    {"threads", 0, OPTION_COUNT, AT(threads), "COUNT",
     "threads of all devices together, as in runs (0: one for each core)", 0, 4096, NULL},
    {"memory", 0, OPTION_BYTES, AT(memory), "SIZE",
     "memory for what is measured (384 MiB a device, 8 GiB a GPU, at most a quarter of what is "
     "free)",
     0, 0x1p62, NULL},
    {"overwrite", 0, OPTION_FLAG, AT(overwrite), NULL, "measure a profile that is there anew", 0, 0,
     NULL},
    {"quiet", 'q', OPTION_FLAG, AT(quiet), NULL, "no progress, no summary", 0, 0, NULL},
    {.name = NULL},
};

static int on_progress(void *context, uint64_t points_done, uint64_t points_total, const char *what)
{
    progress_points_left(context, "calibrate", points_done, points_total, what);
    return stop_signal_get();
}

static void print_result(const struct phasor_calibrate_result *result, const char *path)
{
    char text[256];
    table_row("profile", path);
    table_row("processor", result->processor);
    if (*result->gpus != 0)
        table_row("GPUs", result->gpus);
    snprintf(text, sizeof text, "%d x %s, %d threads", result->rank_count, result->kernels,
             result->thread_count);
    table_row("devices", text);
    snprintf(text, sizeof text, "%" PRIu64 " measured, %" PRIu64 " found; median spread %.1f %%",
             result->points_measured, result->points_found, 100 * result->spread_median);
    table_row("points", text);
    if (result->disturbed > 0) {
        snprintf(
            text, sizeof text,
            "%" PRIu64
            " measurements, of two a point, while the machine was slower or faster than usual; "
            "--overwrite measures anew when it is quiet",
            result->disturbed);
        table_row("disturbed", text);
    }
    snprintf(text, sizeof text, "%.0f s", result->elapsed_seconds);
    table_row("took", text);
}

static int calibrate(struct phasor_calibrate_params *params, struct progress *progress,
                     const char *path)
{
    struct phasor_error err;
    struct phasor_calibrate_result result;
    params->progress = on_progress;
    params->progress_context = progress;
    params->log = progress_log;
    params->log_context = progress;
    progress_init(progress, values.quiet, false);
    stop_signal_catch(NULL);
    enum phasor_status status = phasor_calibrate(params, &result, &err);
    progress_erase(progress);
    if (status == PHASOR_OK) {
        if (!values.quiet)
            print_result(&result, path);
        return EXIT_DONE;
    }
    int exit_code = fail(&err);
    return stop_signal_get() != 0 ? 128 + stop_signal_get() : exit_code;
}

static int run(const struct cli_command *command, char **operands, int operand_count)
{
    (void)command;
    (void)operands;
    (void)operand_count;
    struct progress progress;
    struct phasor_error err;
    struct phasor_calibrate_params params = phasor_calibrate_params_default();
    char *path = NULL;
    params.devices = values.devices;
    params.output_path = values.output;
    params.thread_count = (int)values.threads;
    params.overwrite = values.overwrite;
    params.memory_bytes = values.memory;
    if (values.output == NULL && phasor_profile_path(&path, &params, &err) != PHASOR_OK)
        return fail(&err);
    int exit_code = calibrate(&params, &progress, path == NULL ? values.output : path);
    phasor_text_free(path);
    return exit_code;
}

const struct cli_command command_calibrate = {
    .name = "calibrate",
    .operands = "",
    .summary = "measure how long operations, collectives and reads take on this machine",
    .details =
        "It takes some minutes, in which nothing else should run. One that was interrupted, even "
        "by\nkill -9, goes on when the command is repeated.",
    .options = options,
    .values = &values,
    .run = run,
};
