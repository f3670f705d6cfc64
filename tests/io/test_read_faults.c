/* Everything that a queue asks for fails at its n-th time, completions come late, out of order,
 * short, twice or never: the same bytes, or one clear sentence; memory is never written to after it
 * was given back. io_uring's kernel is tests/io/fake_uring.c; threads fail through base/disk.h. */
#include <criterion/criterion.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/disk.h"
#include "base/memory.h"
#include "fake_uring.h"
#include "reads.h"
#include "sweep.h"

static struct resources resources;

static void init(void)
{
    reads_init();
    fake_reset();
    resources = resources_now();
}
TestSuite(read_faults, .init = init, .fini = reads_deinit, .timeout = 250);

#define READS 40

static struct read_queue_params params_of(enum read_backend backend)
{
    struct read_queue_params params = reads_params(backend, true);
    params.uring = &fake_uring;
    params.thread_count = 1; /* so that reads have numbers */
    return params;
}

/* A queue from its creation to its end. The queue is destroyed, whatever comes. */
static enum status life(enum read_backend backend, struct read_queue_use *use, struct error *err)
{
    struct read_queue_params params = params_of(backend);
    struct read_queue *queue = NULL;
    err->message[0] = 0;
    enum status status = read_queue_create(&queue, &params, err);
    if (status != STATUS_OK)
        return status;
    status = reads_run(queue, 17, READS, err);
    *use = read_queue_use_get(queue);
    use->note = NULL;
    cr_assert(read_queue_destroy(queue));
    return status;
}

/* ---- Kernels without faults, and odd ones ---------------------------------------------------- */

static struct read_queue_use expect_same(const char *label)
{
    struct read_queue_use use;
    struct error err;
    cr_assert_eq(life(READ_URING, &use, &err), STATUS_OK, "%s: %s", label, err.message);
    cr_assert_eq(use.read_count, READS, "%s", label);
    cr_assert_eq(fake.ring_count, 0, "%s: the ring was left open", label);
    expect_resources(label, resources);
    fake_reset();
    return use;
}

Test(read_faults, a_kernel_that_does_what_it_should)
{
    struct read_queue_use use = expect_same("no fault");
    cr_assert(use.is_registered && use.is_direct && use.request_count == READS);
    cr_assert(use.again_count == 0 && use.dropped_count == 0);
}

Test(read_faults, A23_each_completion_is_short)
{
    fake.is_short = true;
    struct read_queue_use use = expect_same("short");
    cr_assert(use.again_count > READS && use.direct_count < use.request_count);
}

Test(read_faults, completions_out_of_order_and_late)
{
    fake.is_shuffled = true;
    expect_same("out of order");
}

Test(read_faults, completions_that_come_again)
{
    fake.is_doubled = fake.is_shuffled = true;
    struct read_queue_use use = expect_same("twice");
    cr_assert_gt(use.dropped_count, 0);
}

Test(read_faults, all_at_once)
{
    uint64_t step = sweep_step(10);
    for (uint64_t seed = sweep_first(step); seed < 200; seed += step) {
        fake.is_doubled = fake.is_shuffled = fake.is_short = true;
        fake.draw = seed * 100000;
        expect_same("all");
    }
}

Test(read_faults, A22_avoiding_the_cache_is_refused_at_a_read)
{
    for (int after = 0; after < 12; after++) {
        fake.refuses_direct = true;
        fake.refuses_after = after;
        struct read_queue_use use = expect_same("direct");
        cr_assert(!use.is_direct, "after %d", after);
    }
}

