/* A file in locked memory, reads from it, and which tier fits. */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <errno.h>
#include <linux/mempolicy.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/system.h"
#include "io/locked_file.h"
#include "io/read_tier.h"
#include "numa_fake.h"
#include "reads.h"

TestSuite(locked_file, .init = reads_init, .fini = reads_deinit, .timeout = 60);

/* Bytes that the kernel counts as locked. */
static unsigned long long locked_now(void)
{
    char line[256];
    unsigned long long kib = 0;
    FILE *status = fopen("/proc/self/status", "re");
    while (fgets(line, sizeof line, status) != NULL && sscanf(line, "VmLck: %llu kB", &kib) != 1)
        ;
    fclose(status);
    return kib * 1024;
}

static enum status create(struct locked_file **out, uint64_t offset, uint64_t bytes,
                          struct error *err)
{
    return locked_file_create(
        out,
        &(struct locked_file_params){
            .fd = file_fd, .path = file_path, .offset = offset, .bytes = bytes},
        err);
}

static struct locked_file *lock(uint64_t offset, uint64_t bytes, int share_count)
{
    struct locked_file *locked = NULL;
    struct error err = {.message = ""};
    unsigned long long before = locked_now();
    cr_assert_eq(create(&locked, offset, bytes, &err), STATUS_OK, "%s", err.message);
    cr_assert_geq(locked_now() - before, bytes);
    for (int s = 0; s < share_count; s++)
        cr_assert_eq(locked_file_load(locked, s, share_count, &err), STATUS_OK, "%s", err.message);
    return locked;
}

Test(locked_file, reads_from_memory)
{
    struct resources before = resources_now();
    struct locked_file *locked = lock(0, FILE_BYTES, 3);
    struct read_queue_params params = reads_params(READ_LOCKED, true);
    params.locked = locked;
    cr_assert_eq(ftruncate(file_fd, 0), 0); /* nobody looks at it any more */
    struct read_queue_use use = reads_expect("locked", &params, 300);
    cr_assert(use.backend == READ_LOCKED && use.request_count == 300 && !use.is_direct);
    locked_file_destroy(locked);
    locked_file_destroy(NULL);
    cr_assert_eq(locked_now(), 0);
    expect_resources("locked", before);
}

Test(locked_file, given_up_and_looked_at)
{
    struct locked_file *locked = lock(0, FILE_BYTES, 1);
    struct read_queue_params params = reads_params(READ_LOCKED, false);
    struct read_done done;
    params.locked = locked;
    struct read_queue *queue = reads_queue(&params);
    for (int b = 0; b < BUFFER_COUNT; b++)
        read_queue_submit(queue, 1, b, 100, 1000);
    cr_assert(read_queue_cancel(queue));
    cr_assert_eq(read_queue_wait(queue, &done, 0, NULL), STATUS_OK);
    cr_assert_eq(done.buffer, -1);
    read_queue_submit(queue, 2, 4, 100, 1000);
    cr_assert_eq(read_queue_wait(queue, &done, 0, NULL), STATUS_OK);
    cr_assert(done.id == 2 && done.buffer == 4 && done.bytes == locked_file_at(locked, 100));
    cr_assert(read_queue_destroy(queue));
    locked_file_destroy(locked);
}

/* Before its pages are there, and all of them; where the system does not let it, anywhere. */
Test(locked_file, lies_on_the_nodes_that_are_named)
{
    static const int errors[] = {0, ENOSYS, EPERM};
    numa_fake_use();
    struct locked_file *locked = lock(100, 20000, 1);
    cr_expect_eq(numa_fake_bound().count, 0);
    locked_file_destroy(locked);
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++) {
        struct error err;
        struct locked_file_params params = {
            .fd = file_fd, .path = file_path, .offset = 100, .bytes = 20000};
        numa_nodes_add(&params.nodes, 0);
        numa_nodes_add(&params.nodes, 3);
        numa_fake_fail(0, 0, errors[i]);
        cr_assert_eq(locked_file_create(&locked, &params, &err), STATUS_OK, "%s", err.message);
        struct numa_fake_bound bound = numa_fake_bound();
        cr_expect(bound.memory == locked_file_memory(locked) && bound.bytes >= 20000);
        cr_expect(bound.mode == MPOL_INTERLEAVE && bound.nodes == 9 && !bound.was_touched);
        cr_expect_eq(locked_file_load(locked, 0, 1, &err), STATUS_OK);
        locked_file_destroy(locked);
    }
    numa_fake_remove();
}

Test(locked_file, a_part_of_the_file)
{
    struct locked_file *locked = lock(4096, 1000000, 5);
    cr_assert(memcmp(locked_file_at(locked, 4096), file_bytes + 4096, 1000000) == 0);
    cr_assert(locked_file_has(locked, 4096, 1000000));
    cr_assert(locked_file_has(locked, 1004095, 1));
    cr_assert(!locked_file_has(locked, 4095, 2));
    cr_assert(!locked_file_has(locked, 4096, 1000001));
    cr_assert(!locked_file_has(locked, 1004097, 0));
    cr_assert(!locked_file_has(locked, UINT64_MAX, 1));
    locked_file_destroy(locked);
}

struct loader {
    pthread_t thread;
    struct locked_file *locked;
    int share;
    enum status status;
};

static void *load_share(void *context)
{
    struct loader *loader = context;
    loader->status = locked_file_load(loader->locked, loader->share, 4, NULL);
    return NULL;
}

