/* How fast a checkpoint loads, beside what the machine's memory and disk give; see bench/README.md.
 *
 * Inside the timed window of a load: a whole phasor_model_open, that is reading and checking the
 * headers, taking the memory, reading and packing the weights, starting threads. Outside: closing
 * the model, and dropping its files from the page cache. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "head.h"
#include "phasor.h"

#define ROUNDS_MAX     99
#define FILES_MAX      512
#define THREADS_MAX    64
#define COPY_BYTES     ((size_t)128 << 20) /* of each thread: far more than a cache */
#define COPY_TIMES     4
#define TIMES_IN_A_ROW 4
#define READ_BYTES     ((size_t)4 << 20)
#define ASK_BYTES      ((size_t)512 << 10)
#define AHEAD_BYTES    ((uint64_t)64 << 20)
#define PART_BYTES     ((size_t)256 << 10) /* stays in a core's cache */
#define PAGE_BYTES     ((size_t)4096)
#define LINE_BYTES     ((size_t)64)
#define HUGE_BYTES     ((size_t)2 << 20)

struct file {
    int cached, direct; /* descriptors; `direct` passes the page cache by where that is allowed */
    uint64_t bytes;
    char *mapped; /* while that is measured */
};

static struct file files[FILES_MAX];
static int file_count;
static uint64_t total_bytes;
static int thread_count;
static bool reads_are_direct = true;
static _Atomic uint64_t next_piece;
static char packed_path[4096]; /* of the packed weights in the cache */

