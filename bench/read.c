/* How fast src/io brings a file from the disk, beside one thread that reads it and a copy in
 * memory; see bench/README.md.
 *
 * Inside the timed window: submitting reads of the file's blocks in order, as many at a time as the
 * depth says, and waiting for them. Outside: creating the queue, touching its buffers, and dropping
 * the file from the page cache. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "head.h"
#include "io/read_queue.h"

#define ROUNDS_MAX  99
#define BYTES_MAX   ((uint64_t)2 << 30) /* of the file, each time */
#define PLAIN_BYTES ((size_t)4 << 20)
#define KIB         ((size_t)1 << 10)
#define MIB         ((size_t)1 << 20)

static int fd, direct_fd;
static const char *path;
static uint64_t total_bytes;

static void fail(const char *what)
{
    fprintf(stderr, "bench_read: %s\n", what);
    exit(1);
}

/* ---- What is measured ------------------------------------------------------------------------ */

struct way {
    enum { WAY_QUEUE, WAY_PREAD, WAY_COPY } kind;
    enum read_backend backend;
    bool is_direct, is_warm;
    size_t block_bytes;
    int depth;
};

static const struct way ways[] = {
    {.kind = WAY_COPY},
    {.kind = WAY_PREAD, .is_warm = true},
    {.kind = WAY_PREAD},
    {.kind = WAY_PREAD, .is_direct = true},
    {WAY_QUEUE, READ_URING, true, false, 128 * KIB, 1},
    {WAY_QUEUE, READ_URING, true, false, 128 * KIB, 4},
    {WAY_QUEUE, READ_URING, true, false, 128 * KIB, 16},
    {WAY_QUEUE, READ_URING, true, false, 512 * KIB, 1},
    {WAY_QUEUE, READ_URING, true, false, 512 * KIB, 4},
    {WAY_QUEUE, READ_URING, true, false, 512 * KIB, 16},
    {WAY_QUEUE, READ_URING, true, false, MIB, 2},
    {WAY_QUEUE, READ_URING, true, false, MIB, 8},
    {WAY_QUEUE, READ_URING, true, false, 4 * MIB, 1},
    {WAY_QUEUE, READ_URING, true, false, 4 * MIB, 4},
    {WAY_QUEUE, READ_URING, false, false, 512 * KIB, 4},
    {WAY_QUEUE, READ_URING, false, false, 4 * MIB, 4},
    {WAY_QUEUE, READ_URING, false, true, 4 * MIB, 4},
    {WAY_QUEUE, READ_THREADS, true, false, 512 * KIB, 4},
    {WAY_QUEUE, READ_THREADS, true, false, 4 * MIB, 1},
    {WAY_QUEUE, READ_THREADS, true, false, 4 * MIB, 4},
    {WAY_QUEUE, READ_THREADS, false, false, 4 * MIB, 4},
    {WAY_QUEUE, READ_THREADS, false, true, 4 * MIB, 4},
};
#define WAYS ((int)(sizeof ways / sizeof ways[0]))

struct cost {
    double seconds, cpu_seconds;
};

static double seconds_of(struct timeval time)
{
    return (double)time.tv_sec + 1e-6 * (double)time.tv_usec;
}

static struct cost now(void)
{
    struct timespec time;
    struct rusage use;
    clock_gettime(CLOCK_MONOTONIC, &time);
    getrusage(RUSAGE_SELF, &use);
    return (struct cost){(double)time.tv_sec + 1e-9 * (double)time.tv_nsec,
                         seconds_of(use.ru_utime) + seconds_of(use.ru_stime)};
}

static struct cost since(struct cost start)
{
    struct cost end = now();
    return (struct cost){end.seconds - start.seconds, end.cpu_seconds - start.cpu_seconds};
}

static char *buffer_get(size_t bytes)
{
    void *buffer;
    if (posix_memalign(&buffer, READ_ALIGNMENT, bytes) != 0)
        fail("not enough memory");
    memset(buffer, 1, bytes);
    return buffer;
}

static struct cost measure_copy(void)
{
    const size_t bytes = 128 * MIB; /* far more than a cache */
    char *from = buffer_get(bytes), *to = buffer_get(bytes);
    struct cost start = now();
    for (uint64_t at = 0; at < total_bytes; at += bytes)
        memcpy(to, from, at + bytes <= total_bytes ? bytes : (size_t)(total_bytes - at));
    struct cost cost = since(start);
    free(from);
    free(to);
    return cost;
}

static struct cost measure_pread(const struct way *way)
{
    char *buffer = buffer_get(PLAIN_BYTES);
    struct cost start = now();
    for (uint64_t at = 0; at < total_bytes; at += PLAIN_BYTES) {
        if (pread(way->is_direct ? direct_fd : fd, buffer, PLAIN_BYTES, (off_t)at) <= 0)
            fail("cannot read the file");
    }
    struct cost cost = since(start);
    free(buffer);
    return cost;
}

/* Submits the next block; the number of reads that it began. */
static int submit(struct read_queue *queue, const struct way *way, int buffer, uint64_t *at)
{
    uint64_t left = total_bytes - *at;
    if (left == 0)
        return 0;
    size_t bytes = left < way->block_bytes ? (size_t)left : way->block_bytes;
    read_queue_submit(queue, *at, buffer, *at, bytes);
    *at += bytes;
    return 1;
}

