/* Runs that are killed, cut or fail, and then resumed: each row once, with the same bytes. */
#include <criterion/criterion.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/memory.h"
#include "engine_tools.h"
#include "resume_tools.h"
#include "sweep.h"

static struct job job;
static void init_job(void)
{
    job_init(&job);
    job_expect(&job);
}
static void deinit_job(void)
{
    job_deinit(&job);
}
TestSuite(resume_faults, .init = init_job, .fini = deinit_job, .timeout = 250);

static struct phasor_batch_params resuming(void)
{
    struct phasor_batch_params params = job_params(&job);
    params.resume = true;
    return params;
}

static void copy_file(const char *from, const char *to, size_t length_max)
{
    size_t length;
    char *bytes = tools_read_file(from, &length);
    tools_write_file(to, bytes, length < length_max ? length : length_max);
    free(bytes);
}

/* ---- A32: killed at a numbered point ------------------------------------------------------- */

/* Counts the places before and after each operation, and kills at one of them. */
struct killer {
    int n, count;
};

static void pass_point(struct killer *killer)
{
    if (++killer->count == killer->n)
        raise(SIGKILL);
}

static int kill_before(void *context, enum disk_op op, size_t *length)
{
    (void)op;
    (void)length;
    pass_point(context);
    return 0;
}

/* Of a write only a part has come to the file. */
static int kill_within(void *context, enum disk_op op, size_t *length)
{
    struct killer *killer = context;
    if (op == DISK_WRITE && killer->count + 1 == killer->n)
        *length = 1 + *length / 2;
    return 0;
}

static void kill_after(void *context, enum disk_op op)
{
    (void)op;
    pass_point(context);
}

static bool run_until(const struct phasor_batch_params *params, int n, bool within)
{
    struct killer killer = {.n = n};
    const struct disk_hooks hooks = {within ? kill_within : kill_before, kill_after, &killer};
    int ending = job_run_apart(params, &hooks);
    if (WIFSIGNALED(ending))
        cr_assert_eq(WTERMSIG(ending), SIGKILL);
    else
        cr_assert_eq(ending, 0, "point %d", n);
    return WIFSIGNALED(ending);
}

static void expect_resumed(int n, const char *what)
{
    char name[64];
    struct phasor_batch_params params = resuming();
    snprintf(name, sizeof name, "%s %d", what, n);
    cr_assert_eq(job_run_apart(&params, NULL), 0, "%s", name);
    job_check(&job, name);
}

static int sweep_kills(const struct phasor_batch_params *params, bool within, void (*prepare)(void),
                       const char *what)
{
    int step = (int)sweep_step(1), n = (int)sweep_first((uint64_t)step);
    for (;; n += step) {
        prepare();
        if (!run_until(params, n, within))
            break;
        expect_resumed(n, what);
    }
    job_check(&job, what); /* the last one was not killed */
    return n - 1;
}

static void from_nothing(void)
{
    job_clear(&job);
}

Test(resume_faults, A32_killed_at_each_point_of_a_run)
{
    struct phasor_batch_params params = job_params(&job);
    int points = sweep_kills(&params, false, from_nothing, "killed at point");
    cr_log_info("%d points of a run", points);
    cr_expect_gt(points, 2 * 14, "record, 10 rows, and bringing them to the disk");
    sweep_kills(&params, true, from_nothing, "killed within write");
}

/* Three whole lines, a torn one, and one error. */
static char *torn_output;
static void from_a_torn_run(void)
{
    tools_write_file(job.output, torn_output, strlen(torn_output));
}

Test(resume_faults, A32_killed_at_each_point_of_a_resumed_run)
{
    struct phasor_batch_params params = job_params(&job), again = resuming();
    size_t length;
    cr_assert_eq(job_run_apart(&params, NULL), 0);
    torn_output = tools_read_file(job.output, &length);
    char *third = torn_output;
    for (int i = 0; i < 3; i++)
        third = strchr(third, '\n') + 1;
    third[40] = 0;
    int points = sweep_kills(&again, false, from_a_torn_run, "a resumed run killed at point");
    cr_log_info("%d points of a resumed run", points);
    cr_expect_gt(points, 2 * 4);
    free(torn_output);
}

