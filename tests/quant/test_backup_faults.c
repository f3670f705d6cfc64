/* Writing a backup while operations fail, the disk fills up, memory runs out or the process is
 * killed: what stands under the backup's name is a whole backup or none, and the next run goes on
 * to the same bytes. */
#include <criterion/criterion.h>
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zstd.h>
#include <zstd_errors.h>

#include "backup_tools.h"
#include "base/memory.h"
#include "quant/backup_part.h"
#include "sweep.h"

static struct bench bench;
static struct backup_write_params params;
static char *old_bytes, *new_bytes; /* under other settings; as wanted */
static size_t old_length, new_length;

static void init(void)
{
    bench_init(&bench, "tiny-qwen3moe", 3, false);
    params = bench_params(&bench);
    params.overwrites = true;
    params.settings.is_asymmetric = true;
    bench_write(&bench, &params);
    old_bytes = bench_bytes(&bench, &old_length);
    params.settings.is_asymmetric = false;
}

static void deinit(void)
{
    free(old_bytes);
    free(new_bytes);
    bench_deinit(&bench);
}
TestSuite(backup_faults, .init = init, .fini = deinit, .timeout = 250);

static void want(bool zstd)
{
    params.settings.has_zstd = zstd;
    bench_write(&bench, &params);
    free(new_bytes);
    new_bytes = bench_bytes(&bench, &new_length);
}

static const char *part_path(void)
{
    return path_of(bench.folder, "b.backup" BACKUP_PART_SUFFIX);
}

/* The state before each try: an old backup, no part. */
static void reset(void)
{
    file_write(bench.path, old_bytes, old_length);
    unlink(part_path());
}

/* The old or the new backup, whole. */
static void expect_whole(const char *label)
{
    size_t length;
    char *found = bench_bytes(&bench, &length);
    bool is_old = length == old_length && memcmp(found, old_bytes, length) == 0;
    bool is_new = length == new_length && memcmp(found, new_bytes, length) == 0;
    cr_assert(is_old || is_new, "%s: what is there is neither the old backup nor the new", label);
    free(found);
}

static void expect_goes_on(const char *label)
{
    expect_whole(label);
    bench_write(&bench, &params);
    bench_expect_bytes(&bench, new_bytes, new_length, label);
}

/* ---- The n-th operation -------------------------------------------------------------------- */

struct fault {
    enum disk_op op;
    int n, count, error;
    bool is_sticky, is_short;
};

static int before(void *context, enum disk_op op, size_t *length)
{
    struct fault *fault = context;
    if (op != fault->op)
        return 0;
    fault->count++;
    bool is_now = fault->is_sticky ? fault->count >= fault->n : fault->count == fault->n;
    if (!is_now)
        return 0;
    if (!fault->is_short)
        return fault->error;
    if (length != NULL && *length > 1)
        *length = 1 + *length / 3;
    return 0;
}

static void after(void *context, enum disk_op op)
{
    (void)context, (void)op;
}

static enum status try_with(struct fault *fault, struct error *err)
{
    const struct disk_hooks hooks = {before, after, fault};
    disk_hooks_set(&hooks);
    disk_hooks_see_reads(true);
    enum status status = bench_try(&bench, &params, err);
    disk_hooks_set(NULL);
    return status;
}

static const struct {
    const char *name;
    enum disk_op op;
    int error, step;
    const char *fragments;
} operations[] = {
    {"write", DISK_WRITE, ENOSPC, 7, "cannot write|No space left"},
    {"sync", DISK_SYNC, EIO, 1, "to the disk"}, /* file and folder */
    {"rename", DISK_RENAME, EACCES, 1, "cannot rename|Permission denied"},
    {"truncate", DISK_TRUNCATE, EIO, 1, "b.backup.phasor-part"},
    {"read", DISK_READ, EIO, 11, "cannot read|Input/output error"},
};

static int sweep(size_t o, bool is_sticky)
{
    uint64_t step = sweep_step((uint64_t)operations[o].step), n = sweep_first(step);
    struct resources resources = resources_now();
    for (;; n += step) {
        char label[64];
        struct error err;
        struct fault fault = {.op = operations[o].op,
                              .n = (int)n,
                              .error = operations[o].error,
                              .is_sticky = is_sticky};
        snprintf(label, sizeof label, "%s %d%s", operations[o].name, (int)n,
                 is_sticky ? " and all later" : "");
        reset();
        enum status status = try_with(&fault, &err);
        if (fault.count < (int)n) {
            cr_assert_eq(status, STATUS_OK, "%s", label);
            bench_expect_bytes(&bench, new_bytes, new_length, label);
            return (int)n - 1;
        }
        expect_failure(label, status, &err, STATUS_IO, operations[o].fragments);
        expect_resources(label, resources);
        expect_goes_on(label);
    }
}

static void sweep_all(bool zstd)
{
    want(zstd);
    for (size_t o = 0; o < sizeof operations / sizeof *operations; o++) {
        for (int is_sticky = 0; is_sticky < 2; is_sticky++) {
            int points = sweep(o, is_sticky != 0);
            cr_log_info("%s: %d points", operations[o].name, points);
            cr_assert_geq(points, operations[o].op == DISK_SYNC ? 2 : 1, "%s", operations[o].name);
        }
    }
}

