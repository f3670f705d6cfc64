/* Whole runs by upload, however the machine lets the backup be read: the output is the same to the
 * byte, and with it the log-probabilities of every token. */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "forbid.h"
#include "reads.h"
#include "wave_tools.h"

#define KV_BYTES ((uint64_t)1 << 20)

/* Said to be asked for: beside it no copy of the backup has room. */
#define KV_BYTES_OF_ALL ((uint64_t)1 << 50)

static const struct reading {
    bool is_narrow; /* from the disk, else from memory */
    bool without_lock, without_uring, without_direct, without_registered;
    const char *source;
} readings[] = {
    {true, .source = "disk, by io_uring, O_DIRECT"},
    {true, .without_registered = true, .source = "disk, by io_uring, O_DIRECT"},
    {true, .without_direct = true, .source = "disk through the page cache, by io_uring"},
    {true, .without_direct = true, .without_registered = true,
     .source = "disk through the page cache, by io_uring"},
    {true, .without_uring = true, .source = "disk, by threads, O_DIRECT"},
    {true, .without_uring = true, .without_direct = true,
     .source = "disk through the page cache, by threads"},
    {.without_lock = true, .source = "page cache, by io_uring"},
    {.without_lock = true, .without_registered = true, .source = "page cache, by io_uring"},
    {.without_lock = true, .without_uring = true, .source = "page cache, by threads"},
    {.source = "locked memory"},
};
#define READING_COUNT (sizeof readings / sizeof *readings)

static void forbid_all(const struct reading *reading)
{
    if (reading->without_lock) {
        forbid(__NR_mlock, EPERM); /* what mlock2 is without flags */
        forbid(__NR_mlock2, EPERM);
    }
    if (reading->without_uring)
        forbid(__NR_io_uring_setup, EPERM);
    if (reading->without_direct)
        forbid_bits(__NR_openat, 2, O_DIRECT, EINVAL);
    if (reading->without_registered)
        forbid_value(__NR_io_uring_register, 1, IORING_REGISTER_BUFFERS, ENOMEM);
}

/* In the process of a run, of which the test framework knows nothing. */
static void expect(bool is_true, const struct reading *reading, const char *what)
{
    if (is_true)
        return;
    fprintf(stderr, "%s: %s\n", reading->source, what);
    _exit(1);
}

struct notes {
    bool of_registered, of_direct;
};

/* What the machine refuses is noted. */
static void hear(void *context, enum phasor_log_level level, const char *message)
{
    struct notes *notes = context;
    (void)level;
    notes->of_registered |= strstr(message, "does not keep hold of the buffers") != NULL;
    notes->of_direct |= strstr(message, "refuses O_DIRECT") != NULL;
}

static void check_source(const struct reading *reading, const char *path, const struct notes *notes)
{
    size_t length;
    char *text = tools_read_file(path, &length);
    json_t *root = json_loads(text, 0, NULL);
    expect(strcmp(wave_text(root, "transition"), "upload") == 0, reading, "another way");
    expect(strcmp(wave_text(root, "backup_source"), reading->source) == 0, reading,
           wave_text(root, "backup_source"));
    expect(notes->of_registered == reading->without_registered, reading, "registered buffers");
    expect(notes->of_direct == reading->without_direct, reading, "O_DIRECT");
    json_decref(root);
    free(text);
}

static void run(const char *plan, const struct reading *reading)
{
    struct phasor_model_params params = wave_model(WAVE_MODEL, plan, PHASOR_TRANSITION_UPLOAD);
    struct phasor_batch_params batch = wave_batch(wave_rows);
    struct phasor_batch_result result;
    struct phasor_model *model;
    struct phasor_error err;
    struct notes notes = {false, false};
    params.kv_bytes = reading->is_narrow ? KV_BYTES_OF_ALL : KV_BYTES;
    batch.kv_bytes = KV_BYTES;
    batch.max_num_batched_tokens = 16;
    params.max_num_seqs = batch.max_num_seqs;
    params.max_num_batched_tokens = batch.max_num_batched_tokens;
    params.log = hear;
    params.log_context = &notes;
    batch.overwrite = true;
    batch.summary_path = tools_path(tools_folder(), "summary");
    expect(phasor_model_open(&model, &params, &err) == PHASOR_OK, reading, err.message);
    expect(phasor_batch_run(model, &batch, &result, &err) == PHASOR_OK, reading, err.message);
    phasor_model_close(model);
    expect(result.completed == 5 && result.transitions > 2, reading, "rows are missing");
    check_source(reading, batch.summary_path, &notes);
}

/* In a process of its own, which alone has less than the machine can. */
static void run_apart(const char *plan, const struct reading *reading)
{
    int status;
    pid_t child = fork();
    cr_assert_geq(child, 0);
    if (child == 0) {
        forbid_all(reading);
        run(plan, reading);
        _exit(0);
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s, %s", plan, reading->source);
}

/* But for the time at which a row was done. */
static char *output_read(size_t *length)
{
    static const char key[] = "\"created\":";
    char *text = tools_read_file(tools_path(tools_folder(), "out"), length);
    int rows = 0;
    for (char *at = text; (at = strstr(at, key)) != NULL; rows++) {
        for (at += sizeof key - 1; *at >= '0' && *at <= '9'; at++)
            *at = '0';
    }
    cr_assert_eq(rows, 5);
    return text;
}

/* What the machine itself cannot do is not tried. */
static bool can(const struct reading *reading)
{
    bool is_by_uring = strstr(reading->source, "io_uring") != NULL;
    bool is_direct = strstr(reading->source, "O_DIRECT") != NULL;
    return (!is_by_uring || uring_works()) &&
           (!is_direct || direct_works(WAVE_MODEL "/model.safetensors"));
}

Test(wave_reads, give_the_same_output_to_the_byte, .timeout = 300)
{
    static const char *const plans[] = {"dp2|ep2>tp2", "dp2|ep2>tp2:int4"};
    setenv("PHASOR_CACHE", tools_path(tools_folder(), "cache"), 1);
    for (size_t p = 0; p < sizeof plans / sizeof *plans; p++) {
        char *first = NULL;
        size_t first_length = 0;
        for (size_t i = 0; i < READING_COUNT; i++) {
            size_t length;
            if (!can(&readings[i]))
                continue;
            run_apart(plans[p], &readings[i]);
            char *text = output_read(&length);
            if (first == NULL) {
                first = text;
                first_length = length;
                cr_assert_not_null(strstr(first, "token_logprobs"));
                continue;
            }
            cr_assert(length == first_length && memcmp(text, first, length) == 0, "%s, %s",
                      plans[p], readings[i].source);
            free(text);
        }
        cr_assert_not_null(first);
        free(first);
    }
}