Test(read_faults, A20_the_ring_is_refused)
{
    static const struct {
        int error;
        const char *cure;
    } cases[] = {
        {EPERM, "io_uring_setup, io_uring_enter and io_uring_register"},
        {ENOSYS, "io_uring_setup, io_uring_enter and io_uring_register"},
        {EOPNOTSUPP, "Linux 5.6"},
        {EINVAL, "Linux 5.6"},
        {ENOMEM, "locked memory"},
        {EMFILE, "ulimit -n"},
        {ENFILE, "fs.file-max"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct read_queue_use use;
        struct error err;
        fake.call = FAKE_SETUP;
        fake.n = 1;
        fake.error = cases[i].error;
        cr_assert_eq(life(READ_URING, &use, &err), STATUS_UNSUPPORTED);
        cr_assert_not_null(strstr(err.message, strerror(cases[i].error)), "%s", err.message);
        cr_assert_not_null(strstr(err.message, cases[i].cure), "%s", err.message);
        expect_resources("refused", resources);
        fake_reset();
    }
    fake.lacks_read = true;
    struct read_queue_use use;
    struct error err;
    cr_assert_eq(life(READ_URING, &use, &err), STATUS_UNSUPPORTED);
    cr_assert_not_null(strstr(err.message, "io_uring cannot be used: cannot read"), "%s",
                       err.message);
    cr_assert_eq(fake.ring_count, 0);
    expect_resources("no reads", resources);
}

Test(read_faults, A21_nothing_can_be_registered)
{
    fake.call = FAKE_BUFFERS;
    fake.n = 1;
    fake.error = ENOMEM;
    cr_assert(!expect_same("buffers").is_registered);
    fake.call = FAKE_FILES;
    fake.n = 1;
    fake.error = ENOMEM;
    cr_assert(expect_same("files").is_registered);
}

/* ---- The n-th call --------------------------------------------------------------------------- */

struct fault {
    const char *name;
    enum fake_call call;
    int error;
    bool is_mended; /* it is asked for again */
};

static const struct fault faults[] = {
    {"a submission cannot be had now", FAKE_READ, EAGAIN, true},
    {"the kernel has results to be taken first", FAKE_READ, EBUSY, true},
    {"a submission is interrupted", FAKE_READ, EINTR, true},
    {"a submission fails", FAKE_READ, EIO, false},
    {"waiting is interrupted", FAKE_NEXT, EINTR, true},
    {"waiting cannot be had now", FAKE_NEXT, EAGAIN, true},
    {"a read is interrupted", FAKE_RESULT, EINTR, true},
    {"a read cannot be had now", FAKE_RESULT, EAGAIN, true},
    {"a read fails", FAKE_RESULT, EIO, false},
    {"a read finds no memory", FAKE_RESULT, ENOMEM, false},
};

/* The first request is that of the queue's creation. */
static void expect_sentence(const char *label, enum status status, int n, int error,
                            const struct error *err)
{
    enum status expected = error == ENOMEM ? STATUS_NO_MEMORY : STATUS_IO;
    char prefix[200];
    snprintf(prefix, sizeof prefix, "%scannot read %s at byte ",
             n == 1 ? "io_uring cannot be used: " : "", file_path);
    cr_assert_eq(status, n == 1 ? STATUS_UNSUPPORTED : expected, "%s: %s", label, err->message);
    cr_assert_eq(err->status, status, "%s", label);
    cr_assert_eq(strncmp(err->message, prefix, strlen(prefix)), 0, "%s: %s", label, err->message);
}

static int sweep(const struct fault *fault)
{
    uint64_t step = sweep_step(3), n = sweep_first(step);
    for (;; n += step) {
        char label[100];
        struct read_queue_use use;
        struct error err;
        snprintf(label, sizeof label, "%s: %d", fault->name, (int)n);
        fake.call = fault->call;
        fake.n = (int)n;
        fake.error = fault->error;
        enum status status = life(READ_URING, &use, &err);
        int count = fake.count;
        expect_resources(label, resources);
        cr_assert(fake.ring_count == 0 && fake.flying_count == 0, "%s", label);
        fake_reset();
        if (fault->is_mended || count < (int)n)
            cr_assert_eq(status, STATUS_OK, "%s: %s", label, err.message);
        else
            expect_sentence(label, status, (int)n, fault->error, &err);
        if (count < (int)n)
            return (int)n - 1;
    }
}

Test(read_faults, A24_the_nth_call_fails)
{
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++)
        cr_assert_geq(sweep(&faults[i]), READS, "%s", faults[i].name);
}