static void fail(const char *what)
{
    fprintf(stderr, "bench_load: %s\n", what);
    exit(1);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void file_add(const char *folder, const char *name)
{
    char path[4096];
    struct stat stat;
    struct file *file = &files[file_count++];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    file->cached = open(path, O_RDONLY | O_CLOEXEC);
    if (file->cached < 0 || fstat(file->cached, &stat) != 0)
        fail("cannot open a file of the checkpoint");
    file->bytes = (uint64_t)stat.st_size;
    total_bytes += file->bytes;
    file->direct = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
    if (file->direct < 0) {
        file->direct = open(path, O_RDONLY | O_CLOEXEC);
        reads_are_direct = false;
    }
}

static void files_find(const char *folder)
{
    DIR *dir = opendir(folder);
    struct dirent *entry;
    if (dir == NULL)
        fail("MODEL must be a folder with *.safetensors");
    while ((entry = readdir(dir)) != NULL && file_count < FILES_MAX) {
        size_t length = strlen(entry->d_name);
        if (length > 12 && strcmp(entry->d_name + length - 12, ".safetensors") == 0)
            file_add(folder, entry->d_name);
    }
    closedir(dir);
    if (total_bytes == 0)
        fail("no *.safetensors in MODEL");
}

/* Only clean pages are dropped, so what a copy of the files left dirty is written first. */
static void files_drop(void)
{
    for (int f = 0; f < file_count; f++) {
        fdatasync(files[f].cached);
        posix_fadvise(files[f].cached, 0, 0, POSIX_FADV_DONTNEED);
    }
}

static void packed_drop(void)
{
    int fd = open(packed_path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        fail("the packed weights are not in the cache");
    fdatasync(fd);
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
}

/* ---- What is measured: each gives GB/s ------------------------------------------------------- */

static double on_all_threads(void *(*work)(void *), void **arguments)
{
    pthread_t threads[THREADS_MAX];
    double start = now();
    for (int t = 0; t < thread_count; t++) {
        if (pthread_create(&threads[t], NULL, work, arguments[t]) != 0)
            fail("cannot start a thread");
    }
    for (int t = 0; t < thread_count; t++)
        pthread_join(threads[t], NULL);
    return now() - start;
}

static void *copy_work(void *argument)
{
    char *from = argument, *to = from + COPY_BYTES;
    for (int i = 0; i < COPY_TIMES; i++)
        memcpy(i % 2 ? from : to, i % 2 ? to : from, COPY_BYTES);
    return NULL;
}

/* Between pages that were touched before. */
static double copy_rate(void)
{
    void *buffers[THREADS_MAX];
    for (int t = 0; t < thread_count; t++) {
        buffers[t] = malloc(2 * COPY_BYTES);
        if (buffers[t] == NULL)
            fail("not enough memory for the copy");
        memset(buffers[t], 1, 2 * COPY_BYTES);
    }
    double seconds = on_all_threads(copy_work, buffers);
    for (int t = 0; t < thread_count; t++)
        free(buffers[t]);
    return (double)thread_count * COPY_TIMES * (double)COPY_BYTES / seconds / 1e9;
}

/* The file of piece `at` of all files' pieces, and where it begins there; NULL behind the last. */
static const struct file *piece_find(uint64_t *at)
{
    for (int f = 0; f < file_count; f++) {
        uint64_t whole = (files[f].bytes + READ_BYTES - 1) / READ_BYTES * READ_BYTES;
        if (*at < whole)
            return &files[f];
        *at -= whole;
    }
    return NULL;
}

static void *read_work(void *buffer)
{
    for (;;) {
        uint64_t at = atomic_fetch_add(&next_piece, 1) * READ_BYTES;
        const struct file *file = piece_find(&at);
        if (file == NULL)
            return NULL;
        if (pread(file->direct, buffer, READ_BYTES, (off_t)at) <= 0)
            fail("cannot read a file of the checkpoint");
    }
}

/* Asks for a piece that is AHEAD_BYTES behind, as a load does, and reads one in parts. */
static void *read_ahead_work(void *buffer)
{
    for (;;) {
        uint64_t begin = atomic_fetch_add(&next_piece, 1) * READ_BYTES;
        uint64_t at = begin, later = begin + AHEAD_BYTES;
        const struct file *file = piece_find(&at), *asked = piece_find(&later);
        if (file == NULL)
            return NULL;
        for (size_t part = 0; asked != NULL && part < READ_BYTES; part += ASK_BYTES)
            posix_fadvise(asked->cached, (off_t)(later + part), ASK_BYTES, POSIX_FADV_WILLNEED);
        for (size_t part = 0; part < READ_BYTES && at + part < file->bytes; part += PART_BYTES) {
            if (pread(file->cached, buffer, PART_BYTES, (off_t)(at + part)) <= 0)
                fail("cannot read a file of the checkpoint");
        }
    }
}

static double disk_rate(void *(*work)(void *))
{
    void *buffers[THREADS_MAX];
    for (int t = 0; t < thread_count; t++) {
        if (posix_memalign(&buffers[t], 4096, READ_BYTES) != 0)
            fail("not enough memory to read");
    }
    files_drop();
    atomic_store(&next_piece, 0);
    double seconds = on_all_threads(work, buffers);
    for (int t = 0; t < thread_count; t++)
        free(buffers[t]);
    return (double)total_bytes / seconds / 1e9;
}

/* Where [*at, ..) of all files, one behind another, begins; *at is then the offset there. */
static int file_find(uint64_t *at)
{
    int f = 0;
    for (; *at >= files[f].bytes; f++)
        *at -= files[f].bytes;
    return f;
}

/* What the system does for a load of [at, at + bytes) of all files into `to`, new memory. */
typedef void system_take(char *buffer, char *to, uint64_t at, uint64_t bytes);

static void pages_touch(char *to, uint64_t bytes)
{
    for (uint64_t page = 0; page < bytes; page += PAGE_BYTES)
        ((volatile char *)to)[page] = 1;
}

static void read_bytes(char *buffer, char *to, uint64_t at, uint64_t bytes)
{
    int f = file_find(&at);
    while (bytes > 0) {
        ssize_t count =
            pread(files[f].cached, buffer, bytes < PART_BYTES ? bytes : PART_BYTES, (off_t)at);
        if (count <= 0)
            fail("cannot read a file of the checkpoint");
        if ((uint64_t)count > bytes)
            count = (ssize_t)bytes;
        if (to != NULL)
            to = (char *)memcpy(to, buffer, (size_t)count) + count;
        at += (uint64_t)count;
        bytes -= (uint64_t)count;
        if (at == files[f].bytes) {
            at = 0;
            f++;
        }
    }
}

/* The least that it has to: the bytes once in a core's cache, and each page met. */
static void take_by_reading(char *buffer, char *to, uint64_t at, uint64_t bytes)
{
    pages_touch(to, bytes);
    read_bytes(buffer, NULL, at, bytes);
}

/* What a load that packed for nothing would take. */
static void take_by_copying(char *buffer, char *to, uint64_t at, uint64_t bytes)
{
    read_bytes(buffer, to, at, bytes);
}

/* A byte of each line of the mapped files, instead of reading them. */
static void take_where_mapped(char *buffer, char *to, uint64_t at, uint64_t bytes)
{
    char sum = 0;
    pages_touch(to, bytes);
    for (int f = file_find(&at); bytes > 0; f++, at = 0) {
        uint64_t left = files[f].bytes - at, count = bytes < left ? bytes : left;
        for (uint64_t i = 0; i < count; i += LINE_BYTES)
            sum ^= files[f].mapped[at + i];
        bytes -= count;
    }
    buffer[0] = sum;
}

/* The least from the disk, which is asked ahead as by a load. */
static void take_from_disk(char *buffer, char *to, uint64_t at, uint64_t bytes)
{
    uint64_t later = at + AHEAD_BYTES;
    if (later < total_bytes) {
        int f = file_find(&later);
        for (uint64_t part = 0; part < bytes; part += ASK_BYTES)
            posix_fadvise(files[f].cached, (off_t)(later + part), ASK_BYTES, POSIX_FADV_WILLNEED);
    }
    take_by_reading(buffer, to, at, bytes);
}

struct system_load {
    system_take *take;
    char *memory;
};

static void *system_work(void *argument)
{
    const struct system_load *load = argument;
    char *buffer = malloc(PART_BYTES);
    uint64_t pieces = (total_bytes + HUGE_BYTES - 1) / HUGE_BYTES, piece;
    if (buffer == NULL)
        fail("not enough memory to read");
    while ((piece = atomic_fetch_add(&next_piece, 1)) < pieces) {
        uint64_t at = piece * HUGE_BYTES, left = total_bytes - at;
        load->take(buffer, load->memory + at, at, left < HUGE_BYTES ? left : HUGE_BYTES);
    }
    free(buffer);
    return NULL;
}

static double system_rate(system_take *take)
{
    struct system_load load = {.take = take};
    void *arguments[THREADS_MAX];
    size_t bytes = (total_bytes / HUGE_BYTES + 2) * HUGE_BYTES;
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        fail("not enough memory to touch");
    (void)madvise(memory, bytes, MADV_HUGEPAGE); /* or small ones, as a load would have */
    load.memory = memory + (HUGE_BYTES - (uintptr_t)memory % HUGE_BYTES) % HUGE_BYTES;
    for (int t = 0; t < thread_count; t++)
        arguments[t] = &load;
    atomic_store(&next_piece, 0);
    double seconds = on_all_threads(system_work, arguments);
    munmap(memory, bytes);
    return (double)total_bytes / seconds / 1e9;
}

/* Mapping itself is not timed: until pages are met it takes the system nothing. */
static double mapped_rate(void)
{
    for (int f = 0; f < file_count; f++) {
        void *at = mmap(NULL, files[f].bytes, PROT_READ, MAP_SHARED, files[f].cached, 0);
        if (at == MAP_FAILED)
            fail("cannot map a file of the checkpoint");
        files[f].mapped = at;
    }
    double rate = system_rate(take_where_mapped);
    for (int f = 0; f < file_count; f++)
        munmap(files[f].mapped, files[f].bytes);
    return rate;
}

/* The notice ends with where they lie. */
static void on_notice(void *context, enum phasor_log_level level, const char *message)
{
    const char *path = strchr(message, '/');
    (void)context;
    (void)level;
    if (strncmp(message, "--weights-cache: ", 17) == 0 && path != NULL)
        snprintf(packed_path, sizeof packed_path, "%s", path);
}

static double load_rate(const char *folder, bool is_mapped)
{
    struct phasor_model *model;
    struct phasor_error err;
    struct phasor_model_params params = phasor_model_params_default();
    params.model = folder;
    params.caches_weights = is_mapped;
    params.log = on_notice;
    double start = now();
    if (phasor_model_open(&model, &params, &err) != PHASOR_OK)
        fail(err.message);
    double seconds = now() - start;
    phasor_model_close(model);
    return (double)total_bytes / seconds / 1e9;
}

/* ---- Rounds and report ----------------------------------------------------------------------- */

enum {
    COPY,
    WARM,
    AGAIN,
    SYSTEM,
    MAPPED,
    COPIED,
    DIRECT,
    AHEAD,
    COLD_SYSTEM,
    COLD_FIRST,
    COLD,
    PACKED,
    PACKED_COLD,
    WARM_SHARE,
    AGAIN_SHARE,
    SYSTEM_SHARE,
    MAPPED_SHARE,
    COPIED_SHARE,
    OF_SYSTEM,
    COLD_SYSTEM_SHARE,
    COLD_SHARE,
    COLD_OF_SYSTEM,
    PACKED_SHARE,
    PACKED_COLD_SHARE,
    VALUE_COUNT
};

static double values[VALUE_COUNT][ROUNDS_MAX];

static const char *model; /* the folder */

static double load_again(void)
{
    return load_rate(model, false);
}

static double load_packed(void)
{
    return load_rate(model, true);
}

static double read_system(void)
{
    return system_rate(take_by_reading);
}

static double copy_system(void)
{
    return system_rate(take_by_copying);
}

static double disk_direct(void)
{
    return disk_rate(read_work);
}

static double disk_ahead(void)
{
    return disk_rate(read_ahead_work);
}

static double disk_system(void)
{
    files_drop();
    return system_rate(take_from_disk);
}

static double load_cold(void)
{
    files_drop();
    return load_again();
}

static double load_packed_cold(void)
{
    packed_drop();
    files_drop(); /* of which it reads a little */
    return load_packed();
}

/* A load needs new pages, and so do files that come into the page cache, and a virtual machine's
 * host may take long to find them, and takes back what is free: of some in a row the fastest is one
 * whose pages were all there. */
static double fastest(double (*rate)(void))
{
    double most = 0;
    for (int i = 0; i < TIMES_IN_A_ROW; i++)
        most = fmax(most, rate());
    return most;
}

/* A cold load leaves the files in the page cache, so the next round's warm one finds them there. */
static void round_run(int r)
{
    values[COPY][r] = fastest(copy_rate);
    values[WARM][r] = load_again();
    values[AGAIN][r] = fastest(load_again);
    values[SYSTEM][r] = fastest(read_system);
    values[MAPPED][r] = fastest(mapped_rate);
    values[COPIED][r] = fastest(copy_system);
    values[DIRECT][r] = fastest(disk_direct);
    values[AHEAD][r] = fastest(disk_ahead);
    values[PACKED][r] = fastest(load_packed);
    values[PACKED_COLD][r] = fastest(load_packed_cold);
    values[COLD_SYSTEM][r] = fastest(disk_system);
    values[COLD_FIRST][r] = load_cold();
    values[COLD][r] = fastest(load_cold);
    double disk = fmax(values[DIRECT][r], values[AHEAD][r]);
    values[WARM_SHARE][r] = 100 * values[WARM][r] / values[COPY][r];
    values[AGAIN_SHARE][r] = 100 * values[AGAIN][r] / values[COPY][r];
    values[SYSTEM_SHARE][r] = 100 * values[SYSTEM][r] / values[COPY][r];
    values[MAPPED_SHARE][r] = 100 * values[MAPPED][r] / values[COPY][r];
    values[COPIED_SHARE][r] = 100 * values[COPIED][r] / values[COPY][r];
    values[OF_SYSTEM][r] = 100 * values[AGAIN][r] / values[SYSTEM][r];
    values[COLD_SYSTEM_SHARE][r] = 100 * values[COLD_SYSTEM][r] / disk;
    values[COLD_SHARE][r] = 100 * values[COLD][r] / disk;
    values[COLD_OF_SYSTEM][r] = 100 * values[COLD][r] / values[COLD_SYSTEM][r];
    values[PACKED_SHARE][r] = 100 * values[PACKED][r] / values[COPY][r];
    values[PACKED_COLD_SHARE][r] = 100 * values[PACKED_COLD][r] / disk;
    fprintf(stderr,
            "copy %.2f, warm load %.2f, again %.2f, system %.2f, mapped %.2f, copied %.2f, "
            "disk %.2f or %.2f, with new pages %.2f, cold load %.2f, packed %.2f, packed cold %.2f "
            "GB/s\n",
            values[COPY][r], values[WARM][r], values[AGAIN][r], values[SYSTEM][r],
            values[MAPPED][r], values[COPIED][r], values[DIRECT][r], values[AHEAD][r],
            values[COLD_SYSTEM][r], values[COLD][r], values[PACKED][r], values[PACKED_COLD][r]);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void report(const char *name, double *of, int count, const char *unit)
{
    qsort(of, (size_t)count, sizeof *of, by_value);
    printf("%-30s %7.2f %-4s (%.2f to %.2f)\n", name, of[count / 2], unit, of[0], of[count - 1]);
}

int main(int argc, char **argv)
{
    int rounds = argc > 2 ? atoi(argv[2]) : 7;
    if (argc < 2 || rounds < 1 || rounds > ROUNDS_MAX)
        fail("usage: bench_load MODEL [rounds]");
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    thread_count = cores > THREADS_MAX ? THREADS_MAX : (int)cores;
    model = argv[1];
    files_find(model);
    bench_print_head(argc, argv);
    printf("# %.3f GB in %d files; %d threads each; the disk is read %s the page cache\n"
           "# clock: CLOCK_MONOTONIC; median (least to most) of %d rounds; GB/s are of the files' "
           "bytes\n",
           (double)total_bytes / 1e9, file_count, thread_count,
           reads_are_direct ? "past" : "through", rounds);
    load_packed(); /* leaves them, where they are not */
    load_again();  /* brings the files into the page cache */
    for (int r = 0; r < rounds; r++)
        round_run(r);
    report("memcpy", values[COPY], rounds, "GB/s");
    report("load, first in a row", values[WARM], rounds, "GB/s");
    report("load, fastest in a row", values[AGAIN], rounds, "GB/s");
    report("reads and new pages alone", values[SYSTEM], rounds, "GB/s");
    report("mapped and new pages alone", values[MAPPED], rounds, "GB/s");
    report("reads copied to new pages", values[COPIED], rounds, "GB/s");
    report("disk, past the page cache", values[DIRECT], rounds, "GB/s");
    report("disk, asked ahead", values[AHEAD], rounds, "GB/s");
    report("disk and new pages alone", values[COLD_SYSTEM], rounds, "GB/s");
    report("cold load, first in a row", values[COLD_FIRST], rounds, "GB/s");
    report("cold load, fastest in a row", values[COLD], rounds, "GB/s");
    report("packed load, page cache", values[PACKED], rounds, "GB/s");
    report("packed load, disk", values[PACKED_COLD], rounds, "GB/s");
    report("first load / memcpy", values[WARM_SHARE], rounds, "%");
    report("fastest load / memcpy", values[AGAIN_SHARE], rounds, "%");
    report("reads and new pages / memcpy", values[SYSTEM_SHARE], rounds, "%");
    report("mapped and new pages / memcpy", values[MAPPED_SHARE], rounds, "%");
    report("reads, copied / memcpy", values[COPIED_SHARE], rounds, "%");
    report("fastest load / reads and pages", values[OF_SYSTEM], rounds, "%");
    report("disk and pages / faster disk", values[COLD_SYSTEM_SHARE], rounds, "%");
    report("cold load / faster disk", values[COLD_SHARE], rounds, "%");
    report("cold load / disk and pages", values[COLD_OF_SYSTEM], rounds, "%");
    report("packed load / memcpy", values[PACKED_SHARE], rounds, "%");
    report("packed cold load / faster disk", values[PACKED_COLD_SHARE], rounds, "%");
    return 0;
}