/* Reads all blocks in order; a buffer has the next as soon as it is free. */
static void queue_run(struct read_queue *queue, const struct way *way)
{
    uint64_t at = 0;
    int flying = 0;
    for (int b = 0; b < way->depth; b++)
        flying += submit(queue, way, b, &at);
    while (flying > 0) {
        struct read_done done;
        struct error err;
        if (read_queue_wait(queue, &done, 1e6, &err) != STATUS_OK)
            fail(err.message);
        flying += submit(queue, way, done.buffer, &at) - 1;
    }
}

static struct cost measure_queue(const struct way *way)
{
    struct read_queue *queue;
    struct error err;
    struct read_queue_params params = {.backend = way->backend,
                                       .fd = fd,
                                       .path = path,
                                       .buffer_count = way->depth,
                                       .buffer_bytes = way->block_bytes,
                                       .avoids_cache = way->is_direct,
                                       .thread_count = way->depth,
                                       .patience_seconds = 60};
    if (read_queue_create(&queue, &params, &err) != STATUS_OK)
        fail(err.message);
    for (int b = 0; b < way->depth; b++)
        memset(read_queue_buffer(queue, b), 1, way->block_bytes);
    struct cost start = now();
    queue_run(queue, way);
    struct cost cost = since(start);
    struct read_queue_use use = read_queue_use_get(queue);
    if (use.is_direct != way->is_direct || use.note[0] != 0)
        fprintf(stderr, "bench_read: %s\n", use.note);
    read_queue_destroy(queue);
    return cost;
}

/* Only clean pages are dropped, so what a copy of the file left dirty is written first. */
static void file_drop(void)
{
    fdatasync(fd);
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
}

static struct cost measure(const struct way *way)
{
    if (!way->is_warm)
        file_drop();
    else
        measure_pread(&(struct way){.kind = WAY_PREAD});
    return way->kind == WAY_COPY    ? measure_copy()
           : way->kind == WAY_PREAD ? measure_pread(way)
                                    : measure_queue(way);
}

/* ---- Report ---------------------------------------------------------------------------------- */

static double rates[WAYS][ROUNDS_MAX], cpu_costs[WAYS][ROUNDS_MAX];

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void name_print(const struct way *way)
{
    const char *from = way->is_warm ? "page cache" : way->is_direct ? "disk, O_DIRECT" : "disk";
    char depth[8] = "";
    if (way->kind == WAY_QUEUE)
        snprintf(depth, sizeof depth, "x %d", way->depth);
    if (way->kind == WAY_COPY)
        printf("%-44s", "memcpy, one thread");
    else
        printf("%-17s %4zu KiB %-4s %-15s",
               way->kind == WAY_QUEUE ? read_backend_names[way->backend] : "pread, one thread",
               (way->kind == WAY_QUEUE ? way->block_bytes : PLAIN_BYTES) / KIB, depth, from);
}

static void report(int w, int rounds)
{
    qsort(rates[w], (size_t)rounds, sizeof *rates[w], by_value);
    qsort(cpu_costs[w], (size_t)rounds, sizeof *cpu_costs[w], by_value);
    name_print(&ways[w]);
    printf(" %7.2f GB/s (%.2f to %.2f) %6.0f ms of processor a GB\n", rates[w][rounds / 2],
           rates[w][0], rates[w][rounds - 1], cpu_costs[w][rounds / 2]);
}

int main(int argc, char **argv)
{
    int rounds = argc > 2 ? atoi(argv[2]) : 7;
    struct stat stat;
    if (argc < 2 || rounds < 1 || rounds > ROUNDS_MAX)
        fail("usage: bench_read FILE [rounds]");
    path = argv[1];
    fd = open(path, O_RDONLY | O_CLOEXEC);
    direct_fd = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
    if (fd < 0 || direct_fd < 0 || fstat(fd, &stat) != 0)
        fail("FILE must be a file on a file system with O_DIRECT");
    total_bytes = (uint64_t)stat.st_size / PLAIN_BYTES * PLAIN_BYTES;
    if (total_bytes > BYTES_MAX)
        total_bytes = BYTES_MAX;
    if (total_bytes == 0)
        fail("FILE must have at least 4 MiB");
    bench_print_head(argc, argv);
    printf("# %.3f GB of the file each time\n"
           "# clock: CLOCK_MONOTONIC; median (least to most) of %d rounds; of processor time the "
           "median\n",
           (double)total_bytes / 1e9, rounds);
    for (int r = 0; r < rounds; r++) {
        for (int w = 0; w < WAYS; w++) {
            struct cost cost = measure(&ways[w]);
            rates[w][r] = (double)total_bytes / cost.seconds / 1e9;
            cpu_costs[w][r] = cost.cpu_seconds * 1e3 / ((double)total_bytes / 1e9);
        }
        fprintf(stderr, "round %d of %d\n", r + 1, rounds);
    }
    for (int w = 0; w < WAYS; w++)
        report(w, rounds);
    return 0;
}