/* The kernel tells of nothing any more: what is in flight stays with it. */
Test(read_faults, waiting_fails)
{
    for (int n = 1; n < READS; n += 1 + (int)sweep_step(4)) {
        struct read_queue_params params = params_of(READ_URING);
        struct read_queue *queue = NULL;
        struct error err;
        fake.call = FAKE_NEXT;
        fake.n = n;
        fake.error = EBADF;
        enum status status = read_queue_create(&queue, &params, &err);
        if (n > 1) {
            cr_assert_eq(status, STATUS_OK);
            status = reads_run(queue, 17, READS, &err);
            cr_assert_eq(status, STATUS_IO);
            cr_assert(!read_queue_destroy(queue));
        } else {
            cr_assert_eq(status, STATUS_UNSUPPORTED);
        }
        cr_assert_not_null(strstr(err.message, "cannot wait for reads of"), "%s", err.message);
        cr_assert_not_null(strstr(err.message, "Bad file descriptor"), "%s", err.message);
        cr_assert_eq(fake.ring_count, 1);
        fake_write_late();
        fake_reset();
    }
}

Test(read_faults, A24_what_is_put_off_for_ever)
{
    static const struct {
        enum fake_call call;
        int error;
    } cases[] = {{FAKE_READ, EAGAIN}, {FAKE_READ, EBUSY}, {FAKE_RESULT, EINTR}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct read_queue_params params = params_of(READ_URING);
        struct error err;
        params.patience_seconds = 0.1;
        struct read_queue *queue = reads_queue(&params);
        fake.call = cases[i].call;
        fake.error = cases[i].error;
        fake.n = 20;
        fake.is_sticky = true;
        cr_assert_eq(reads_run(queue, 17, READS, &err), STATUS_IO);
        cr_assert_not_null(strstr(err.message, "nothing has come for 0.1 seconds"), "%s",
                           err.message);
        cr_assert_lt(fake.count, 2000, "the system is asked without a pause");
        cr_assert(read_queue_destroy(queue));
        expect_resources("put off", resources);
        fake_reset();
    }
}

Test(read_faults, A26_the_nth_allocation_fails)
{
    for (int backend = 0; backend <= READ_THREADS; backend++) {
        for (uint64_t n = 1;; n++) {
            struct read_queue_use use;
            struct error err;
            memory_fail_at(n, 0);
            enum status status = life((enum read_backend)backend, &use, &err);
            memory_fail_at(0, 0);
            expect_resources("an allocation", resources);
            cr_assert_eq(fake.ring_count, 0);
            if (status == STATUS_OK) {
                cr_assert_geq(n, 5);
                break;
            }
            cr_assert_eq(status, STATUS_NO_MEMORY, "%s", err.message);
        }
    }
}

/* ---- A hang ---------------------------------------------------------------------------------- */

static void expect_stuck(struct read_queue *queue, struct read_done *done, const char *patience)
{
    struct error err;
    cr_assert_eq(read_queue_wait(queue, done, 100, &err), STATUS_IO);
    cr_assert_eq(done->buffer, -1);
    cr_assert_not_null(strstr(err.message, "at byte 8192: nothing has come for "), "%s",
                       err.message);
    cr_assert_not_null(strstr(err.message, patience), "%s", err.message);
    cr_assert(!read_queue_cancel(queue));
    fake.call = FAKE_NEXT; /* that none fails, but each is counted */
    fake.n = INT_MAX;
    fake.count = 0;
    cr_assert(!read_queue_destroy(queue));
    cr_assert_leq(fake.count, 1, "it waits once more");
}

/* Each piece has the patience for itself. */
Test(read_faults, a_slow_read_in_pieces_is_no_hang)
{
    struct read_queue_params params = params_of(READ_URING);
    struct read_done done;
    struct error err = {.message = ""};
    params.patience_seconds = 0.2;
    struct read_queue *queue = reads_queue(&params);
    fake.is_short = true;
    fake.delay = 0.02;
    for (int i = 0; i < 2; i++) {
        read_queue_submit(queue, 1, 0, 0, BUFFER_BYTES);
        cr_assert_eq(read_queue_wait(queue, &done, 100, &err), STATUS_OK, "%s", err.message);
        cr_assert_eq(done.buffer, 0);
    }
    cr_assert_gt(read_queue_use_get(queue).again_count, 20);
    cr_assert(read_queue_destroy(queue));
}

