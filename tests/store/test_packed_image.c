/* Packed weights in a file: what is mapped is what was written, what the device writes stays its
 * own, and a file that is not just that is refused, whatever is wrong with it. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/disk.h"
#include "base/memory.h"
#include "store/packed_image.h"

#define PARTS 4
/* Nothing, less than a page, a chunk and more, and whole huge pages. */
static const uint64_t sizes[PARTS] = {5000, 0, ((uint64_t)17 << 20) + 4096 + 64, 4 << 20};
#define FILE_BYTES (((uint64_t)2 + 2 + 0 + 18 + 4) << 20)

static char dir[] = "/tmp/phasor-test-XXXXXX", path[128];

static void make_dir(void)
{
    cr_assert_not_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/deep/a.weights", dir);
}

static void remove_dir(void)
{
    char command[256];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    cr_assert_eq(system(command), 0);
}

TestSuite(packed_image, .init = make_dir, .fini = remove_dir);

static struct device *device_open(int thread_count)
{
    struct cpu_share share = {.thread_count = thread_count, .first_cpu = -1};
    struct device *device;
    struct error err;
    cr_assert_eq(device_cpu_create(&device, &share, &err), STATUS_OK);
    return device;
}

static unsigned char byte_of(size_t part, uint64_t at)
{
    return (unsigned char)((at * 2654435761u >> 13) + 31 * part + 1);
}

static void fill(const struct packed_part *parts)
{
    for (size_t p = 0; p < PARTS; p++) {
        for (uint64_t i = 0; i < parts[p].bytes; i++)
            ((unsigned char *)parts[p].memory)[i] = byte_of(p, i);
    }
}

static bool is_filled(const struct packed_part *parts)
{
    for (size_t p = 0; p < PARTS; p++) {
        for (uint64_t i = 0; i < parts[p].bytes; i++) {
            if (((const unsigned char *)parts[p].memory)[i] != byte_of(p, i))
                return false;
        }
    }
    return true;
}

static void parts_get(struct packed_part *parts, struct device *device)
{
    struct error err;
    for (size_t p = 0; p < PARTS; p++) {
        parts[p].bytes = sizes[p];
        cr_assert_eq(device->ops->memory_get(device, &parts[p].memory, sizes[p], "a part", &err),
                     STATUS_OK);
    }
}

static void parts_free(struct packed_part *parts, struct device *device)
{
    for (size_t p = 0; p < PARTS; p++)
        device->ops->memory_free(device, parts[p].memory);
}

static const struct packed_read_progress silent;

static struct packed_image image_of(const struct packed_part *parts)
{
    return (struct packed_image){path, "some weights", parts, PARTS};
}

/* An image, written from memory that is gone. */
static void image_make(struct device *device)
{
    struct packed_part parts[PARTS];
    struct error err;
    parts_get(parts, device);
    fill(parts);
    struct packed_image image = image_of(parts);
    cr_assert_eq(packed_image_write(&image, &silent, &err), STATUS_OK, "%s", err.message);
    parts_free(parts, device);
}

static int file_count(void)
{
    char command[256], line[32];
    snprintf(command, sizeof command, "ls -A %s/deep 2>/dev/null | wc -l", dir);
    FILE *pipe = popen(command, "r");
    cr_assert(pipe != NULL && fgets(line, sizeof line, pipe) != NULL);
    pclose(pipe);
    return atoi(line);
}

Test(packed_image, is_what_was_written)
{
    struct stat about;
    struct packed_part parts[PARTS];
    struct error err;
    for (int threads = 1; threads <= 3; threads++) {
        struct device *device = device_open(threads);
        cr_assert(packed_image_is_possible(device));
        image_make(device);
        uint64_t live = memory_counters_get().live_bytes;
        cr_assert_eq(file_count(), 1);
        cr_assert_eq(stat(path, &about), 0);
        cr_assert_eq((uint64_t)about.st_size, FILE_BYTES);
        parts_get(parts, device);
        struct packed_image image = image_of(parts);
        cr_assert_eq(packed_image_map(&image, device, &silent, &err), STATUS_OK, "%s", err.message);
        cr_assert(is_filled(parts));
        cr_assert_eq(memory_counters_get().mapped_bytes, sizes[0] + sizes[2] + sizes[3]);
        parts_free(parts, device);
        cr_assert_eq(memory_counters_get().mapped_bytes, 0);
        cr_assert_eq(memory_counters_get().live_bytes, live);
        device_destroy(device);
    }
}