Test(backup_faults, A24_A25_an_operation_fails)
{
    sweep_all(false);
}

Test(backup_faults, A24_A25_an_operation_fails_with_zstd)
{
    sweep_all(true);
}

/* Reads and writes of less than was asked for: the same bytes. */
Test(backup_faults, A23_short_reads_and_writes_change_nothing)
{
    static const enum disk_op ops[] = {DISK_WRITE, DISK_READ};
    for (int zstd = 0; zstd < 2; zstd++) {
        want(zstd);
        for (size_t o = 0; o < sizeof ops / sizeof *ops; o++) {
            struct error err;
            struct fault fault = {.op = ops[o], .n = 1, .is_sticky = true, .is_short = true};
            reset();
            cr_assert_eq(try_with(&fault, &err), STATUS_OK, "%s", err.message);
            bench_expect_bytes(&bench, new_bytes, new_length, "short");
        }
    }
}

Test(backup_faults, A26_an_allocation_fails)
{
    for (int zstd = 0; zstd < 2; zstd++) {
        want(zstd);
        params.thread_count = 2;
        struct resources resources = resources_now();
        for (uint64_t n = 1;; n++) {
            char label[64];
            struct error err;
            snprintf(label, sizeof label, "allocation %d", (int)n);
            reset();
            memory_fail_at(n, n % 2 == 0);
            enum status status = bench_try(&bench, &params, &err);
            memory_fail_at(0, 0);
            if (status == STATUS_OK)
                break;
            expect_failure(label, status, &err, STATUS_NO_MEMORY, "");
            expect_resources(label, resources);
            expect_goes_on(label);
        }
    }
}

/* ---- kill -9 ------------------------------------------------------------------------------- */

struct killer {
    int n;
    bool is_within;
    atomic_int count; /* of all threads */
};

static void pass_point(struct killer *killer)
{
    if (atomic_fetch_add(&killer->count, 1) + 1 == killer->n)
        raise(SIGKILL);
}

static int kill_before(void *context, enum disk_op op, size_t *length)
{
    struct killer *killer = context;
    if (killer->is_within && op == DISK_WRITE && atomic_load(&killer->count) + 1 == killer->n)
        *length = 1 + *length / 2; /* and then killed behind it */
    if (!killer->is_within)
        pass_point(killer);
    return 0;
}

static void kill_after(void *context, enum disk_op op)
{
    (void)op;
    pass_point(context);
}

/* Whether it was killed. */
static bool run_apart(int n, bool is_within)
{
    struct killer killer = {.n = n, .is_within = is_within};
    const struct disk_hooks hooks = {kill_before, kill_after, &killer};
    int ending;
    pid_t child = fork();
    cr_assert_geq(child, 0);
    if (child == 0) {
        struct error err;
        disk_hooks_set(&hooks);
        _exit((int)bench_try(&bench, &params, &err));
    }
    cr_assert_eq(waitpid(child, &ending, 0), child);
    cr_assert(WIFSIGNALED(ending) ? WTERMSIG(ending) == SIGKILL : WEXITSTATUS(ending) == 0);
    return WIFSIGNALED(ending);
}

static void sweep_kills(bool zstd, bool is_within, int thread_count)
{
    int step = (int)sweep_step(5), n = (int)sweep_first((uint64_t)step);
    params.thread_count = thread_count;
    want(zstd);
    for (;; n += step) {
        char label[64];
        snprintf(label, sizeof label, "killed %s point %d of %d threads",
                 is_within ? "within" : "at", n, thread_count);
        reset();
        if (!run_apart(n, is_within))
            break;
        expect_goes_on(label);
    }
    bench_expect_bytes(&bench, new_bytes, new_length, "not killed");
    cr_log_info("%d points", n - 1);
    cr_assert_gt(n, 20, "%d points", n);
}

Test(backup_faults, A32_killed_at_each_point)
{
    for (int thread_count = 1; thread_count <= 4; thread_count += 3) {
        sweep_kills(false, false, thread_count);
        sweep_kills(false, true, thread_count);
    }
}

Test(backup_faults, A32_killed_at_each_point_with_zstd)
{
    for (int thread_count = 1; thread_count <= 4; thread_count += 3) {
        sweep_kills(true, false, thread_count);
        sweep_kills(true, true, thread_count);
    }
}

/* ---- What the next run finds --------------------------------------------------------------- */

/* A part file whose granules are torn or altered: they are made again. */
Test(backup_faults, A33_a_damaged_part_is_mended)
{
    for (int zstd = 0; zstd < 2; zstd++) {
        want(zstd);
        for (size_t at = 5 * BACKUP_PAGE / 4; at < new_length; at += new_length / 23) {
            char label[64], *torn = malloc(new_length);
            snprintf(label, sizeof label, "byte %zu", at);
            memcpy(torn, new_bytes, new_length);
            torn[at] ^= 0x10;
            reset();
            file_write(part_path(), torn, new_length);
            expect_goes_on(label);
            reset();
            file_write(part_path(), new_bytes, at); /* cut there */
            expect_goes_on(label);
            free(torn);
        }
    }
}

