#define _GNU_SOURCE
#include "measure/rates.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/disk.h"
#include "base/memory.h"
#include "base/system.h"
#include "io/read_queue.h"
#include "layout/packing.h"

#define BLOCK_BYTES      ((int64_t)4 << 20) /* of a read, and of what is hashed at a time */
#define DEPTH            4
#define ROUNDS           3
#define PATIENCE_SECONDS 60

/* ---- Reading --------------------------------------------------------------------------------- */

struct reading {
    struct box *box;
    const char *path;
    int fd;
    int64_t bytes;
    bool avoids_cache;
    struct read_queue *queues[COMM_RANKS_MAX];
};

static enum status file_write(int fd, const char *path, int64_t bytes, struct error *err)
{
    enum status status = STATUS_OK;
    char *block = memory_alloc_raw(1, (size_t)BLOCK_BYTES);
    if (block == NULL)
        return error_set(err, STATUS_NO_MEMORY, "cannot allocate a block to write to %s", path);
    for (int64_t i = 0; i < BLOCK_BYTES; i++) /* nothing that a file system could compress */
        block[i] = (char)(i * 2654435761u >> 13);
    for (int64_t at = 0; at < bytes && status == STATUS_OK; at += BLOCK_BYTES) {
        int64_t left = BLOCK_BYTES;
        memcpy(block, &at, sizeof at);
        while (left > 0 && status == STATUS_OK) {
            ssize_t got = disk_write(fd, block + BLOCK_BYTES - left, (size_t)left);
            if (got < 0)
                status =
                    error_set_errno(err, errno, "cannot write %s, whose reading is measured", path);
            left -= got;
        }
    }
    memory_free(block);
    if (status == STATUS_OK && disk_sync(fd) != 0)
        status = error_set_errno(err, errno, "cannot bring %s to the disk", path);
    return status;
}

static enum status queue_open(struct read_queue **out, const struct reading *reading,
                              struct error *err)
{
    struct read_queue_params params = {.backend = READ_URING,
                                       .fd = reading->fd,
                                       .path = reading->path,
                                       .buffer_count = DEPTH,
                                       .buffer_bytes = (size_t)BLOCK_BYTES,
                                       .avoids_cache = reading->avoids_cache,
                                       .thread_count = DEPTH,
                                       .patience_seconds = PATIENCE_SECONDS};
    enum status status = read_queue_create(out, &params, err);
    if (status != STATUS_UNSUPPORTED)
        return status;
    params.backend = READ_THREADS;
    return read_queue_create(out, &params, err);
}

/* Every rank its own part, in order. */
static enum status rank_read(void *context, int rank, struct error *err)
{
    struct reading *reading = context;
    struct read_queue *queue = reading->queues[rank];
    int64_t blocks = reading->bytes / BLOCK_BYTES, ranks = box_rank_count(reading->box);
    int64_t at = blocks * rank / ranks, end = blocks * (rank + 1) / ranks;
    int flying = 0;
    for (int b = 0; b < DEPTH && at < end; b++, at++, flying++)
        read_queue_submit(queue, (uint64_t)at, b, (uint64_t)(at * BLOCK_BYTES),
                          (size_t)BLOCK_BYTES);
    while (flying > 0) {
        struct read_done done;
        TRY(read_queue_wait(queue, &done, PATIENCE_SECONDS, err));
        if (done.buffer < 0)
            continue;
        flying--;
        if (at < end) {
            read_queue_submit(queue, (uint64_t)at, done.buffer, (uint64_t)(at * BLOCK_BYTES),
                              (size_t)BLOCK_BYTES);
            at++;
            flying++;
        }
    }
    return STATUS_OK;
}

static enum status rank_open(void *context, int rank, struct error *err)
{
    struct reading *reading = context;
    return queue_open(&reading->queues[rank], reading, err);
}

/* Queues are used by the threads that made them. */
static enum status rank_close(void *context, int rank, struct error *err)
{
    struct reading *reading = context;
    (void)err;
    if (reading->queues[rank] != NULL)
        (void)read_queue_destroy(reading->queues[rank]);
    reading->queues[rank] = NULL;
    return STATUS_OK;
}

/* The best round: what else reads from the disk is not its rate. */
static enum status read_rounds(double *out, struct reading *reading, struct error *err)
{
    double best = INFINITY;
    enum status status = box_run(reading->box, rank_open, reading, err);
    for (int round = 0; round < ROUNDS && status == STATUS_OK; round++) {
        if (reading->avoids_cache)
            (void)posix_fadvise(reading->fd, 0, 0, POSIX_FADV_DONTNEED);
        double begin = system_seconds();
        status = box_run(reading->box, rank_read, reading, err);
        best = fmin(best, system_seconds() - begin);
    }
    struct error ignored;
    if (status == STATUS_OK)
        status = box_run(reading->box, rank_close, reading, err);
    for (int r = 0; r < box_rank_count(reading->box); r++) /* where the box has failed */
        (void)!rank_close(reading, r, &ignored);
    *out = (double)reading->bytes / best;
    return status;
}

