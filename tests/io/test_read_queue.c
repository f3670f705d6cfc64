/* What a queue gives, by whatever way it reads, and that it reads by the ways that the machine
 * has. */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "clock.h"
#include "io/uring_calls.h"
#include "reads.h"

TestSuite(read_queue, .init = reads_init, .fini = reads_deinit, .timeout = 120);

/* ---- The same bytes by each way -------------------------------------------------------------- */

static int refuse_buffers(struct uring_ring *ring, const struct iovec *buffers, unsigned count)
{
    (void)ring, (void)buffers, (void)count;
    return -ENOMEM;
}

static int refuse_files(struct uring_ring *ring, const int *fds, unsigned count)
{
    (void)ring, (void)fds, (void)count;
    return -ENOMEM;
}

/* The smallest ring there is, so that what is in flight is more than it holds. */
static int setup_smallest(struct uring_ring **out, unsigned entries)
{
    (void)entries;
    return uring_calls_system()->setup(out, 1);
}

enum ring { RING_WHOLE, RING_UNREGISTERED, RING_SMALLEST, RING_COUNT };

static const struct uring_calls *ring_calls(enum ring ring)
{
    static struct uring_calls calls;
    if (uring_calls_system() == NULL)
        return NULL;
    calls = *uring_calls_system();
    if (ring == RING_UNREGISTERED) {
        calls.register_buffers = refuse_buffers;
        calls.register_files = refuse_files;
    }
    if (ring == RING_SMALLEST)
        calls.setup = setup_smallest;
    return &calls;
}

static void expect_refusal(const struct read_queue_params *params)
{
    struct read_queue *queue = NULL;
    struct error err;
    cr_assert_eq(read_queue_create(&queue, params, &err), STATUS_UNSUPPORTED);
    cr_assert(strncmp(err.message, "io_uring cannot be used", 23) == 0, "%s", err.message);
    cr_assert_null(queue);
}

static void one_way(enum read_backend backend, bool avoids_cache, enum ring ring, void *buffers)
{
    char label[80];
    snprintf(label, sizeof label, "%s, cache %s, ring %d, %s buffers", read_backend_names[backend],
             avoids_cache ? "avoided" : "used", ring, buffers == NULL ? "its own" : "given");
    struct read_queue_params params = reads_params(backend, avoids_cache);
    params.buffers = buffers;
    params.uring = ring_calls(ring);
    if (backend == READ_URING && !uring_works()) {
        expect_refusal(&params);
        return;
    }
    struct read_queue_use use = reads_expect(label, &params, 300);
    bool is_direct = avoids_cache && direct_works(file_path);
    bool is_registered = backend == READ_URING && ring != RING_UNREGISTERED;
    cr_assert_eq(use.backend, backend, "%s", label);
    cr_assert_eq(use.is_direct, is_direct, "%s", label);
    cr_assert_eq(use.is_registered, is_registered, "%s", label);
    /* Half of the reads are of whole pages. */
    cr_assert(is_direct ? use.direct_count > 100 && use.direct_count < 200 : use.direct_count == 0,
              "%s: %llu past the cache", label, (unsigned long long)use.direct_count);
    cr_assert_eq(use.registered_count, is_registered ? use.request_count : 0, "%s", label);
    cr_assert_eq(use.dropped_count, 0, "%s", label);
}

Test(read_queue, the_same_bytes_by_each_way)
{
    void *given = NULL;
    cr_assert_eq(posix_memalign(&given, READ_ALIGNMENT, BUFFER_COUNT * BUFFER_BYTES), 0);
    for (int i = 0; i < 8; i++) {
        bool avoids_cache = i & 1;
        void *buffers = i & 2 ? given : NULL;
        struct resources before = resources_now();
        if (i & 4) {
            one_way(READ_THREADS, avoids_cache, RING_WHOLE, buffers);
        } else {
            for (int ring = 0; ring < RING_COUNT; ring++)
                one_way(READ_URING, avoids_cache, (enum ring)ring, buffers);
        }
        expect_resources("a queue", before);
    }
    free(given);
}

/* ---- Proofs from outside --------------------------------------------------------------------- */

static size_t cached_pages(void)
{
    static unsigned char pages[FILE_BYTES / 4096 + 1];
    size_t count = 0;
    void *map = mmap(NULL, FILE_BYTES, PROT_READ, MAP_SHARED, file_fd, 0);
    cr_assert_neq(map, MAP_FAILED);
    cr_assert_eq(mincore(map, FILE_BYTES, pages), 0);
    munmap(map, FILE_BYTES);
    for (size_t i = 0; i < sizeof pages; i++)
        count += pages[i] & 1;
    return count;
}

/* Reads whole pages only: what goes past the page cache leaves nothing there. */
static size_t cached_pages_after(enum read_backend backend, bool avoids_cache)
{
    struct read_done done;
    struct read_queue_params params = reads_params(backend, avoids_cache);
    struct read_queue *queue = reads_queue(&params);
    cr_assert_eq(posix_fadvise(file_fd, 0, 0, POSIX_FADV_DONTNEED), 0);
    cr_assert_lt(cached_pages(), 20, "the system does not empty its cache");
    for (uint64_t i = 0; i < 40; i++) {
        read_queue_submit(queue, i, 0, i * BUFFER_BYTES, BUFFER_BYTES);
        cr_assert_eq(read_queue_wait(queue, &done, 100, NULL), STATUS_OK);
    }
    cr_assert(read_queue_destroy(queue));
    return cached_pages();
}