/* What is mapped the system counts as free, and phasor does not. */
Test(packed_image, is_not_memory_that_is_left)
{
    struct device *device = device_open(1);
    cr_assert_gt(device->ops->memory_left(device), 0);
    memory_count_mapped((int64_t)1 << 60);
    cr_assert_eq(device->ops->memory_left(device), 0);
    memory_count_mapped(-((int64_t)1 << 60));
    cr_assert_gt(device->ops->memory_left(device), 0);
    device_destroy(device);
}

/* Two that have it mapped: what one writes neither the other nor the file sees. */
Test(packed_image, pages_that_are_written_are_the_device_s_own)
{
    struct packed_part one[PARTS], other[PARTS];
    struct error err;
    struct device *device = device_open(2);
    image_make(device);
    parts_get(one, device);
    parts_get(other, device);
    struct packed_image of_one = image_of(one), of_other = image_of(other);
    cr_assert_eq(packed_image_map(&of_one, device, &silent, &err), STATUS_OK);
    cr_assert_eq(packed_image_map(&of_other, device, &silent, &err), STATUS_OK);
    for (size_t p = 0; p < PARTS; p++)
        memset(one[p].memory, 0, one[p].bytes);
    cr_assert(is_filled(other));
    cr_assert_eq(packed_image_map(&of_one, device, &silent, &err), STATUS_OK);
    cr_assert(is_filled(one));
    parts_free(one, device);
    parts_free(other, device);
    device_destroy(device);
}

/* It is refused, and the memory is as good as before, and no file's. */
static void check_refused(struct device *device, enum status expected, const char *label)
{
    struct packed_part parts[PARTS];
    struct error err;
    parts_get(parts, device);
    struct packed_image image = image_of(parts);
    cr_assert_eq(packed_image_map(&image, device, &silent, &err), expected, "%s", label);
    cr_assert_not_null(strstr(err.message, path), "%s: %s", label, err.message);
    cr_assert_eq(memory_counters_get().mapped_bytes, 0, "%s", label);
    for (size_t p = 0; p < PARTS; p++) {
        if (parts[p].bytes > 0)
            memset((char *)parts[p].memory + parts[p].bytes - 1, 1, 1);
    }
    parts_free(parts, device);
}

static void byte_flip(off_t at)
{
    unsigned char byte;
    int fd = open(path, O_RDWR);
    cr_assert(fd >= 0 && pread(fd, &byte, 1, at) == 1);
    byte ^= 0x10;
    cr_assert(pwrite(fd, &byte, 1, at) == 1 && close(fd) == 0);
}

Test(packed_image, with_one_wrong_byte_is_refused)
{
    struct device *device = device_open(2);
    image_make(device);
    /* The header, the sums behind it, and both ends of each part. */
    static const off_t ends[] = {2 << 20,           (2 << 20) + 4999, 4 << 20,       (10 << 20) + 5,
                                 (21 << 20) + 4159, 22 << 20,         (26 << 20) - 1};
    off_t places[256];
    int count = 0;
    for (off_t at = 0; at < 40 + PACKED_IMAGE_KEY_BYTES + 16 + 5 * 8; at += at < 64 ? 1 : 29)
        places[count++] = at;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        places[count++] = ends[i];
    for (int i = 0; i < count; i++) {
        off_t at = places[i];
        char label[32];
        snprintf(label, sizeof label, "byte %lld", (long long)at);
        byte_flip(at);
        check_refused(device, STATUS_FORMAT, label);
        byte_flip(at);
    }
    struct packed_part parts[PARTS];
    struct error err;
    parts_get(parts, device);
    struct packed_image image = image_of(parts);
    cr_assert_eq(packed_image_map(&image, device, &silent, &err), STATUS_OK);
    parts_free(parts, device);
    device_destroy(device);
}

Test(packed_image, a_file_of_another_length_is_refused)
{
    static const off_t lengths[] = {
        0, 7, 100, 4096, FILE_BYTES - 1, FILE_BYTES + 1, FILE_BYTES / 2};
    struct device *device = device_open(2);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        char label[32];
        snprintf(label, sizeof label, "%lld bytes", (long long)lengths[i]);
        image_make(device);
        cr_assert_eq(truncate(path, lengths[i]), 0);
        check_refused(device, STATUS_FORMAT, label);
    }
    device_destroy(device);
}

