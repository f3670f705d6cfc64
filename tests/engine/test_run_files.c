/* The files of a run: which are replaced, which are refused, and that no other is touched. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/new_file.h"
#include "engine/side_file.h"
#include "engine_tools.h"
#include "resume_tools.h"

static struct job job;
static struct phasor_model *model;
static char metrics[300], summary[300];

static void open_job(void)
{
    job_init(&job);
    model = job_model(JOB_MODEL);
    snprintf(metrics, sizeof metrics, "%s/metrics", job.folder);
    snprintf(summary, sizeof summary, "%s/summary", job.folder);
}
static void close_job(void)
{
    phasor_model_close(model);
    job_deinit(&job);
}
TestSuite(run_files, .init = open_job, .fini = close_job, .timeout = 120);

#define ROW_COUNT   10
#define ERROR_COUNT 5

static void expect_ok(const struct phasor_batch_params *params)
{
    struct phasor_error err;
    cr_assert_eq(job_run(model, params, NULL, &err), PHASOR_OK, "%s", err.message);
}

static void expect_failure(const struct phasor_batch_params *params, const char *words)
{
    struct phasor_error err = {.message = ""};
    cr_expect_neq(job_run(model, params, NULL, &err), PHASOR_OK, "%s", words);
    cr_expect_not_null(strstr(err.message, words), "\"%s\" is not in: %s", words, err.message);
}

/* By the run, and before a model is loaded. */
static void expect_refused(const struct phasor_batch_params *params, const char *words)
{
    struct phasor_error err = {.message = ""};
    expect_failure(params, words);
    cr_expect_eq(phasor_batch_check(params, &err), PHASOR_INVALID_ARGUMENT, "%s", words);
    cr_expect_not_null(strstr(err.message, words), "\"%s\" is not in: %s", words, err.message);
}

static size_t count_lines(const char *path)
{
    json_t *rows = tools_read_rows(path);
    size_t count = json_array_size(rows);
    json_decref(rows);
    return count;
}

static void put(const char *path, const char *text)
{
    tools_write_file(path, text, strlen(text));
}

static void expect_text(const char *path, const char *text)
{
    size_t length;
    char *content = tools_read_file(path, &length);
    cr_expect_str_eq(content, text, "%s", path);
    free(content);
}

static bool is_there(const char *path)
{
    struct stat about;
    return lstat(path, &about) == 0;
}

/* ---- --overwrite --------------------------------------------------------------------------- */

static struct phasor_batch_params plain(void)
{
    struct phasor_batch_params params = job_params(&job);
    params.error_path = NULL;
    return params;
}

/* Standard output is the test's own, which is let go on elsewhere. */
static void run_with_stdout_at(const char *path, const struct phasor_batch_params *params)
{
    int kept = dup(STDOUT_FILENO);
    fflush(stdout);
    cr_assert_not_null(freopen(path, "w", stdout));
    expect_ok(params);
    cr_assert_eq(dup2(kept, STDOUT_FILENO), STDOUT_FILENO);
    close(kept);
}

Test(run_files, overwrite_replaces_beside_streams_and_devices)
{
    static const struct {
        const char *output, *errors; /* NULL: the job's */
    } cases[] = {{NULL, "/dev/null"}, {NULL, "-"}, {"-", NULL}, {"/dev/null", NULL}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct phasor_batch_params params = job_params(&job);
        const char *kept = cases[i].output == NULL ? job.output : job.errors;
        expect_ok(&params);
        params.output_path = cases[i].output == NULL ? job.output : cases[i].output;
        params.error_path = cases[i].errors == NULL ? job.errors : cases[i].errors;
        params.overwrite = true;
        run_with_stdout_at("/dev/null", &params);
        cr_expect_eq(count_lines(kept), ERROR_COUNT, "case %zu", i);
        cr_expect_eq(is_there(job.record), cases[i].output != NULL, "case %zu", i);
        cr_expect(!is_there("/dev/null"
                            ".phasor-run"));
        job_clear(&job);
    }
}