/* An output of another run, which is to be replaced: until it is gone --resume must refuse it. */
static void from_another_run(void)
{
    struct phasor_batch_params params = job_params(&job);
    job_clear(&job);
    params.seed = 99;
    cr_assert_eq(job_run_apart(&params, NULL), 0);
}

Test(resume_faults, A32_killed_at_each_point_of_an_overwriting_run)
{
    struct phasor_batch_params params = job_params(&job), again = resuming();
    params.overwrite = true;
    int step = (int)sweep_step(4), n = (int)sweep_first((uint64_t)step), refused = 0;
    for (;; n += step) {
        from_another_run();
        if (!run_until(&params, n, false))
            break;
        int ending = job_run_apart(&again, NULL);
        if (ending != 0) {
            refused++;
            cr_assert_eq(job_run_apart(&params, NULL), 0);
        }
        job_check(&job, "after --overwrite was killed");
    }
    cr_log_info("%d points of an overwriting run; refused %d times", n - 1, refused);
    cr_expect_lt(refused * step, n / 2);
}

/* Random moments, again and again within the same job. Full tier. */
Test(resume_faults, A32_killed_at_random_times, .timeout = 3000)
{
    enum { KILLS = 200 };
    int killed = 0, jobs = 0;
    struct phasor_batch_params params = resuming();
    const char *seed = getenv("PHASOR_TEST_SEED");
    srand(seed == NULL ? 1 : (unsigned)strtoul(seed, NULL, 10));
    int wanted = getenv("PHASOR_TEST_FULL") == NULL ? 8 : KILLS;
    for (bool is_new = true; killed < wanted;) {
        if (is_new)
            job_clear(&job);
        pid_t child = fork();
        cr_assert_geq(child, 0);
        if (child == 0) {
            struct phasor_model *model = job_model(JOB_MODEL);
            struct phasor_error err;
            _exit((int)job_run(model, &params, NULL, &err));
        }
        usleep((useconds_t)(rand() % 60000));
        kill(child, SIGKILL);
        int ending;
        cr_assert_eq(waitpid(child, &ending, 0), child);
        killed += WIFSIGNALED(ending);
        is_new = ending == 0;
        if (is_new) {
            jobs++;
            job_check(&job, "killed at random times");
        }
    }
    cr_assert_eq(job_run_apart(&params, NULL), 0);
    job_check(&job, "killed at random times");
    cr_log_info("%d kills over %d jobs", killed, jobs + 1);
}

/* ---- A33: cut at each byte of the last record ---------------------------------------------- */

static size_t last_line_at(const char *bytes, size_t length)
{
    for (size_t at = length - 1; at > 0; at--) {
        if (bytes[at - 1] == '\n')
            return at;
    }
    return 0;
}

Test(resume_faults, A33_cut_at_each_byte_of_the_last_record)
{
    struct phasor_batch_params params = job_params(&job), again = resuming();
    struct phasor_batch_result result;
    struct phasor_error err;
    const char *files[] = {job.output, job.errors};
    struct phasor_model *model = job_model(JOB_MODEL);
    cr_assert_eq(job_run(model, &params, NULL, &err), PHASOR_OK, "%s", err.message);
    for (int i = 0; i < 2; i++) {
        size_t length;
        char *bytes = tools_read_file(files[i], &length);
        size_t step = sweep_step(16), cut = last_line_at(bytes, length) + sweep_first(step) - 1;
        for (; cut < length; cut += step) {
            tools_write_file(files[i], bytes, cut);
            cr_assert_eq(job_run(model, &again, &result, &err), PHASOR_OK, "%s", err.message);
            cr_assert_eq(result.completed + result.failed, 1);
            job_check(&job, "cut");
        }
        free(bytes);
    }
    phasor_model_close(model);
}