Test(packed_image, what_is_no_file_of_this_key_is_refused)
{
    struct packed_part parts[PARTS];
    struct error err;
    struct device *device = device_open(2);
    check_refused(device, STATUS_NOT_FOUND, "no file");
    image_make(device);
    parts_get(parts, device);
    struct packed_image image = image_of(parts);
    image.key = "some weight";
    cr_assert_eq(packed_image_map(&image, device, &silent, &err), STATUS_FORMAT);
    image = image_of(parts);
    parts[2].bytes -= 64; /* the file would be as long */
    cr_assert_eq(packed_image_map(&image, device, &silent, &err), STATUS_FORMAT);
    parts[2].bytes += 64;
    parts_free(parts, device);
    cr_assert_eq(unlink(path), 0);
    cr_assert_eq(mkdir(path, 0700), 0);
    check_refused(device, STATUS_FORMAT, "a folder");
    device_destroy(device);
}

/* ---- Progress, and who stops -------------------------------------------------------------------
 */

struct seen {
    atomic_uint_fast64_t bytes, calls;
    uint64_t stop_at; /* this call; 0: none */
};

static enum status see(void *context, uint64_t bytes, struct error *err)
{
    struct seen *seen = context;
    atomic_fetch_add(&seen->bytes, bytes);
    return atomic_fetch_add(&seen->calls, 1) + 1 == seen->stop_at
               ? error_set(err, STATUS_CANCELLED, "stop")
               : STATUS_OK;
}

Test(packed_image, tells_what_has_come_and_may_be_stopped)
{
    struct packed_part parts[PARTS];
    struct error err;
    struct device *device = device_open(2);
    uint64_t all = sizes[0] + sizes[1] + sizes[2] + sizes[3];
    parts_get(parts, device);
    fill(parts);
    struct packed_image image = image_of(parts);
    for (uint64_t stop_at = 1; stop_at <= 6; stop_at++) {
        struct seen seen = {.stop_at = stop_at};
        struct packed_read_progress report = {.report = see, .context = &seen};
        enum status status = packed_image_write(&image, &report, &err);
        cr_assert_eq(status, stop_at < 6 ? STATUS_CANCELLED : STATUS_OK);
        cr_assert_eq(file_count(), stop_at < 6 ? 0 : 1);
        cr_assert(status != STATUS_OK || seen.bytes == all);
    }
    for (uint64_t stop_at = 1; stop_at <= 6; stop_at++) {
        struct seen seen = {.stop_at = stop_at};
        struct packed_read_progress report = {.report = see, .context = &seen};
        enum status status = packed_image_map(&image, device, &report, &err);
        cr_assert_eq(status, stop_at < 6 ? STATUS_CANCELLED : STATUS_OK);
        cr_assert(status != STATUS_OK || seen.bytes == all);
        if (status != STATUS_OK)
            fill(parts);
        cr_assert(is_filled(parts));
    }
    parts_free(parts, device);
    device_destroy(device);
}

/* ---- Failures ---------------------------------------------------------------------------------
 */

/* The n-th operation on the disk fails, or a write is cut to a part of it. */
struct breaking {
    int count, fail_at, cut_at;
};

static int break_before(void *context, enum disk_op op, size_t *length)
{
    struct breaking *breaking = context;
    int n = ++breaking->count;
    if (op == DISK_WRITE && n == breaking->cut_at)
        *length = *length / 2 + 1;
    return n == breaking->fail_at ? ENOSPC : 0;
}

static void break_after(void *context, enum disk_op op)
{
    (void)context, (void)op;
}

Test(packed_image, that_cannot_be_written_leaves_nothing)
{
    struct packed_part parts[PARTS];
    struct error err;
    struct device *device = device_open(1);
    parts_get(parts, device);
    fill(parts);
    struct packed_image image = image_of(parts);
    struct breaking breaking = {0};
    const struct disk_hooks hooks = {break_before, break_after, &breaking};
    disk_hooks_set(&hooks);
    int all = 0;
    for (int n = 1;; n++) {
        breaking = (struct breaking){.fail_at = n};
        enum status status = packed_image_write(&image, &silent, &err);
        if (status == STATUS_OK)
            break;
        cr_assert_eq(status, STATUS_IO, "operation %d", n);
        cr_assert_not_null(strstr(err.message, path), "%s", err.message);
        /* Behind the rename it has its name. */
        cr_assert_eq(file_count(), 0, "operation %d", n);
        all = n;
    }
    cr_assert_geq(all, 10); /* a length, 5 chunks, sums, header, sync, name */
    for (int n = 1; n <= all; n++) {
        breaking = (struct breaking){.cut_at = n};
        cr_assert_eq(packed_image_write(&image, &silent, &err), STATUS_OK);
        for (size_t p = 0; p < PARTS; p++)
            memset(parts[p].memory, 0, parts[p].bytes);
        disk_hooks_set(NULL);
        cr_assert_eq(packed_image_map(&image, device, &silent, &err), STATUS_OK, "%s", err.message);
        cr_assert(is_filled(parts));
        disk_hooks_set(&hooks);
    }
    disk_hooks_set(NULL);
    cr_assert_eq(file_count(), 1);
    image.path = "/dev/null/a.weights";
    cr_assert_neq(packed_image_write(&image, &silent, &err), STATUS_OK);
    cr_assert_not_null(strstr(err.message, "/dev/null"), "%s", err.message);
    parts_free(parts, device);
    device_destroy(device);
}