Test(run_files, only_a_record_is_removed)
{
    struct phasor_batch_params params = plain();
    params.error_path = "/dev/null";
    put(job.record, "mine");
    expect_ok(&params);
    expect_text(job.record, "mine");
    put(job.record, "{\"phasor_run\": 1, \"begun\": 3}");
    params.overwrite = true;
    expect_ok(&params);
    cr_expect(!is_there(job.record), "of an output that was replaced");
    cr_expect_eq(count_lines(job.output), ROW_COUNT - ERROR_COUNT);
}

/* ---- New files ----------------------------------------------------------------------------- */

/* The names that versions before had for new content. */
Test(run_files, nothing_is_lost_under_any_name_beside)
{
    char names[3][400];
    struct phasor_batch_params params = plain();
    snprintf(names[0], sizeof names[0], "%s.phasor-new", metrics);
    snprintf(names[1], sizeof names[1], "%s.new", job.record);
    snprintf(names[2], sizeof names[2], "%s.phasor-new", summary);
    params.metrics_path = metrics;
    params.summary_path = summary;
    put(names[0], "one");
    put(names[1], "two");
    put(job.errors, "three");
    cr_assert_eq(symlink(job.errors, names[2]), 0);
    expect_ok(&params);
    cr_expect(is_there(metrics) && is_there(summary) && is_there(job.record));
    expect_text(names[0], "one");
    expect_text(names[1], "two");
    expect_text(job.errors, "three");
}

Test(run_files, new_files_are_new)
{
    char names[3][PATH_MAX];
    mode_t mask = umask(027);
    for (int i = 0; i < 3; i++) {
        struct stat about;
        int fd = new_file_open(names[i], metrics);
        cr_assert(fd >= 0 && fstat(fd, &about) == 0);
        cr_expect_eq(about.st_mode & 0777, 0640);
        close(fd);
    }
    umask(mask);
    cr_expect_str_neq(names[0], names[1]);
    cr_expect_str_neq(names[1], names[2]);
    char long_name[PATH_MAX], name[PATH_MAX];
    memset(long_name, 'x', sizeof long_name - 1);
    long_name[sizeof long_name - 1] = 0;
    cr_expect_lt(new_file_open(name, long_name), 0);
}

#define ROUNDS 300

static void *write_often(void *letter)
{
    struct side_file file = {.path = metrics, .flag = "--metrics-file"};
    struct text text = {0};
    size_t length = *(const char *)letter == 'a' ? 1000 : 30000;
    for (size_t i = 0; i < length; i++)
        text_append(&text, letter, 1);
    for (int i = 0; i < ROUNDS; i++)
        side_file_write(&file, &text, &(struct log_sink){0});
    text_deinit(&text);
    cr_expect(!file.has_failed);
    return NULL;
}

Test(run_files, two_runs_do_not_tear_a_shared_file)
{
    pthread_t threads[2];
    static char letters[2] = {'a', 'b'};
    put(metrics, "a");
    for (int i = 0; i < 2; i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, write_often, &letters[i]), 0);
    for (int i = 0; i < ROUNDS; i++) {
        size_t length;
        char *content = tools_read_file(metrics, &length);
        cr_assert_eq(strspn(content, content[0] == 'a' ? "a" : "b"), length);
        cr_assert(length == 1 || length == (content[0] == 'a' ? 1000 : 30000), "%zu", length);
        free(content);
    }
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
}

/* ---- What is refused ----------------------------------------------------------------------- */

Test(run_files, the_record_is_no_side_file)
{
    char other[400];
    struct phasor_batch_params params = plain();
    snprintf(other, sizeof other, "%s/../%s/out.phasor-run", job.folder,
             strrchr(job.folder, '/') + 1);
    for (int i = 0; i < 2; i++) {
        params.metrics_path = i == 0 ? job.record : other;
        params.summary_path = NULL;
        expect_refused(&params, "another file of this run");
        params.summary_path = params.metrics_path;
        params.metrics_path = NULL;
        expect_refused(&params, "another file of this run");
        params.summary_path = NULL;
        params.error_path = i == 0 ? job.record : other;
        expect_refused(&params, "the record of this run");
        params.error_path = NULL;
        if (i == 0)
            expect_ok(&params); /* and now that it is there */
        params.overwrite = true;
    }
    params.metrics_path = job.record;
    expect_refused(&params, "another file of this run");
    cr_expect_eq(count_lines(job.output), ROW_COUNT);
}