/* ---- A25: the disk fails ------------------------------------------------------------------- */

struct trouble {
    int n, count; /* the n-th operation of `op` */
    enum disk_op op;
    int failure;        /* errno; 0: the write is cut short */
    bool is_persistent; /* and all operations behind it */
    bool has_struck;
};

static int make_trouble(void *context, enum disk_op op, size_t *length)
{
    struct trouble *trouble = context;
    if (trouble->has_struck && trouble->is_persistent)
        return trouble->failure;
    if (op != trouble->op || ++trouble->count != trouble->n)
        return 0;
    trouble->has_struck = true;
    if (op == DISK_WRITE && (trouble->is_persistent || trouble->failure == 0) && *length > 1) {
        *length = *length / 2; /* a part goes, and with a persistent failure nothing more */
        return 0;
    }
    return trouble->failure;
}

static void no_trouble(void *context, enum disk_op op)
{
    (void)context;
    (void)op;
}

/* Lets the n-th operation fail for n = 1, 2, ...; returns how many there were. */
static int sweep_trouble(struct phasor_model *model, struct trouble kind)
{
    struct phasor_batch_params params = job_params(&job), again = resuming();
    struct phasor_error err;
    for (int n = 1;; n++) {
        struct trouble trouble = kind;
        trouble.n = n;
        const struct disk_hooks hooks = {make_trouble, no_trouble, &trouble};
        job_clear(&job);
        disk_hooks_set(&hooks);
        enum phasor_status status = job_run(model, &params, NULL, &err);
        disk_hooks_set(NULL);
        if (trouble.has_struck && trouble.failure != 0)
            cr_assert_eq(status, PHASOR_IO, "operation %d of kind %d, error %d: status %d", n,
                         kind.op, kind.failure, status);
        else
            cr_assert_eq(status, PHASOR_OK, "%s", err.message);
        status = job_run(model, &again, NULL, &err);
        cr_assert_eq(status, PHASOR_OK, "%d: %s", n, err.message);
        job_check(&job, "after the disk failed");
        if (!trouble.has_struck)
            return n - 1;
    }
}

Test(resume_faults, A25_the_disk_fails)
{
    static const struct trouble kinds[] = {
        {.op = DISK_WRITE, .failure = ENOSPC},
        {.op = DISK_WRITE, .failure = EDQUOT, .is_persistent = true},
        {.op = DISK_WRITE, .failure = 0},
        {.op = DISK_SYNC, .failure = EIO},
        {.op = DISK_SYNC, .failure = EIO, .is_persistent = true},
        {.op = DISK_RENAME, .failure = ENOSPC},
    };
    struct phasor_model *model = job_model(JOB_MODEL);
    int count = 0;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        int found = sweep_trouble(model, kinds[i]);
        cr_expect_gt(found, 0, "kind %zu", i);
        count += found;
    }
    cr_log_info("%d failures of the disk", count);
    phasor_model_close(model);
}

Test(resume_faults, A25_a_run_that_cannot_begin_leaves_nothing)
{
    struct phasor_batch_params params = job_params(&job);
    struct trouble trouble = {.op = DISK_WRITE, .failure = ENOSPC, .n = 1};
    const struct disk_hooks hooks = {make_trouble, no_trouble, &trouble};
    struct phasor_error err;
    struct phasor_model *model = job_model(JOB_MODEL);
    disk_hooks_set(&hooks);
    cr_expect_eq(job_run(model, &params, NULL, &err), PHASOR_IO);
    disk_hooks_set(NULL);
    cr_expect_not_null(strstr(err.message, "No space"), "%s", err.message);
    cr_expect_neq(access(job.output, F_OK), 0);
    cr_expect_neq(access(job.errors, F_OK), 0);
    cr_expect_neq(access(job.record, F_OK), 0);
    phasor_model_close(model);
}

/* ---- A26: allocations ---------------------------------------------------------------------- */

static char *whole_output, *whole_errors;
static void from_half_a_run(void)
{
    tools_write_file(job.output, whole_output, strlen(whole_output) / 2);
    tools_write_file(job.errors, whole_errors, strlen(whole_errors));
}