/* Of another backup, or longer than this one: begun anew, and no byte of it is left. */
Test(backup_faults, another_part_is_begun_anew)
{
    for (int zstd = 0; zstd < 2; zstd++) {
        want(zstd);
        reset();
        file_write(part_path(), old_bytes, old_length);
        expect_goes_on("another's part");
        char *longer = calloc(new_length + 50000, 1);
        memcpy(longer, new_bytes, new_length);
        reset();
        file_write(part_path(), longer, new_length + 50000);
        expect_goes_on("a longer part");
        free(longer);
    }
}

Test(backup_faults, two_at_a_time_are_refused)
{
    struct error err;
    struct backup_form form;
    struct backup_part part;
    want(false);
    reset();
    cr_assert_eq(backup_form_make(&form, &params.settings, checkpoint_config(bench.checkpoint),
                                  &bench.fingerprint, &err),
                 STATUS_OK);
    cr_assert_eq(backup_part_open(&part, bench.path, &form, &err), STATUS_OK);
    expect_failure("locked", bench_try(&bench, &params, &err), &err, STATUS_IO,
                   "wait until it has finished");
    backup_part_close(&part);
    expect_goes_on("unlocked");
}

/* ---- Verifying ----------------------------------------------------------------------------- */

Test(backup_faults, A11_every_altered_byte_is_found)
{
    for (int zstd = 0; zstd < 2; zstd++) {
        struct error err;
        want(zstd);
        struct backup *backup;
        cr_assert_eq(backup_open(&backup, bench.path, &err), STATUS_OK);
        int64_t count = backup_form(backup)->granule_count;
        for (int64_t number = 0; number < count; number += 3) {
            char label[64];
            uint64_t first = backup_granule_offset(backup, number);
            int64_t end = backup_granule_bytes(backup, number);
            uint64_t at = first + (uint64_t)(number * 7919 % end);
            snprintf(label, sizeof label, "granule %d, byte %d", (int)number, (int)(at - first));
            new_bytes[at] ^= 1;
            file_write(bench.path, new_bytes, new_length);
            expect_failure(label, bench_verify(&bench, &err), &err, STATUS_FORMAT,
                           "granule|damaged|--overwrite");
            new_bytes[at] ^= 1;
        }
        backup_close(backup);
        file_write(bench.path, new_bytes, new_length);
        cr_assert_eq(bench_verify(&bench, &err), STATUS_OK);
    }
}

Test(backup_faults, A11_granules_that_changed_places_are_found)
{
    struct error err;
    struct backup *backup;
    want(false);
    cr_assert_eq(backup_open(&backup, bench.path, &err), STATUS_OK);
    size_t span = (size_t)backup_granule_bytes(backup, 0);
    char *first = new_bytes + backup_granule_offset(backup, 0), *held = malloc(span);
    memcpy(held, first, span);
    memcpy(first, first + span, span);
    memcpy(first + span, held, span);
    file_write(bench.path, new_bytes, new_length);
    expect_failure("swapped", bench_verify(&bench, &err), &err, STATUS_FORMAT, "granule|damaged");
    backup_close(backup);
    free(held);
}

static atomic_bool zstd_lacks_memory;

/* In place of zstd's own, which allocates what it works with (the linker's --wrap). */
size_t __real_ZSTD_decompress(void *out, size_t room, const void *in, size_t bytes);
size_t __wrap_ZSTD_decompress(void *out, size_t room, const void *in, size_t bytes);
size_t __wrap_ZSTD_decompress(void *out, size_t room, const void *in, size_t bytes)
{
    return atomic_load(&zstd_lacks_memory) ? (size_t)-ZSTD_error_memory_allocation
                                           : __real_ZSTD_decompress(out, room, in, bytes);
}

Test(backup_faults, A26_zstd_lacks_memory_while_verifying)
{
    struct error err;
    want(true);
    atomic_store(&zstd_lacks_memory, true);
    expect_failure("zstd", bench_verify(&bench, &err), &err, STATUS_NO_MEMORY,
                   "cannot allocate|zstd");
    atomic_store(&zstd_lacks_memory, false);
    cr_assert_eq(bench_verify(&bench, &err), STATUS_OK);
}

Test(backup_faults, A24_a_read_fails_while_verifying)
{
    want(true);
    for (int n = 1;; n++) {
        struct error err;
        struct fault fault = {.op = DISK_READ, .n = n, .error = EIO};
        const struct disk_hooks hooks = {before, after, &fault};
        disk_hooks_set(&hooks);
        disk_hooks_see_reads(true);
        enum status status = bench_verify(&bench, &err);
        disk_hooks_set(NULL);
        if (fault.count < n) {
            cr_assert_eq(status, STATUS_OK);
            break;
        }
        expect_failure("read", status, &err, STATUS_IO, "cannot read");
    }
}