Test(run_files, what_phasor_did_not_write_is_kept)
{
    struct phasor_batch_params params = plain();
    params.overwrite = true;
    for (int i = 0; i < 2; i++) {
        const char *path = i == 0 ? metrics : summary;
        *(i == 0 ? &params.metrics_path : &params.summary_path) = path;
        put(path, "{\"vocab_size\": 1}");
        expect_refused(&params, "did not write");
        expect_text(path, "{\"vocab_size\": 1}");
        put(path, "{");
        expect_refused(&params, "did not write");
        put(path, "");
        expect_ok(&params);
        expect_ok(&params); /* its own */
    }
}

Test(run_files, the_model_is_not_overwritten)
{
    char copy[300], config[400], weights[400], link[300];
    struct phasor_batch_params params = plain();
    snprintf(copy, sizeof copy, "%s/model", job.folder);
    snprintf(config, sizeof config, "%s/config.json", copy);
    snprintf(weights, sizeof weights, "%s/../model/model.safetensors", copy);
    snprintf(link, sizeof link, "%s/link", job.folder);
    char command[1200];
    snprintf(command, sizeof command, "cp -rL '%s' '%s'", JOB_MODEL, copy);
    cr_assert_eq(system(command), 0);
    cr_assert_eq(symlink(config, link), 0);
    struct phasor_model *other = job_model(copy);
    const char *const paths[] = {config, weights, link};
    params.overwrite = true;
    for (size_t i = 0; i < 3; i++) {
        struct phasor_error err = {.message = ""};
        params.output_path = paths[i];
        cr_expect_eq(job_run(other, &params, NULL, &err), PHASOR_INVALID_ARGUMENT);
        cr_expect_not_null(strstr(err.message, "a file of the model"), "%s", err.message);
        params.output_path = job.output;
        params.error_path = paths[i];
        cr_expect_eq(job_run(other, &params, NULL, &err), PHASOR_INVALID_ARGUMENT);
        params.error_path = NULL;
        params.summary_path = paths[i];
        cr_expect_eq(job_run(other, &params, NULL, &err), PHASOR_INVALID_ARGUMENT);
        params.summary_path = NULL;
    }
    snprintf(config, sizeof config, "%s/out.json", copy); /* an output of one's own may be there */
    params.output_path = config;
    for (int i = 0; i < 2; i++) {
        struct phasor_error err = {.message = ""};
        cr_expect_eq(job_run(other, &params, NULL, &err), PHASOR_OK, "%s", err.message);
    }
    phasor_model_close(other);
}

Test(run_files, pipes_streams_and_links_to_nothing_are_refused)
{
    char pipe[300], link[300];
    struct phasor_batch_params params = plain();
    snprintf(pipe, sizeof pipe, "%s/pipe", job.folder);
    snprintf(link, sizeof link, "%s/link", job.folder);
    cr_assert_eq(mkfifo(pipe, 0600), 0);
    cr_assert_eq(symlink("nowhere", link), 0);
    params.metrics_path = pipe;
    expect_refused(&params, "is a pipe");
    params.metrics_path = NULL;
    params.summary_path = link;
    expect_refused(&params, "a link to a file that is not there");
    params.summary_path = metrics;
    params.output_path = "-";
    int kept = dup(STDOUT_FILENO);
    fflush(stdout);
    cr_assert_not_null(freopen(metrics, "w", stdout));
    expect_refused(&params, "standard output");
    params.summary_path = "/dev/stdout";
    expect_refused(&params, "standard output");
    cr_assert_eq(dup2(kept, STDOUT_FILENO), STDOUT_FILENO);
    close(kept);
    expect_text(metrics, "");
}