/* Shares are of pieces of 4 MiB: a larger file than that of the other tests, mostly a hole. */
Test(locked_file, loaded_by_several_threads)
{
    const uint64_t bytes = 21 * 1024 * 1024 + 5;
    struct loader loaders[4];
    cr_assert_eq(ftruncate(file_fd, (off_t)bytes), 0);
    for (uint64_t at = 0; at + 8 <= bytes; at += 1024 * 1024 - 8)
        cr_assert_eq(pwrite(file_fd, &at, 8, (off_t)at), 8);
    struct locked_file *locked = lock(0, bytes, 0);
    for (int s = 0; s < 4; s++) {
        loaders[s] = (struct loader){.locked = locked, .share = s};
        cr_assert_eq(pthread_create(&loaders[s].thread, NULL, load_share, &loaders[s]), 0);
    }
    for (int s = 0; s < 4; s++) {
        pthread_join(loaders[s].thread, NULL);
        cr_assert_eq(loaders[s].status, STATUS_OK);
    }
    for (uint64_t at = 0; at + 8 <= bytes; at += 1024 * 1024 - 8)
        cr_assert_eq(memcmp(locked_file_at(locked, at), &at, 8), 0);
    locked_file_destroy(locked);
}

/* The third share lies behind the end of the file, too, and would say so. */
Test(locked_file, a_share_that_fails_ends_the_others)
{
    struct error err;
    cr_assert_eq(ftruncate(file_fd, 5 * 1024 * 1024), 0);
    struct locked_file *locked = lock(0, 17 * 1024 * 1024, 0);
    cr_expect_eq(locked_file_load(locked, 1, 3, &err), STATUS_FORMAT);
    cr_expect_eq(locked_file_load(locked, 2, 3, &err), STATUS_OK);
    locked_file_destroy(locked);
}

Test(locked_file, what_fails)
{
    struct locked_file *locked = NULL;
    struct error err;
    for (uint64_t n = 1; n <= 2; n++) {
        struct resources before = resources_now();
        memory_fail_at(n, 0);
        cr_assert_eq(create(&locked, 0, 100, &err), STATUS_NO_MEMORY);
        memory_fail_at(0, 0);
        cr_assert_null(locked);
        expect_resources("an allocation", before);
    }
    locked = lock(0, FILE_BYTES, 0);
    for (uint64_t n = 1; n <= 4; n++) {
        struct resources before = resources_now();
        struct read_queue_params params = reads_params(READ_LOCKED, false);
        struct read_queue *queue = NULL;
        params.locked = locked;
        memory_fail_at(n, 0);
        cr_assert_eq(read_queue_create(&queue, &params, &err), STATUS_NO_MEMORY);
        memory_fail_at(0, 0);
        expect_resources("an allocation of a queue", before);
    }
    locked_file_destroy(locked);
    locked = lock(4096, FILE_BYTES - 4096 + 1, 0); /* a byte more than there is */
    cr_assert_eq(locked_file_load(locked, 0, 1, &err), STATUS_FORMAT);
    cr_assert_not_null(strstr(err.message, "ends at byte 3146505, where 1 more"), "%s",
                       err.message);
    locked_file_destroy(locked);
}

/* The limit holds for users without CAP_IPC_LOCK: root becomes one of them. */
Test(locked_file, little_memory_may_be_locked)
{
    struct locked_file *locked = NULL;
    struct error err;
    struct rlimit limit = {1024 * 1024, 1024 * 1024};
    cr_assert_eq(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
    if (geteuid() == 0)
        cr_assert_eq(setresuid(65534, 65534, 65534), 0);
    cr_assert_eq(prctl(PR_SET_DUMPABLE, 1), 0); /* or its /proc/self stays root's */
    struct resources before = resources_now();
    cr_assert_eq(system_memory_lockable(), 1024 * 1024);
    cr_assert_eq(create(&locked, 0, FILE_BYTES, &err), STATUS_UNSUPPORTED);
    cr_assert_not_null(strstr(err.message, "cannot lock 3 MiB in memory: the limit allows 1 MiB"),
                       "%s", err.message);
    expect_resources("a refusal", before);
    locked = lock(0, 512 * 1024, 1);
    cr_assert_eq(system_memory_lockable(), 512 * 1024);
    locked_file_destroy(locked);
}

/* ---- Which tier ------------------------------------------------------------------------------ */

Test(read_tier, what_fits)
{
    const uint64_t gib = (uint64_t)1 << 30;
    static const char *const free_memory =
        "14337 MiB are more than seven eighths of 16384 MiB of free memory";
    static const char *const limit =
        "14336 MiB are more than the 8 MiB that may be locked (ulimit -l, LimitMEMLOCK=)";
    const struct {
        struct read_tier_facts facts;
        enum read_tier tier;
        const char *reason;
    } cases[] = {
        {{14 * gib, 16 * gib, UINT64_MAX}, TIER_LOCKED, ""},
        {{14 * gib, 16 * gib, 14 * gib}, TIER_LOCKED, ""},
        {{14 * gib, 16 * gib, 8 << 20}, TIER_CACHED, limit},
        {{14 * gib + (1 << 20), 16 * gib, UINT64_MAX}, TIER_DISK, free_memory},
        {{14 * gib + (1 << 20), 16 * gib, 0}, TIER_DISK, free_memory},
        {{1, UINT64_MAX, UINT64_MAX}, TIER_LOCKED, ""}, /* nothing tells of memory */
        {{1 << 20, 0, UINT64_MAX},
         TIER_DISK,
         "1 MiB are more than seven eighths of 0 MiB of free memory"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char reason[160] = "not written";
        enum read_tier tier = read_tier_choose(&cases[i].facts, reason, sizeof reason);
        cr_assert_eq(tier, cases[i].tier, "case %zu: %s", i, read_tier_names[tier]);
        cr_assert_str_eq(reason, cases[i].reason);
    }
}