/* The folder is made, and no disk has room for all bytes that there can be. */
Test(packed_image, wants_room_on_the_disk)
{
    struct error err;
    cr_assert_eq(packed_image_room(path, 1, &err), STATUS_OK, "%s", err.message);
    cr_assert_eq(packed_image_room(path, UINT64_MAX, &err), STATUS_IO);
    cr_assert_not_null(strstr(err.message, dir), "%s", err.message);
    cr_assert_not_null(strstr(err.message, "PHASOR_CACHE"), "%s", err.message);
    cr_assert_eq(packed_image_room("/dev/null/deep/a.weights", 1, &err), STATUS_IO);
}

/* Another answer of the device: mapping itself fails. */
static enum status map_nothing(struct device *device, void *memory, size_t bytes, int fd,
                               uint64_t offset, struct error *err)
{
    (void)device, (void)memory, (void)bytes, (void)offset;
    return fd < 0 ? STATUS_OK : error_set(err, STATUS_NO_MEMORY, "%s: no maps left", path);
}

static enum status map_no_more(struct device *device, void *memory, size_t bytes, int fd,
                               uint64_t offset, struct error *err)
{
    (void)device, (void)memory, (void)bytes, (void)fd, (void)offset;
    return error_set(err, STATUS_NO_MEMORY, "no maps left");
}

Test(packed_image, that_cannot_be_mapped_is_none)
{
    struct packed_part parts[PARTS];
    struct error err;
    struct device *device = device_open(1);
    image_make(device);
    struct device_ops ops = *device->ops;
    const struct device_ops *own = device->ops;
    device->ops = &ops;
    ops.memory_map = map_nothing;
    check_refused(device, STATUS_IO, "no map");
    ops.memory_map = map_no_more;
    parts_get(parts, device);
    struct packed_image image = image_of(parts);
    cr_assert_eq(packed_image_map(&image, device, &silent, &err), STATUS_NO_MEMORY);
    parts_free(parts, device);
    device->ops = own;
    device_destroy(device);
}

Test(packed_image, every_failed_allocation_leaves_it_as_it_was)
{
    struct packed_part parts[PARTS];
    struct error err;
    struct device *device = device_open(2);
    image_make(device);
    parts_get(parts, device);
    struct packed_image image = image_of(parts);
    uint64_t live = memory_counters_get().live_count;
    int failed = 0;
    for (uint64_t n = 1;; n++, failed++) {
        memory_fail_at(n, 0);
        enum status status = packed_image_map(&image, device, &silent, &err);
        memory_fail_at(0, 0);
        cr_assert_eq(memory_counters_get().live_count, live);
        if (status == STATUS_OK)
            break;
        cr_assert_eq(status, STATUS_NO_MEMORY);
        fill(parts);
    }
    cr_assert_geq(failed, 2);
    cr_assert(is_filled(parts));
    parts_free(parts, device);
    device_destroy(device);
}

Test(packed_image, lies_in_the_cache_by_its_key)
{
    char *a, *b, expected[160];
    struct error err;
    cr_assert_eq(setenv("PHASOR_CACHE", dir, 1), 0);
    cr_assert_eq(packed_image_path(&a, "one", &err), STATUS_OK);
    cr_assert_eq(packed_image_path(&b, "two", &err), STATUS_OK);
    snprintf(expected, sizeof expected, "%s/packed/", dir);
    cr_assert_eq(strncmp(a, expected, strlen(expected)), 0, "%s", a);
    cr_assert_str_neq(a, b);
    memory_free(a);
    memory_free(b);
}