Test(run_files, what_cannot_be_written_is_told_before_a_load)
{
    char link[300], record_folder[400];
    struct phasor_error err;
    snprintf(link, sizeof link, "%s/link", job.folder);
    snprintf(record_folder, sizeof record_folder, "%s/none/out", job.folder);
    cr_assert_eq(symlink("nowhere", link), 0);
    const char *const paths[] = {link, record_folder, "/proc/phasor", job.folder, ""};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        struct phasor_batch_params params = plain();
        params.output_path = paths[i];
        cr_expect_neq(phasor_batch_check(&params, &err), PHASOR_OK, "-o %s", paths[i]);
        params = plain();
        params.error_path = paths[i];
        cr_expect_neq(phasor_batch_check(&params, &err), PHASOR_OK, "--error-file %s", paths[i]);
        params = plain();
        params.metrics_path = paths[i];
        cr_expect_neq(phasor_batch_check(&params, &err), PHASOR_OK, "--metrics-file %s", paths[i]);
    }
    struct phasor_batch_params params = plain();
    params.input_path = job.folder;
    cr_expect_neq(phasor_batch_check(&params, &err), PHASOR_OK, "a folder as input");
    params = plain();
    cr_expect_eq(phasor_batch_check(&params, &err), PHASOR_OK, "%s", err.message);
    cr_expect(!is_there(job.output), "the check leaves nothing");
}

/* ---- Links --------------------------------------------------------------------------------- */

Test(run_files, links_stay_links)
{
    char link[300];
    struct stat about;
    struct phasor_batch_params params = plain();
    snprintf(link, sizeof link, "%s/link", job.folder);
    put(summary, "");
    cr_assert_eq(symlink("summary", link), 0); /* relative */
    params.summary_path = link;
    params.overwrite = true;
    for (int i = 0; i < 2; i++) {
        expect_ok(&params);
        cr_expect(lstat(link, &about) == 0 && S_ISLNK(about.st_mode));
        cr_expect_eq(count_lines(summary), 1);
    }
    params.chat_template = "no-such";
    expect_failure(&params, "no-such");
    expect_text(summary, ""); /* of no run */
    params.chat_template = NULL;
    expect_ok(&params);
    cr_expect_eq(count_lines(summary), 1);
}

/* ---- When they are written ----------------------------------------------------------------- */

Test(run_files, a_finished_run_keeps_its_figures)
{
    struct phasor_batch_params params = job_params(&job);
    size_t length;
    params.metrics_path = metrics;
    params.summary_path = summary;
    expect_ok(&params);
    char *figures[] = {tools_read_file(metrics, &length), tools_read_file(summary, &length)};
    params.resume = true;
    expect_ok(&params);
    expect_text(metrics, figures[0]);
    expect_text(summary, figures[1]);
    unlink(summary);
    expect_ok(&params);
    expect_text(metrics, figures[0]);
    cr_expect_eq(count_lines(summary), 1, "what is missing is written");
    free(figures[0]);
    free(figures[1]);
}

Test(run_files, a_run_that_fails_leaves_no_old_figures)
{
    struct phasor_batch_params params = job_params(&job);
    params.metrics_path = metrics;
    params.summary_path = summary;
    expect_ok(&params);
    params.strict = true;
    expect_failure(&params, "rows are wrong");
    cr_expect(!is_there(metrics) && !is_there(summary));
    put(metrics, "# HELP phasor:x");
    put(summary, "{\"model_id\":1}");
    params.strict = false;
    expect_failure(&params, "--overwrite"); /* another run's output, and another run's figures */
    cr_expect(is_there(metrics) && is_there(summary));
}

static int look(void *context, const struct phasor_batch_progress *progress)
{
    (void)context;
    if (progress->requests_done > 0)
        cr_expect(!is_there(summary), "one that is killed now has none");
    return PHASOR_GO_ON;
}

Test(run_files, a_run_takes_the_old_summary_away)
{
    struct phasor_batch_params params = plain();
    params.summary_path = summary;
    params.progress = look;
    expect_ok(&params);
    params.overwrite = true;
    expect_ok(&params);
    cr_expect_eq(count_lines(summary), 1);
}