/* Nor is it one where the caller was away, and finds that a read was put off meanwhile. */
Test(read_faults, a_caller_that_was_away_for_long)
{
    struct read_queue_params params = params_of(READ_URING);
    struct error err = {.message = ""};
    params.patience_seconds = 0.05;
    struct read_queue *queue = reads_queue(&params);
    fake.call = FAKE_RESULT;
    fake.n = 1;
    fake.error = EINTR;
    read_queue_submit(queue, 0, 0, 0, 4096);
    read_queue_submit(queue, 1, 1, 0, 4096);
    usleep(100 * 1000);
    for (int i = 0; i < 2; i++) {
        struct read_done done;
        cr_assert_eq(read_queue_wait(queue, &done, 100, &err), STATUS_OK, "%s", err.message);
        cr_assert_eq(done.id, (uint64_t)(1 - i));
    }
    fake.is_doubled = true; /* and finds those that came again first */
    for (int i = 0; i < 8; i++) {
        struct read_done done;
        read_queue_submit(queue, 2, 0, 0, 4096);
        usleep(60 * 1000);
        cr_assert_eq(read_queue_wait(queue, &done, 100, &err), STATUS_OK, "%s", err.message);
        cr_assert_eq(done.id, 2);
    }
    cr_assert(read_queue_destroy(queue));
}

/* The buffer of a read that hangs stays memory, whoever's it is. */
Test(read_faults, a_read_that_hangs)
{
    for (int is_given = 0; is_given < 2; is_given++) {
        struct read_queue_params params = params_of(READ_URING);
        struct read_done done;
        void *given = NULL;
        cr_assert_eq(posix_memalign(&given, READ_ALIGNMENT, BUFFER_COUNT * BUFFER_BYTES), 0);
        params.patience_seconds = 0.05;
        params.buffers = is_given ? given : NULL;
        struct read_queue *queue = reads_queue(&params);
        cr_assert_eq(reads_run(queue, 5, 20, NULL), STATUS_OK);
        fake.hangs = true;
        read_queue_submit(queue, 77, 3, 8192, BUFFER_BYTES);
        cr_assert_eq(read_queue_wait(queue, &done, 0.01, NULL), STATUS_OK);
        cr_assert_eq(done.buffer, -1);
        expect_stuck(queue, &done, "for 0.05 seconds");
        cr_assert_eq(done.id, 77);
        cr_assert_eq(fake.ring_count, 1);
        fake_write_late();
        fake_reset();
        free(given);
    }
}

/* What has come meanwhile is taken, all of it. */
Test(read_faults, a_read_that_hung_and_has_come)
{
    struct read_queue_params params = params_of(READ_URING);
    params.patience_seconds = 0.05;
    struct read_queue *queue = reads_queue(&params);
    fake.hangs = true;
    for (int i = 0; i < BUFFER_COUNT; i++)
        read_queue_submit(queue, (uint64_t)i, i, 0, BUFFER_BYTES);
    cr_assert(!read_queue_cancel(queue));
    fake.hangs = false;
    cr_assert(read_queue_destroy(queue));
    expect_resources("hung and came", resources);
}

Test(read_faults, the_first_read_hangs)
{
    struct read_queue_params params = params_of(READ_URING);
    struct read_queue *queue = NULL;
    struct error err;
    params.patience_seconds = 0.05;
    fake.hangs = true;
    cr_assert_eq(read_queue_create(&queue, &params, &err), STATUS_UNSUPPORTED);
    cr_assert_not_null(strstr(err.message, "nothing has come for 0.05 seconds"), "%s", err.message);
    cr_assert_eq(fake.flying_count, 1);
    fake_write_late();
}

/* ---- Threads --------------------------------------------------------------------------------- */

struct disk_fault {
    int n, error;
    atomic_int count; /* of reads */
    bool is_sticky, is_short;
    pthread_mutex_t *hangs_on; /* NULL: not */
};

