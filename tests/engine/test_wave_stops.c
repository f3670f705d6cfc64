/* Runs that end in the midst of a change of layout, because a file is gone or they are stopped:
 * what is done stays, and they are resumed. */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/memory.h"
#include "clock.h"
#include "engine/engine.h"
#include "layout/expert_form.h"
#include "wave_tools.h"

/* ---- Before the run ---------------------------------------------------------------------------
 */

struct stop {
    int left;     /* calls before the one that stops */
    int calls;    /* after that */
    bool is_made; /* a backup, first */
    uint64_t total;
};

static int stop_load(void *context, uint64_t bytes_done, uint64_t bytes_total)
{
    struct stop *stop = context;
    (void)bytes_done;
    stop->is_made |= stop->total != 0 && stop->total != bytes_total;
    stop->total = bytes_total;
    if (stop->left-- > 0)
        return 0;
    stop->calls++;
    return 1;
}

/* A backup is there whole, or not at all; what is left of one lies beside its place. */
static bool has_backup(const char *path)
{
    struct phasor_quantize_params params = phasor_quantize_params_default();
    struct phasor_error err;
    if (access(path, F_OK) != 0)
        return false;
    params.model = WAVE_MODEL;
    params.output_path = path;
    params.verify = true;
    cr_assert_eq(phasor_quantize(&params, NULL, &err), PHASOR_OK, "%s", err.message);
    return true;
}

/* Wherever it is stopped, opening a model ends, and keeps nothing but what there is of the backup:
 * the next goes on with that, until one is opened. */
Test(wave_stops, a_model_that_is_opened_may_be_stopped)
{
    struct phasor_model_params params =
        wave_model(WAVE_MODEL, "dp2|ep2>tp2", PHASOR_TRANSITION_UPLOAD);
    struct phasor_quantize_params quantize = phasor_quantize_params_default();
    struct stop stop;
    struct phasor_model *model = NULL;
    struct phasor_error err;
    int while_made = 0, while_loaded = 0;
    char *path;
    setenv("PHASOR_CACHE", tools_path(tools_folder(), "cache"), 1);
    quantize.model = WAVE_MODEL;
    cr_assert_eq(phasor_backup_path(&path, &quantize, &err), PHASOR_OK, "%s", err.message);
    params.load_progress = stop_load;
    params.load_context = &stop;
    uint64_t live = memory_counters_get().live_count;
    for (int n = 0; model == NULL; n += 1 + n / 8) {
        stop = (struct stop){.left = n};
        bool was_there = has_backup(path);
        enum phasor_status status = phasor_model_open(&model, &params, &err);
        if (status == PHASOR_OK) {
            cr_assert_eq(stop.calls, 0);
            break;
        }
        cr_assert_eq(status, PHASOR_CANCELLED, "call %d: %s", n, err.message);
        cr_assert_eq(memory_counters_get().live_count, live, "call %d", n);
        bool is_there = has_backup(path);
        bool is_of_backup = strstr(err.message, "making the INT4 backup was stopped") != NULL;
        cr_assert(is_of_backup || strcmp(err.message, "loading the weights was stopped") == 0, "%s",
                  err.message);
        cr_assert_eq(is_there, !is_of_backup, "call %d", n);
        cr_assert(!was_there || !stop.is_made);
        cr_assert(stop.calls == 1 || is_of_backup, "call %d: %d calls", n, stop.calls);
        while_made += is_of_backup;
        while_loaded += !is_of_backup;
    }
    printf("%d stops in a backup, %d in loading\n", while_made, while_loaded);
    cr_assert(while_made > 0 && while_loaded > 0 && has_backup(path));
    phasor_model_close(model);
    phasor_text_free(path);
}

/* Of the first expert that a file has. */
static void weight_spoil(const char *path)
{
    size_t length;
    char *bytes = tools_read_file(path, &length);
    const char *expert = strstr(bytes + 8, ".experts.0.");
    const char *range = expert == NULL ? NULL : strstr(expert, "\"data_offsets\":[");
    cr_assert_not_null(range);
    uint64_t header;
    memcpy(&header, bytes, sizeof header);
    size_t at = 8 + header + strtoull(range + strlen("\"data_offsets\":["), NULL, 10);
    memcpy(bytes + at, "\xc0\x7f", 2); /* in bf16 no number */
    tools_write_file(path, bytes, length);
    free(bytes);
}

struct slow_load {
    bool is_of_ranks; /* whoever told was a rank's thread */
    uint64_t done, total;
};