enum status rates_read(struct read_rates *out, struct box *box, const char *path, int64_t bytes,
                       struct error *err)
{
    struct reading reading = {.box = box, .path = path, .bytes = bytes};
    ASSERT(bytes >= BLOCK_BYTES && bytes % BLOCK_BYTES == 0);
    reading.fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (reading.fd < 0)
        return error_set_errno(err, errno, "cannot create %s, whose reading is to be measured",
                               path);
    enum status status = file_write(reading.fd, path, bytes, err);
    if (status == STATUS_OK) {
        reading.avoids_cache = true;
        status = read_rounds(&out->disk, &reading, err);
    }
    if (status == STATUS_OK) {
        reading.avoids_cache = false;
        status = read_rounds(&out->page_cache, &reading, err);
    }
    close(reading.fd);
    unlink(path);
    return status;
}

/* ---- Work of host threads -------------------------------------------------------------------- */

/* Of one rank; each worker has its own part. */
struct host_work {
    struct device *device;
    void (*work)(void *context, int worker);
    char *from, *to;
    int workers;
    int64_t part_bytes; /* of `from`, of each worker */
    double seconds;
    atomic_uint_fast64_t sink; /* so that no result is for nothing */
};

struct host_works {
    struct host_work ranks[COMM_RANKS_MAX];
};

static void check_part(void *context, int worker)
{
    struct host_work *work = context;
    atomic_fetch_add(&work->sink, XXH3_64bits_withSeed(work->from + worker * work->part_bytes,
                                                       (size_t)work->part_bytes, 1));
}

/* Rows of a matrix a few at a time, as they are read: the source is a core's cache, the target
 * memory. */
#define REPACK_ROWS    256
#define REPACK_COLUMNS 2048
#define REPACK_STEP    64

static void repack_part(void *context, int worker)
{
    struct host_work *work = context;
    int64_t matrix_bytes = REPACK_ROWS * REPACK_COLUMNS * 2;
    const char *source = work->from + worker * work->part_bytes;
    for (int64_t at = 0; at < work->part_bytes; at += matrix_bytes) {
        for (int64_t row = 0; row < REPACK_ROWS; row += REPACK_STEP)
            matrix_pack_rows(work->to + worker * work->part_bytes + at, PACK_OUTPUT, DTYPE_BF16,
                             REPACK_ROWS, REPACK_COLUMNS, source, row, REPACK_STEP);
    }
}

static enum status rank_work(void *context, int rank, struct error *err)
{
    struct host_work *work = &((struct host_works *)context)->ranks[rank];
    (void)err;
    work->device->ops->host_run(work->device, work->work, work); /* pages are there */
    double begin = system_seconds();
    for (int round = 0; round < ROUNDS; round++)
        work->device->ops->host_run(work->device, work->work, work);
    work->seconds = (system_seconds() - begin) / ROUNDS;
    return STATUS_OK;
}

static enum status works_get(struct host_works *works, struct box *box,
                             void (*work)(void *context, int worker), struct error *err)
{
    for (int r = 0; r < box_rank_count(box); r++) {
        struct device *device = box_device(box, r);
        struct host_work *rank = &works->ranks[r];
        rank->device = device;
        rank->work = work;
        rank->workers = device->ops->host_workers(device);
        rank->part_bytes = 4 * BLOCK_BYTES;
        size_t bytes = (size_t)(rank->part_bytes * rank->workers);
        TRY(memory_get((void **)&rank->from, 1, bytes, "what is measured", err));
        TRY(memory_get((void **)&rank->to, 1, bytes, "what is measured", err));
    }
    return STATUS_OK;
}

/* Bytes a second of the slowest rank. */
static enum status host_rate(double *out, struct box *box, void (*work)(void *context, int worker),
                             struct error *err)
{
    struct host_works *works;
    double least = INFINITY;
    TRY(memory_get((void **)&works, 1, sizeof *works, "what is measured", err));
    enum status status = works_get(works, box, work, err);
    if (status == STATUS_OK)
        status = box_run(box, rank_work, works, err);
    for (int r = 0; r < box_rank_count(box); r++) {
        struct host_work *rank = &works->ranks[r];
        if (status == STATUS_OK)
            least = fmin(least, (double)(rank->part_bytes * rank->workers) / rank->seconds);
        memory_free(rank->from);
        memory_free(rank->to);
    }
    memory_free(works);
    *out = least;
    return status;
}

enum status rates_check(double *out, struct box *box, struct error *err)
{
    return host_rate(out, box, check_part, err);
}

enum status rates_repack(double *out, struct box *box, struct error *err)
{
    return host_rate(out, box, repack_part, err);
}