/* A row for which there was no memory has its line, too: which, is not asked. */
static void expect_ten_rows(uint64_t n)
{
    json_t *rows = tools_read_rows(job.output), *errors = tools_read_rows(job.errors);
    cr_assert_eq(json_array_size(rows) + json_array_size(errors), 10, "allocation %d", (int)n);
    json_decref(rows);
    json_decref(errors);
}

Test(resume_faults, A26_allocations_of_a_resumed_run_may_fail)
{
    struct phasor_batch_params params = job_params(&job), again = resuming();
    struct phasor_error err;
    size_t length;
    struct phasor_model *model = job_model(JOB_MODEL);
    cr_assert_eq(job_run(model, &params, NULL, &err), PHASOR_OK, "%s", err.message);
    whole_output = tools_read_file(job.output, &length);
    whole_errors = tools_read_file(job.errors, &length);
    from_half_a_run();
    uint64_t live = memory_counters_get().live_count, count = memory_counters_get().alloc_count;
    cr_assert_eq(job_run(model, &again, NULL, &err), PHASOR_OK, "%s", err.message);
    job_check(&job, "half a run");
    count = memory_counters_get().alloc_count - count;
    uint64_t step = sweep_step(1 + count / 60);
    for (uint64_t n = sweep_first(step); n <= count; n += step) {
        from_half_a_run();
        memory_fail_at(n, n % 4 >= 2);
        enum phasor_status status = job_run(model, &again, NULL, &err);
        memory_fail_at(0, 0);
        cr_assert(status == PHASOR_OK || status == PHASOR_NO_MEMORY, "allocation %d: %s", (int)n,
                  err.message);
        cr_assert_eq(memory_counters_get().live_count, live, "allocation %d leaks", (int)n);
        cr_assert_eq(job_run(model, &again, NULL, &err), PHASOR_OK, "%s", err.message);
        expect_ten_rows(n);
    }
    phasor_model_close(model);
    free(whole_output);
    free(whole_errors);
}

/* ---- A34: the wall clock jumps ------------------------------------------------------------- */

static time_t clock_offset;

/* Stands in for the C library's. */
time_t time(time_t *out)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    time_t seconds = now.tv_sec + clock_offset;
    if (out != NULL)
        *out = seconds;
    return seconds;
}

static int jump(void *context, const struct phasor_batch_progress *progress)
{
    (void)progress;
    int *calls = context;
    clock_offset += ++*calls % 2 == 1 ? 10 * 365 * 24 * 3600L : -(10 * 365 * 24 * 3600L + 3600);
    return PHASOR_GO_ON;
}

static int jump_before(void *context, enum disk_op op, size_t *length)
{
    (void)op;
    (void)length;
    jump(context, NULL);
    return 0;
}

Test(resume_faults, A34_the_wall_clock_jumps)
{
    struct phasor_batch_params params = job_params(&job), again = resuming();
    struct phasor_batch_result result;
    struct phasor_error err;
    int calls = 0;
    const struct disk_hooks hooks = {jump_before, no_trouble, &calls};
    struct phasor_model *model = job_model(JOB_MODEL);
    params.progress = again.progress = jump;
    params.progress_context = again.progress_context = &calls;
    disk_hooks_set(&hooks);
    cr_assert_eq(job_run(model, &params, &result, &err), PHASOR_OK, "%s", err.message);
    cr_expect_gt(calls, 10);
    cr_expect_lt(result.elapsed_seconds, 1e7); /* a jump is of ten years: 3e8 */
    job_check(&job, "the clock jumped");
    copy_file(job.output, job.output, 700);
    clock_offset = -3600;
    cr_assert_eq(job_run(model, &again, &result, &err), PHASOR_OK, "%s", err.message);
    disk_hooks_set(NULL);
    cr_expect_gt(result.completed, 0);
    job_check(&job, "the clock jumped before the run was resumed");
    phasor_model_close(model);
}