static int before(void *context, enum disk_op op, size_t *length)
{
    struct disk_fault *fault = context;
    if (op != DISK_READ)
        return 0;
    int count = ++fault->count;
    if (fault->hangs_on != NULL) {
        pthread_mutex_lock(fault->hangs_on);
        pthread_mutex_unlock(fault->hangs_on);
    }
    if (fault->is_short && *length > 1)
        *length = 1 + *length / 3;
    return fault->n > 0 && (fault->is_sticky ? count >= fault->n : count == fault->n) ? fault->error
                                                                                      : 0;
}

static void after(void *context, enum disk_op op)
{
    (void)context, (void)op;
}

static void see(struct disk_fault *fault)
{
    static struct disk_hooks hooks;
    hooks = (struct disk_hooks){before, after, fault};
    disk_hooks_set(fault == NULL ? NULL : &hooks);
    disk_hooks_see_reads(true);
}

Test(read_faults, A24_the_nth_read_of_a_thread_fails)
{
    static const struct {
        int error;
        enum status status;
    } cases[] = {{EIO, STATUS_IO}, {EAGAIN, STATUS_OK}, {EINTR, STATUS_OK}, {EINVAL, STATUS_OK}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint64_t step = sweep_step(3);
        for (int n = (int)sweep_first(step), count = n; count >= n; n += (int)step) {
            struct disk_fault fault = {.n = n, .error = cases[i].error};
            struct read_queue_use use;
            struct error err;
            see(&fault);
            enum status status = life(READ_THREADS, &use, &err);
            see(NULL);
            count = fault.count;
            expect_resources("a thread's read", resources);
            if (cases[i].error == EINVAL && status == STATUS_IO)
                continue; /* of a read that was not to avoid the cache: its failure */
            cr_assert_eq(status, count < n ? STATUS_OK : cases[i].status, "%d: %s", n, err.message);
            if (status != STATUS_OK)
                cr_assert_not_null(strstr(err.message, "Input/output error"), "%s", err.message);
        }
    }
}

Test(read_faults, A23_each_read_of_a_thread_is_short)
{
    struct disk_fault fault = {.is_short = true};
    struct read_queue_use use;
    struct error err;
    see(&fault);
    cr_assert_eq(life(READ_THREADS, &use, &err), STATUS_OK, "%s", err.message);
    see(NULL);
    cr_assert_gt(use.again_count, READS);
}

Test(read_faults, a_thread_that_hangs)
{
    static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    static struct disk_fault fault = {.hangs_on = &gate};
    struct read_queue_params params = params_of(READ_THREADS);
    struct read_done done;
    params.patience_seconds = 2.5; /* real threads need some to begin with */
    struct read_queue *queue = reads_queue(&params);
    see(&fault);
    pthread_mutex_lock(&gate);
    read_queue_submit(queue, 77, 3, 8192, BUFFER_BYTES);
    while (fault.count == 0) /* nobody looks meanwhile, so no patience is lost */
        usleep(1000);
    read_queue_submit(queue, 78, 4, 8192, BUFFER_BYTES); /* which no thread takes any more */
    expect_stuck(queue, &done, "for 2.5 seconds");
    pthread_mutex_unlock(&gate); /* the thread reads, into memory that is there, and ends */
    usleep(100 * 1000);
    cr_assert_eq(fault.count, 1, "a read was begun that had been given up");
}

/* ---- A process that was stopped -------------------------------------------------------------- */

/* For longer than the patience, while it looked, and nothing had come: it has not waited. */
static int read_stopped(void)
{
    struct read_queue_params params = params_of(READ_URING);
    struct read_done done;
    struct error err;
    params.patience_seconds = 0.2;
    struct read_queue *queue = reads_queue(&params);
    fake.stops_process = true;
    read_queue_submit(queue, 77, 3, 8192, BUFFER_BYTES);
    enum status status = read_queue_wait(queue, &done, 100, &err);
    return status == STATUS_OK && done.id == 77 && read_queue_destroy(queue) ? 0 : 1;
}

Test(read_faults, a_process_that_was_stopped)
{
    int status;
    pid_t child = fork();
    if (child == 0)
        _exit(read_stopped());
    cr_assert_eq(waitpid(child, &status, WUNTRACED), child);
    cr_assert(WIFSTOPPED(status));
    usleep(600 * 1000);
    cr_assert_eq(kill(child, SIGCONT), 0);
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}