Test(read_queue, what_avoids_the_cache_is_not_in_it)
{
    struct statfs system;
    cr_assert_eq(fstatfs(file_fd, &system), 0);
    if (system.f_type == TMPFS_MAGIC)
        cr_skip_test("/tmp is the page cache itself");
    cr_assert_eq(fdatasync(file_fd), 0);
    for (int backend = 0; backend <= READ_THREADS; backend++) {
        if (!direct_works(file_path) || (backend == READ_URING && !uring_works()))
            continue; /* the_same_bytes_by_each_way has shown what is used instead */
        cr_assert_geq(cached_pages_after((enum read_backend)backend, false), 640);
        cr_assert_lt(cached_pages_after((enum read_backend)backend, true), 40);
    }
}

static int read_into_the_next(struct uring_ring *ring, const struct read_request *request, int file,
                              bool has_files, int buffer)
{
    return uring_calls_system()->read(ring, request, file, has_files,
                                      buffer < 0 ? -1 : (buffer + 1) % BUFFER_COUNT);
}

/* The kernel has its own notion of a registered buffer: a read into another one's memory fails. */
Test(read_queue, registered_buffers_are_the_kernels)
{
    struct read_queue_params params = reads_params(READ_URING, false);
    struct uring_calls calls;
    struct error err;
    if (!uring_works())
        cr_skip_test("there is no io_uring");
    calls = *uring_calls_system();
    calls.read = read_into_the_next;
    params.uring = &calls;
    struct read_queue *queue = reads_queue(&params);
    cr_assert_eq(reads_run(queue, 1, 20, &err), STATUS_IO);
    cr_assert_not_null(strstr(err.message, "Bad address"), "%s", err.message);
    cr_assert(read_queue_destroy(queue));
}

/* ---- The contract ---------------------------------------------------------------------------- */

/* The ways that this machine has. */
static int ways(enum read_backend out[READ_BACKEND_COUNT])
{
    int count = 0;
    if (uring_works())
        out[count++] = READ_URING;
    out[count++] = READ_THREADS;
    return count;
}

#define FOR_EACH_WAY(params)                                                                       \
    enum read_backend ways_[READ_BACKEND_COUNT];                                                   \
    int way_count_ = 2 * ways(ways_);                                                              \
    struct read_queue_params params;                                                               \
    for (int w_ = 0; w_ < way_count_ && (params = reads_params(ways_[w_ / 2], w_ % 2), true); w_++)

static void expect_failure(struct read_queue *queue, uint64_t id, int buffer, enum status status,
                           const char *message)
{
    struct read_done done;
    struct error err;
    cr_assert_eq(read_queue_wait(queue, &done, 100, &err), status, "%s", err.message);
    cr_assert(done.id == id && done.buffer == buffer);
    cr_assert_not_null(strstr(err.message, message), "%s", err.message);
    cr_assert_not_null(strstr(err.message, file_path), "%s", err.message);
}

Test(read_queue, the_end_of_the_file)
{
    static const struct {
        uint64_t offset;
        size_t bytes;
        const char *message; /* NULL: there */
    } cases[] = {
        {FILE_BYTES - 1, 1, NULL},
        {FILE_BYTES - 777, 777, NULL},
        {FILE_BYTES - 777 - 4096, 4096 + 777, NULL},
        {FILE_BYTES - 1, 2, "ends at byte 3146505, where 1 more bytes were expected"},
        {FILE_BYTES - 777, 4096, "ends at byte 3146505, where 3319 more bytes were expected"},
        {FILE_BYTES, 5, "ends at byte 3146505, where 5 more bytes were expected"},
        {FILE_BYTES - 777 + 8192, 4096, "ends at byte 3146505, where 11511 more bytes"},
    };
    FOR_EACH_WAY(params)
    {
        struct read_done done;
        struct read_queue *queue = reads_queue(&params);
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            read_queue_submit(queue, i, 2, cases[i].offset, cases[i].bytes);
            if (cases[i].message != NULL) {
                expect_failure(queue, i, 2, STATUS_FORMAT, cases[i].message);
                continue;
            }
            cr_assert_eq(read_queue_wait(queue, &done, 100, NULL), STATUS_OK);
            cr_assert(done.id == i && done.buffer == 2);
            cr_assert_eq(
                memcmp(read_queue_buffer(queue, 2), file_bytes + cases[i].offset, cases[i].bytes),
                0);
        }
        cr_assert(read_queue_destroy(queue));
    }
}