/* Who tells waits, and the other rank goes on meanwhile: so only the second waits. */
static int load_slowly(void *context, uint64_t bytes_done, uint64_t bytes_total)
{
    struct slow_load *load = context;
    char thread[16] = "";
    (void)pthread_getname_np(pthread_self(), thread, sizeof thread);
    load->is_of_ranks &= strcmp(thread, "rank 0") == 0 || strcmp(thread, "rank 1") == 0;
    load->total = bytes_total;
    if (strcmp(thread, "rank 1") == 0) {
        load->done = bytes_done;
        nanosleep(&(struct timespec){.tv_nsec = 10 * 1000 * 1000}, NULL);
    }
    return 0;
}

/* The second rank has half of the experts to read when the first finds one that is no number. */
Test(wave_stops, a_rank_that_cannot_load_ends_the_others)
{
    char dir[256];
    struct phasor_synth_params synth = phasor_synth_params_default();
    struct slow_load load = {.is_of_ranks = true};
    struct phasor_model *model;
    struct phasor_error err;
    snprintf(dir, sizeof dir, "%s", tools_path(tools_folder(), "half-bad"));
    synth.preset = "qwen1.5-moe-a2.7b";
    synth.layer_count = 8;
    synth.scale_divisor = 16;
    synth.output_dir = dir;
    cr_assert_eq(phasor_synth(&synth, &err), PHASOR_OK, "%s", err.message);
    weight_spoil(tools_path(dir, "model.safetensors"));
    struct phasor_model_params params = wave_model(dir, "dp2|ep2", PHASOR_TRANSITION_AUTO);
    params.dtype = PHASOR_DTYPE_BFLOAT16;
    params.expert_dtype = PHASOR_DTYPE_INT4;
    params.thread_count = 2;
    params.load_progress = load_slowly;
    params.load_context = &load;
    cr_assert_eq(phasor_model_open(&model, &params, &err), PHASOR_FORMAT, "%s", err.message);
    cr_expect_not_null(strstr(err.message, "rank 0: "), "%s", err.message);
    cr_expect(load.is_of_ranks && load.total > 0);
    cr_expect_lt(load.done, load.total / 4, "%d of %d bytes", (int)load.done, (int)load.total);
}

/* ---- A file that is gone --------------------------------------------------------------------- */

static void copy(const char *name, const char *to)
{
    char path[256];
    size_t length;
    snprintf(path, sizeof path, "%s/%s", WAVE_MODEL, name);
    char *bytes = tools_read_file(path, &length);
    tools_write_file(to, bytes, length);
    free(bytes);
}

/* Once the run has begun. */
static int cut(void *context, const struct phasor_batch_progress *progress)
{
    (void)progress;
    cr_assert_eq(truncate(context, 1 << 20), 0);
    return PHASOR_GO_ON;
}

