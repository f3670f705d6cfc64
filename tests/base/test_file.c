#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"

static char directory[] = "/tmp/phasor-test-XXXXXX";
static char path[64];

static void setup(void)
{
    cr_assert_not_null(mkdtemp(directory));
    snprintf(path, sizeof path, "%s/file", directory);
}

static void teardown(void)
{
    unlink(path);
    rmdir(directory);
}

TestSuite(file, .init = setup, .fini = teardown, .timeout = 30);

static void write_bytes(size_t count)
{
    FILE *out = fopen(path, "wb");
    for (size_t i = 0; i < count; i++)
        fputc((int)(i * 7 % 251), out);
    cr_assert_eq(fclose(out), 0);
}

Test(file, whole_files_of_many_sizes)
{
    static const size_t sizes[] = {0, 1, 4095, 4096, 300000};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        char *bytes;
        size_t length;
        struct error err;
        write_bytes(sizes[i]);
        cr_assert_eq(file_read_whole(&bytes, &length, path, sizes[i], &err), STATUS_OK);
        cr_assert_eq(length, sizes[i]);
        for (size_t k = 0; k < length; k++)
            cr_assert_eq((unsigned char)bytes[k], k * 7 % 251);
        cr_assert_eq(bytes[length], 0);
        memory_free(bytes);
    }
}

static void check_refused(enum status status, size_t bytes_max, const char *part)
{
    char *bytes = directory;
    size_t length = 99;
    struct error err;
    uint64_t live = memory_counters_get().live_count;
    cr_assert_eq(file_read_whole(&bytes, &length, path, bytes_max, &err), status, "%s",
                 err.message);
    cr_assert_eq(err.status, status);
    cr_assert_not_null(strstr(err.message, path), "%s", err.message);
    cr_assert_not_null(strstr(err.message, part), "%s", err.message);
    cr_assert(bytes == directory && length == 99);
    cr_assert_eq(memory_counters_get().live_count, live);
}

Test(file, what_is_refused)
{
    check_refused(STATUS_NOT_FOUND, 100, "No such file");
    write_bytes(101);
    check_refused(STATUS_LIMIT, 100, "has 101 bytes; at most 100");
    memory_fail_at(1, 0);
    check_refused(STATUS_NO_MEMORY, 101, "cannot allocate 102 bytes");
    unlink(path);
    cr_assert_eq(mkdir(path, 0700), 0);
    check_refused(STATUS_FORMAT, 100, "not a regular file");
    rmdir(path);
    cr_assert_eq(mkfifo(path, 0600), 0);
    check_refused(STATUS_FORMAT, 100, "not a regular file"); /* and does not hang */
    unlink(path);
    cr_assert_eq(symlink("/dev/zero", path), 0);
    check_refused(STATUS_FORMAT, 100, "not a regular file");
}

Test(file, no_descriptor_is_left_open)
{
    write_bytes(10);
    int before = dup(0);
    close(before);
    for (int i = 0; i < 5; i++) {
        char *bytes;
        size_t length;
        if (file_read_whole(&bytes, &length, path, 10, NULL) == STATUS_OK)
            memory_free(bytes);
        cr_assert_eq(file_read_whole(&bytes, &length, path, 9, NULL), STATUS_LIMIT);
        cr_assert_eq(file_read_whole(&bytes, &length, directory, 9, NULL), STATUS_FORMAT);
    }
    int after = dup(0);
    close(after);
    cr_assert_eq(before, after);
}

