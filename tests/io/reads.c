#define _GNU_SOURCE
#include "reads.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/random.h"
#include "io/uring_calls.h"

int file_fd;
char file_path[64];
unsigned char *file_bytes;
static char folder[] = "/tmp/phasor-test-XXXXXX";

void reads_init(void)
{
    struct random random = {5, 0};
    cr_assert_not_null(mkdtemp(folder));
    cr_assert_eq(chmod(folder, 0755), 0);
    snprintf(file_path, sizeof file_path, "%s/file", folder);
    file_bytes = malloc(FILE_BYTES);
    for (size_t i = 0; i < FILE_BYTES; i++)
        file_bytes[i] = (unsigned char)random_next(&random);
    file_fd = open(file_path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    cr_assert_geq(file_fd, 0);
    cr_assert_eq(write(file_fd, file_bytes, FILE_BYTES), (ssize_t)FILE_BYTES);
}

void reads_deinit(void)
{
    close(file_fd);
    unlink(file_path);
    rmdir(folder);
    free(file_bytes);
}

struct read_queue_params reads_params(enum read_backend backend, bool avoids_cache)
{
    return (struct read_queue_params){.backend = backend,
                                      .fd = file_fd,
                                      .path = file_path,
                                      .buffer_count = BUFFER_COUNT,
                                      .buffer_bytes = BUFFER_BYTES,
                                      .avoids_cache = avoids_cache,
                                      .thread_count = 3,
                                      .patience_seconds = 60};
}

struct read_queue *reads_queue(const struct read_queue_params *params)
{
    struct read_queue *queue = NULL;
    struct error err;
    cr_assert_eq(read_queue_create(&queue, params, &err), STATUS_OK, "%s", err.message);
    return queue;
}

/* ---- Random reads ---------------------------------------------------------------------------- */

struct run {
    struct read_queue *queue;
    struct random random;
    struct {
        uint64_t id, offset;
        size_t bytes;
        bool is_in_use;
    } reads[BUFFER_COUNT]; /* by buffer */
    int begun, ended;
};

static void begin(struct run *run, int buffer)
{
    bool is_aligned = random_below(&run->random, 2) == 0;
    size_t unit = is_aligned ? READ_ALIGNMENT : 1;
    size_t bytes = unit * (1 + random_below(&run->random, BUFFER_BYTES / unit));
    uint64_t offset = unit * random_below(&run->random, (FILE_BYTES - bytes) / unit + 1);
    uint64_t id = random_next(&run->random);
    run->reads[buffer].id = id;
    run->reads[buffer].offset = offset;
    run->reads[buffer].bytes = bytes;
    run->reads[buffer].is_in_use = true;
    if (read_queue_use_get(run->queue).backend != READ_LOCKED)
        memset(read_queue_buffer(run->queue, buffer), 0x5a, bytes);
    read_queue_submit(run->queue, id, buffer, offset, bytes);
    run->begun++;
}

static void check(struct run *run, const struct read_done *done)
{
    int b = done->buffer;
    cr_assert(b >= 0 && b < BUFFER_COUNT && run->reads[b].is_in_use, "a buffer that nobody used");
    cr_assert_eq(done->id, run->reads[b].id);
    cr_assert(memcmp(done->bytes, file_bytes + run->reads[b].offset, run->reads[b].bytes) == 0,
              "%zu bytes at %llu are not the file's", run->reads[b].bytes,
              (unsigned long long)run->reads[b].offset);
    run->reads[b].is_in_use = false;
    run->ended++;
}

enum status reads_run(struct read_queue *queue, uint64_t seed, int count, struct error *err)
{
    struct run run = {.queue = queue, .random = {seed, 0}};
    while (run.ended < count) {
        struct read_done done;
        for (int b = 0; b < BUFFER_COUNT && run.begun < count; b++) {
            if (!run.reads[b].is_in_use)
                begin(&run, b);
        }
        enum status status = read_queue_wait(queue, &done, 100, err);
        if (status != STATUS_OK)
            return status;
        check(&run, &done);
    }
    return STATUS_OK;
}

struct read_queue_use reads_expect(const char *label, const struct read_queue_params *params,
                                   int count)
{
    struct error err = {.message = ""};
    struct read_queue *queue = reads_queue(params);
    struct read_queue_use before = read_queue_use_get(queue);
    cr_assert(before.read_count == 0 && before.request_count == 0, "%s", label);
    cr_assert_eq(reads_run(queue, 7, count, &err), STATUS_OK, "%s: %s", label, err.message);
    struct read_queue_use use = read_queue_use_get(queue);
    cr_assert_eq(use.read_count, (uint64_t)count, "%s", label);
    cr_assert_geq(use.request_count, use.read_count, "%s", label);
    use.note = NULL;
    cr_assert(read_queue_destroy(queue), "%s", label);
    return use;
}

/* ---- The machine ----------------------------------------------------------------------------- */

struct resources resources_now(void)
{
    struct resources now = {memory_counters_get().live_count, dup(0)};
    close(now.descriptor);
    return now;
}

void expect_resources(const char *label, struct resources before)
{
    struct resources now = resources_now();
    cr_assert_eq(now.live_count, before.live_count, "%s: memory was kept", label);
    cr_assert_eq(now.descriptor, before.descriptor, "%s: a descriptor was kept", label);
}

bool uring_works(void)
{
    struct io_uring_params params;
    memset(&params, 0, sizeof params);
    int fd = (int)syscall(__NR_io_uring_setup, 1, &params);
    if (fd >= 0)
        close(fd);
    return fd >= 0 && uring_calls_system() != NULL;
}

bool direct_works(const char *path)
{
    void *page = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
    cr_assert_eq(posix_memalign(&page, READ_ALIGNMENT, READ_ALIGNMENT), 0);
    bool works = fd >= 0 && pread(fd, page, READ_ALIGNMENT, READ_ALIGNMENT) == READ_ALIGNMENT;
    free(page);
    if (fd >= 0)
        close(fd);
    return works;
}