/* A copy of the model in the test's folder; returns its weights' file. */
static const char *copy_model(void)
{
    static const char *const files[] = {"config.json", "tokenizer.json", "tokenizer_config.json",
                                        "model.safetensors"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        copy(files[i], tools_path(tools_folder(), files[i]));
    return tools_path(tools_folder(), "model.safetensors");
}

/* Reads wait from `are_held` on until the change knows that it is to stop: whoever was told to then
 * waits for the layer that is being read, or the run has ended. */
static atomic_bool are_held, is_read, is_known;
static _Thread_local bool is_driver, has_waited, is_told; /* for a layer that is read; to stop */

static enum phasor_status run_copy(const struct phasor_batch_params *batch,
                                   struct phasor_batch_result *result, struct phasor_error *err)
{
    struct phasor_model_params params =
        wave_model(tools_folder(), "dp2|ep2>tp2", PHASOR_TRANSITION_RELOAD);
    struct phasor_model *model;
    cr_assert_eq(phasor_model_open(&model, &params, err), PHASOR_OK, "%s", err->message);
    enum phasor_status status = phasor_batch_run(model, batch, result, err);
    atomic_store(&are_held, false);
    phasor_model_close(model);
    return status;
}

/* To its end, each row once. */
static void resume(struct phasor_batch_params batch)
{
    struct phasor_batch_result result;
    struct phasor_error err;
    batch.progress = NULL;
    batch.resume = true;
    cr_assert_eq(run_copy(&batch, &result, &err), PHASOR_OK, "%s", err.message);
    cr_assert_eq(result.completed + result.completed_before, 5);
    json_t *all = tools_read_rows(batch.output_path);
    cr_assert_eq(json_array_size(all), 5);
    json_decref(all);
}

/* The checkpoint shrinks while a run reloads from it: the run ends with one sentence, and what was
 * finished stays; when the file is whole again the run is resumed to its end. */
Test(wave_stops, a_run_that_cannot_reload_is_resumed)
{
    char weights[256];
    struct phasor_batch_result result;
    struct phasor_error err;
    snprintf(weights, sizeof weights, "%s", copy_model());
    struct phasor_batch_params batch = wave_batch(wave_rows);
    batch.progress = cut;
    batch.progress_context = weights;
    cr_assert_eq(run_copy(&batch, &result, &err), PHASOR_FORMAT);
    cr_assert_not_null(strstr(err.message, "changing the layout of its experts by reload: rank "),
                       "%s", err.message);
    cr_assert_not_null(strstr(err.message, weights), "%s", err.message);
    cr_assert_lt(result.completed, 5);
    copy("model.safetensors", weights);
    resume(batch);
}

/* ---- A stop in the middle of a change ---------------------------------------------------------
 */

/* In place of the C library's. */
ssize_t pread(int fd, void *out, size_t bytes, off_t offset);
ssize_t pread(int fd, void *out, size_t bytes, off_t offset)
{
    if (atomic_load(&are_held))
        atomic_store(&is_read, true);
    while (atomic_load(&are_held) && !atomic_load(&is_known))
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return syscall(SYS_pread64, fd, out, bytes, offset);
}

/* The clock stands, however long a disk takes, but for what the driver needs to be asked again
 * while it waits for the layer. */
static void note_wait(void)
{
    has_waited = atomic_load(&is_read);
    if (is_told)
        atomic_store(&is_known, true);
    else if (is_driver && has_waited)
        clock_advance(1);
}

/* In the change of layout behind the first pass, while its first layer is read. */
static int stop(void *context, const struct phasor_batch_progress *progress)
{
    (void)context, (void)progress;
    is_driver = true;
    is_told = has_waited;
    atomic_store(&are_held, true);
    return is_told ? PHASOR_STOP : PHASOR_GO_ON;
}

static void expect_stopped(const struct phasor_batch_params *batch,
                           struct phasor_batch_result *result)
{
    struct phasor_error err;
    atomic_store(&is_read, false);
    atomic_store(&is_known, false);
    clock_hold();
    clock_on_wait(note_wait);
    cr_assert_eq(run_copy(batch, result, &err), PHASOR_CANCELLED, "%s", err.message);
    clock_on_wait(NULL);
    is_driver = has_waited = is_told = false;
    cr_assert(atomic_load(&is_read), "no layer was being read");
    cr_assert_not_null(strstr(err.message, "the run was stopped; 0 of 5 rows are done"), "%s",
                       err.message);
}

Test(wave_stops, a_stop_does_not_wait_for_all_layers)
{
    struct phasor_batch_result result;
    size_t length;
    copy_model();
    struct phasor_batch_params batch = wave_batch(wave_rows);
    batch.progress = stop;
    batch.summary_path = tools_path(tools_folder(), "summary");
    expect_stopped(&batch, &result);
    char *text = tools_read_file(batch.summary_path, &length);
    json_t *root = json_loads(text, 0, NULL);
    const json_t *layers = json_object_get(root, "expert_layers");
    size_t moved = 0;
    for (size_t i = 0; i < WAVE_LAYERS; i++)
        moved += strcmp(wave_text(json_array_get(layers, i), "layout"), "tp2") == 0;
    printf("%zu of %d layers had moved\n", moved, WAVE_LAYERS);
    cr_assert_lt(moved, WAVE_LAYERS);
    json_decref(root);
    free(text);
    batch.summary_path = NULL;
    resume(batch);
}

/* What decode computes over layers that did not come is no answer: rows of two tokens, the second
 * of which would be theirs. */
Test(wave_stops, what_a_stopped_change_leaves_decodes_nothing)
{
    static const char two[] = WAVE_ROW("a", "2") WAVE_ROW("b", "2") WAVE_ROW("c", "2")
        WAVE_ROW("d", "2") WAVE_ROW("e", "2");
    struct phasor_batch_result result;
    copy_model();
    struct phasor_batch_params batch = wave_batch(two);
    batch.progress = stop;
    expect_stopped(&batch, &result);
    cr_assert_eq(result.completed, 0);
    resume(batch);
}