Test(read_queue, A10_the_file_is_cut_meanwhile)
{
    FOR_EACH_WAY(params)
    {
        struct read_queue *queue = reads_queue(&params);
        cr_assert_eq(reads_run(queue, 3, 20, NULL), STATUS_OK);
        cr_assert_eq(ftruncate(file_fd, 1024 * 1024 + 100), 0);
        read_queue_submit(queue, 1, 0, 1024 * 1024 - 4096, 4096);
        read_queue_submit(queue, 2, 1, 1024 * 1024, 8192);
        for (int i = 0; i < 2; i++) {
            struct read_done done;
            struct error err = {.message = ""};
            enum status status = read_queue_wait(queue, &done, 100, &err);
            cr_assert_eq(status, done.id == 1 ? STATUS_OK : STATUS_FORMAT, "%s", err.message);
            if (done.id == 2)
                cr_assert_not_null(strstr(err.message, "ends at byte 1048676, where 8092 more"),
                                   "%s", err.message);
        }
        cr_assert(read_queue_destroy(queue));
        cr_assert_eq(pwrite(file_fd, file_bytes, FILE_BYTES, 0), (ssize_t)FILE_BYTES);
    }
}

Test(read_queue, another_file_under_the_name_is_not_read)
{
    FOR_EACH_WAY(params)
    {
        char other[80];
        snprintf(other, sizeof other, "%s.other", file_path);
        cr_assert_eq(rename(file_path, other), 0);
        int fd = open(file_path, O_WRONLY | O_CREAT | O_EXCL, 0600);
        close(fd);
        reads_expect("a file that was renamed", &params, 20);
        cr_assert_eq(rename(other, file_path), 0);
    }
}

Test(read_queue, a_file_of_less_than_a_page)
{
    cr_assert_eq(ftruncate(file_fd, 5), 0);
    FOR_EACH_WAY(params)
    {
        struct read_done done;
        struct read_queue *queue = reads_queue(&params);
        read_queue_submit(queue, 9, 0, 1, 4);
        cr_assert_eq(read_queue_wait(queue, &done, 100, NULL), STATUS_OK);
        cr_assert_eq(memcmp(read_queue_buffer(queue, 0), file_bytes + 1, 4), 0);
        cr_assert(read_queue_destroy(queue));
    }
}

Test(read_queue, waiting_for_nothing)
{
    FOR_EACH_WAY(params)
    {
        struct read_done done = {.id = 5, .buffer = 5};
        struct read_queue *queue = reads_queue(&params);
        cr_assert_eq(read_queue_wait(queue, &done, 100, NULL), STATUS_OK);
        cr_assert_eq(done.buffer, -1);
        read_queue_submit(queue, 6, 1, 0, 4096);
        do { /* only looks */
            cr_assert_eq(read_queue_wait(queue, &done, 0, NULL), STATUS_OK);
        } while (done.buffer == -1);
        cr_assert(done.id == 6 && done.buffer == 1);
        cr_assert(read_queue_destroy(queue));
    }
    cr_assert(read_queue_destroy(NULL));
}

Test(read_queue, a_caller_that_was_away_for_long)
{
    clock_hold();
    FOR_EACH_WAY(params)
    {
        params.patience_seconds = 0.05;
        struct read_done done;
        struct read_queue *queue = reads_queue(&params);
        for (int b = 0; b < BUFFER_COUNT; b++)
            read_queue_submit(queue, 6, b, 0, 4096);
        clock_advance(1000);
        for (int b = 0; b < BUFFER_COUNT; b++) {
            cr_assert_eq(read_queue_wait(queue, &done, 100, NULL), STATUS_OK);
            cr_assert_neq(done.buffer, -1);
        }
        cr_assert(read_queue_destroy(queue));
    }
}

static void *run_reads(void *queue)
{
    return reads_run(queue, 1, 200, NULL) == STATUS_OK ? queue : NULL;
}

Test(read_queue, used_by_another_thread_than_created_it)
{
    FOR_EACH_WAY(params)
    {
        struct read_queue *queue = reads_queue(&params);
        for (int i = 0; i < 3; i++) {
            pthread_t thread;
            void *result;
            cr_assert_eq(pthread_create(&thread, NULL, run_reads, queue), 0);
            pthread_join(thread, &result);
            cr_assert_eq(result, queue);
        }
        cr_assert(read_queue_destroy(queue));
    }
}

Test(read_queue, what_was_given_up_does_not_come)
{
    FOR_EACH_WAY(params)
    {
        struct read_queue *queue = reads_queue(&params);
        for (uint64_t round = 0; round < 20; round++) {
            struct read_done done;
            for (int b = 0; b < BUFFER_COUNT; b++)
                read_queue_submit(queue, 1000 + round, b, 0, BUFFER_BYTES);
            if (round % 2 == 0)
                cr_assert_eq(read_queue_wait(queue, &done, 100, NULL), STATUS_OK);
            cr_assert(read_queue_cancel(queue));
            cr_assert_eq(read_queue_wait(queue, &done, 0.001, NULL), STATUS_OK);
            cr_assert_eq(done.buffer, -1);
            cr_assert_eq(reads_run(queue, round, 20, NULL), STATUS_OK);
        }
        for (int b = 0; b < BUFFER_COUNT; b++) /* and destroyed while they are read */
            read_queue_submit(queue, 1, b, 0, BUFFER_BYTES);
        cr_assert(read_queue_destroy(queue));
    }
}