Test(file, reads_at_an_offset)
{
    static const struct {
        uint64_t offset;
        size_t bytes;
        const char *message; /* NULL: there */
    } cases[] = {
        {0, 100, NULL},
        {99, 1, NULL},
        {100, 0, NULL},
        {5000, 0, NULL},
        {100, 1, "ends at byte 100, where 1 more bytes were expected"},
        {90, 20, "ends at byte 100, where 10 more bytes were expected"},
        {0, 101, "ends at byte 100, where 1 more bytes were expected"},
        {150, 20, "ends at byte 100, where 70 more bytes were expected"},
    };
    write_bytes(100);
    int fd = open(path, O_RDONLY);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        unsigned char bytes[128];
        struct error err;
        enum status status =
            file_read_at(fd, "the file", cases[i].offset, bytes, cases[i].bytes, &err);
        cr_assert_eq(status, cases[i].message == NULL ? STATUS_OK : STATUS_FORMAT, "case %zu", i);
        if (cases[i].message != NULL) {
            cr_assert_eq(strncmp(err.message, "the file ends", 13), 0);
            cr_assert_not_null(strstr(err.message, cases[i].message), "%s", err.message);
        } else {
            for (size_t k = 0; k < cases[i].bytes; k++)
                cr_assert_eq(bytes[k], (cases[i].offset + k) * 7 % 251);
        }
    }
    close(fd);
    char byte;
    struct error err;
    cr_assert_eq(file_read_at(fd, "the file", 3, &byte, 1, &err), STATUS_IO);
    cr_assert_str_eq(err.message, "cannot read the file at byte 3: Bad file descriptor");
}

Test(file, the_file_behind_links_is_found)
{
    char link[64], dangling[64], none[64], found[PATH_MAX], real[PATH_MAX];
    write_bytes(1);
    snprintf(link, sizeof link, "%s/link", directory);
    snprintf(dangling, sizeof dangling, "%s/dangling", directory);
    snprintf(none, sizeof none, "%s/none", directory);
    cr_assert_eq(symlink("file", link), 0);
    cr_assert_eq(symlink("nowhere", dangling), 0);
    cr_assert_not_null(realpath(path, real));
    cr_assert(file_resolve(found, link) && strcmp(found, real) == 0);
    cr_assert(file_resolve(found, none) && strcmp(found, none) == 0);
    cr_assert(!file_resolve(found, dangling));
    cr_assert(file_is_dangling(dangling) && !file_is_dangling(link) && !file_is_dangling(none));
    unlink(link);
    unlink(dangling);
}

/* Whether the page at `offset` is in the page cache; to look does not bring it there. */
static bool is_resident(int fd, off_t offset)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char is_here;
    void *mapped = mmap(NULL, page, PROT_READ, MAP_SHARED, fd, offset);
    cr_assert_neq(mapped, MAP_FAILED);
    cr_assert_eq(mincore(mapped, page, &is_here), 0);
    munmap(mapped, page);
    return is_here & 1;
}

/* The end of a file that was dropped comes to the page cache though nobody reads it. Where it
 * cannot be dropped, as in memory, there is nothing to see. */
Test(file, is_read_ahead)
{
    const off_t bytes = 128 << 10, last = bytes - (64 << 10);
    struct timespec pause = {.tv_nsec = 1000000};
    write_bytes((size_t)bytes);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    cr_assert_geq(fd, 0);
    cr_assert_eq(fdatasync(fd), 0);
    cr_assert_eq(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
    bool is_dropped = !is_resident(fd, 0) && !is_resident(fd, last);
    file_read_ahead(fd, 0, (uint64_t)bytes);
    for (int i = 0; is_dropped && i < 20000 && !is_resident(fd, last); i++)
        nanosleep(&pause, NULL);
    cr_assert(!is_dropped || is_resident(fd, last));
    file_read_ahead(fd, 1ull << 62, 1); /* never fails */
    file_read_ahead(-1, 0, 1);
    close(fd);
}

Test(file, is_cached_or_not)
{
    char byte;
    write_bytes(5000);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    cr_assert_geq(fd, 0);
    bool can_tell = preadv2(fd, &(struct iovec){&byte, 1}, 1, 0, RWF_NOWAIT) == 1;
    cr_assert_eq(file_is_cached(fd, 0), can_tell);
    cr_assert_eq(file_is_cached(fd, 4999), can_tell);
    cr_assert(!file_is_cached(fd, 5000));
    cr_assert(!file_is_cached(-1, 0));
    cr_assert_eq(fdatasync(fd), 0);
    /* A busy system may keep the page, or bring it back, for a moment. */
    bool is_wrong = true;
    for (int i = 0; i < 200 && is_wrong; i++) {
        cr_assert_eq(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
        is_wrong = !is_resident(fd, 0) && file_is_cached(fd, 0);
        if (is_wrong)
            nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    cr_assert(!is_wrong);
    close(fd);
}
