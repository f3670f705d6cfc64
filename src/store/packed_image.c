#define _GNU_SOURCE
#include "store/packed_image.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/cache_folder.h"
#include "base/disk.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/new_file.h"
#include "model/fingerprint.h"

/* Parts begin at multiples of it, so that a mapping can be of huge pages where the file's system
 * keeps such. What is between is a hole. The header and the chunks' sums are before the first. */
#define PART_ALIGNMENT ((uint64_t)2 << 20)

/* What a worker has the system bring to memory, and checks, at a time. Nobody asks the disk ahead
 * of it, as a load from a checkpoint does: pages that posix_fadvise has read are small ones, while
 * the system's own reading ahead of a mapping makes huge ones, where it has such, and is as fast.
 */
#define CHUNK_BYTES ((uint64_t)8 << 20)

/* Of the disk, beside the file, for others. */
#define ROOM_LEFT ((uint64_t)256 << 20)

/* The first bytes of the file; then a sum for each chunk, and zeros up to the first part. */
struct image_header {
    char magic[8];
    uint32_t byte_order; /* as it reads on a machine of the order of the numbers */
    uint32_t version;
    uint64_t file_bytes, part_count, parts_checksum; /* of how large each is */
    char key[PACKED_IMAGE_KEY_BYTES];                /* zeros behind it */
    uint64_t sums_checksum;                          /* XXH3 of the chunks' sums */
    uint64_t checksum;                               /* XXH3 of all before it */
};

#define MAGIC         "PHASORPW"
#define BYTE_ORDER_OK 0x01020304u
#define VERSION       1 /* other numbers, or the same packed in another way, are another version */

#define CHUNKS_MAX ((PART_ALIGNMENT - sizeof(struct image_header)) / sizeof(uint64_t)) /* 2 TiB */

enum status packed_image_path(char **out, const char *key, struct error *err)
{
    struct text path = {0};
    char digits[FINGERPRINT_DIGITS + 1];
    XXH128_hash_t hash = XXH3_128bits(key, strlen(key));
    fingerprint_format(digits, &(struct fingerprint){hash.high64, hash.low64});
    TRY(cache_folder_append(&path, "packed weights", err));
    text_append_format(&path, "/packed/%s.weights", digits);
    enum status status = text_check(&path, "the path of packed weights", err);
    if (status == STATUS_OK)
        *out = path.bytes;
    else
        text_deinit(&path);
    return status;
}

bool packed_image_is_possible(const struct device *device)
{
    return device->ops->memory_map != NULL;
}

/* ---- The form ------------------------------------------------------------------------------- */

static uint64_t part_span(const struct packed_part *part)
{
    return (part->bytes + PART_ALIGNMENT - 1) / PART_ALIGNMENT * PART_ALIGNMENT;
}

static uint64_t chunks_of(const struct packed_part *part)
{
    return (part->bytes + CHUNK_BYTES - 1) / CHUNK_BYTES;
}

static uint64_t chunk_count(const struct packed_image *image)
{
    uint64_t count = 0;
    for (size_t i = 0; i < image->part_count; i++)
        count += chunks_of(&image->parts[i]);
    return count;
}

struct chunk {
    char *memory;
    uint64_t offset, bytes; /* in the file */
};

/* Chunks are counted through all parts; false behind the last. */
static bool chunk_find(const struct packed_image *image, uint64_t number, struct chunk *out)
{
    uint64_t begin = PART_ALIGNMENT;
    for (size_t i = 0; i < image->part_count; i++) {
        const struct packed_part *part = &image->parts[i];
        uint64_t count = chunks_of(part), at = number * CHUNK_BYTES;
        if (number < count) {
            uint64_t left = part->bytes - at;
            *out = (struct chunk){(char *)part->memory + at, begin + at,
                                  left < CHUNK_BYTES ? left : CHUNK_BYTES};
            return true;
        }
        number -= count;
        begin += part_span(part);
    }
    return false;
}

/* Of the image whose chunks have these sums. */
static struct image_header header_of(const struct packed_image *image, const uint64_t *sums)
{
    struct image_header header;
    ASSERT(strlen(image->key) < PACKED_IMAGE_KEY_BYTES);
    memset(&header, 0, sizeof header);
    memcpy(header.magic, MAGIC, sizeof header.magic);
    header.byte_order = BYTE_ORDER_OK;
    header.version = VERSION;
    header.file_bytes = PART_ALIGNMENT;
    for (size_t i = 0; i < image->part_count; i++) {
        const uint64_t *bytes = &image->parts[i].bytes;
        header.parts_checksum = XXH3_64bits_withSeed(bytes, sizeof *bytes, header.parts_checksum);
        header.file_bytes += part_span(&image->parts[i]);
    }
    header.part_count = image->part_count;
    memcpy(header.key, image->key, strlen(image->key));
    header.sums_checksum = XXH3_64bits(sums, (size_t)chunk_count(image) * sizeof *sums);
    header.checksum = XXH3_64bits(&header, offsetof(struct image_header, checksum));
    return header;
}

static enum status sums_get(uint64_t **out, const struct packed_image *image, struct error *err)
{
    uint64_t count = chunk_count(image);
    if (count > CHUNKS_MAX)
        return error_set(err, STATUS_LIMIT, "%s: %llu chunks of weights are more than %llu",
                         image->path, (unsigned long long)count, (unsigned long long)CHUNKS_MAX);
    return memory_get((void **)out, (size_t)count, sizeof **out, "the sums of packed weights", err);
}

/* ---- Mapping -------------------------------------------------------------------------------- */

static enum status unusable(const struct packed_image *image, const char *why, struct error *err)
{
    return error_set(err, STATUS_FORMAT, "%s: no packed weights that can be used: %s", image->path,
                     why);
}

/* A header is as it should be or of no use: nothing in it is gone by but the sums. */
static enum status header_check(const struct packed_image *image, int fd, uint64_t *sums,
                                struct error *err)
{
    struct image_header found;
    struct stat about;
    if (fstat(fd, &about) != 0)
        return error_set_errno(err, errno, "cannot look at %s", image->path);
    if (!S_ISREG(about.st_mode) || (uint64_t)about.st_size < PART_ALIGNMENT)
        return unusable(image, "it is no file, or too short for a header", err);
    TRY(file_read_at(fd, image->path, 0, &found, sizeof found, err));
    if (memcmp(found.magic, MAGIC, sizeof found.magic) != 0 || found.byte_order != BYTE_ORDER_OK)
        return unusable(image, "it has not their header", err);
    if (found.version != VERSION)
        return unusable(image, "they are of another version of phasor", err);
    TRY(file_read_at(fd, image->path, sizeof found, sums, (size_t)chunk_count(image) * sizeof *sums,
                     err));
    struct image_header expected = header_of(image, sums);
    if (memcmp(&found, &expected, sizeof found) != 0)
        return unusable(image, "its header is damaged, or of other weights", err);
    if ((uint64_t)about.st_size != expected.file_bytes)
        return unusable(image, "it is not as long as its header says", err);
    return STATUS_OK;
}

struct mapping {
    const struct packed_image *image;
    const struct packed_read_progress *report;
    const uint64_t *sums;
    atomic_uint_fast64_t next; /* chunk */
    atomic_int failed;
    struct mapping_worker {
        enum status status;
        struct error error;
    } * workers;
};

static enum status chunk_check(struct mapping *mapping, uint64_t number, const struct chunk *chunk,
                               struct error *err)
{
    if (!memory_pages_fetch(chunk->memory, chunk->bytes))
        return error_set(err, STATUS_IO, "%s: cannot read the %llu bytes at %llu",
                         mapping->image->path, (unsigned long long)chunk->bytes,
                         (unsigned long long)chunk->offset);
    if (XXH3_64bits(chunk->memory, (size_t)chunk->bytes) != mapping->sums[number])
        return error_set(
            err, STATUS_FORMAT,
            "%s: packed weights are damaged: the %llu bytes at %llu have not their sum",
            mapping->image->path, (unsigned long long)chunk->bytes,
            (unsigned long long)chunk->offset);
    if (mapping->report->report == NULL)
        return STATUS_OK;
    return mapping->report->report(mapping->report->context, chunk->bytes, err);
}

static void check_work(void *context, int index)
{
    struct mapping *mapping = context;
    struct mapping_worker *worker = &mapping->workers[index];
    struct chunk chunk;
    while (!atomic_load(&mapping->failed)) {
        uint64_t number = atomic_fetch_add(&mapping->next, 1);
        if (!chunk_find(mapping->image, number, &chunk))
            return;
        worker->status = chunk_check(mapping, number, &chunk, &worker->error);
        if (worker->status != STATUS_OK)
            atomic_store(&mapping->failed, 1);
    }
}

static enum status check_all(struct mapping *mapping, struct device *device, struct error *err)
{
    enum status status = STATUS_OK;
    int worker_count = device->ops->host_workers(device);
    TRY(memory_get((void **)&mapping->workers, (size_t)worker_count, sizeof *mapping->workers,
                   "the loading workers", err));
    device->ops->host_run(device, check_work, mapping);
    for (int w = 0; w < worker_count && status == STATUS_OK; w++) {
        status = mapping->workers[w].status;
        if (status != STATUS_OK && err != NULL)
            *err = mapping->workers[w].error;
    }
    memory_free(mapping->workers);
    return status;
}

/* fd -1: memory as it was before. */
static enum status parts_map(const struct packed_image *image, struct device *device, int fd,
                             struct error *err)
{
    uint64_t offset = PART_ALIGNMENT;
    for (size_t i = 0; i < image->part_count; i++) {
        const struct packed_part *part = &image->parts[i];
        if (part->bytes > 0)
            TRY(device->ops->memory_map(device, part->memory, part->bytes, fd, offset, err));
        offset += part_span(part);
    }
    return STATUS_OK;
}

/* Where it fails the parts are memory of the device's own again: a page of a file that cannot be
 * read would end the process. */
static enum status map_and_check(struct mapping *mapping, struct device *device, int fd,
                                 struct error *err)
{
    const struct packed_image *image = mapping->image;
    enum status status = parts_map(image, device, fd, err);
    if (status != STATUS_OK)
        status = STATUS_IO; /* whatever it was, the weights can be packed without */
    else
        status = check_all(mapping, device, err);
    if (status != STATUS_OK && parts_map(image, device, -1, NULL) != STATUS_OK)
        return error_set(
            err, STATUS_NO_MEMORY,
            "%s: the system has no maps left to put its memory back (vm.max_map_count)",
            image->path);
    return status;
}

enum status packed_image_map(const struct packed_image *image, struct device *device,
                             const struct packed_read_progress *report, struct error *err)
{
    struct mapping mapping = {.image = image, .report = report};
    uint64_t *sums;
    ASSERT(packed_image_is_possible(device));
    int fd = open(image->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not hang */
    if (fd < 0)
        return errno == ENOENT ? error_set(err, STATUS_NOT_FOUND, "%s is not there", image->path)
                               : error_set_errno(err, errno, "cannot open %s", image->path);
    enum status status = sums_get(&sums, image, err);
    if (status == STATUS_OK) {
        mapping.sums = sums;
        status = header_check(image, fd, sums, err);
        if (status == STATUS_OK)
            status = map_and_check(&mapping, device, fd, err);
        memory_free(sums);
    }
    close(fd); /* the mapping keeps the file */
    return status;
}

/* ---- Writing -------------------------------------------------------------------------------- */

static enum status put(const struct packed_image *image, int fd, const void *bytes, uint64_t length,
                       uint64_t offset, struct error *err)
{
    for (uint64_t done = 0; done < length;) {
        ssize_t count = disk_write_at(fd, (const char *)bytes + done, (size_t)(length - done),
                                      (off_t)(offset + done));
        if (count <= 0)
            return error_set_errno(err, count < 0 ? errno : EIO, "cannot write %s", image->path);
        done += (uint64_t)count;
    }
    return STATUS_OK;
}

/* A limit of the process is not met: that would end it. */
static enum status limit_check(const struct packed_image *image, uint64_t bytes, struct error *err)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur >= bytes)
        return STATUS_OK;
    return error_set(err, STATUS_IO,
                     "cannot write %s: %llu MiB are more than a file may have (ulimit -f)",
                     image->path, (unsigned long long)(bytes >> 20));
}

/* The header last: before that it is no image. */
static enum status put_all(const struct packed_image *image, int fd, uint64_t *sums,
                           const struct packed_read_progress *report, struct error *err)
{
    uint64_t count = chunk_count(image), file_bytes = header_of(image, sums).file_bytes;
    struct chunk chunk;
    TRY(limit_check(image, file_bytes, err));
    if (disk_truncate(fd, (off_t)file_bytes) != 0)
        return error_set_errno(err, errno, "cannot write %s", image->path);
    for (uint64_t i = 0; chunk_find(image, i, &chunk); i++) {
        sums[i] = XXH3_64bits(chunk.memory, (size_t)chunk.bytes);
        TRY(put(image, fd, chunk.memory, chunk.bytes, chunk.offset, err));
        if (report->report != NULL)
            TRY(report->report(report->context, chunk.bytes, err));
    }
    struct image_header header = header_of(image, sums);
    TRY(put(image, fd, sums, count * sizeof *sums, sizeof header, err));
    TRY(put(image, fd, &header, sizeof header, 0, err));
    if (disk_sync(fd) != 0)
        return error_set_errno(err, errno, "cannot write %s", image->path);
    return STATUS_OK;
}

/* False with errno. */
static bool folder_of(char out[PATH_MAX], const char *path)
{
    const char *slash = strrchr(path, '/');
    errno = ENAMETOOLONG;
    return slash != NULL && snprintf(out, PATH_MAX, "%.*s", (int)(slash - path), path) < PATH_MAX;
}

enum status packed_image_room(const char *path, uint64_t bytes, struct error *err)
{
    char folder[PATH_MAX];
    struct statvfs disk;
    TRY(cache_folder_make_above(path, err));
    if (!folder_of(folder, path) || statvfs(folder, &disk) != 0 || disk.f_blocks == 0)
        return STATUS_OK; /* it does not tell; writing will */
    uint64_t left = (uint64_t)disk.f_bavail * disk.f_frsize;
    if (left >= ROOM_LEFT && bytes <= left - ROOM_LEFT)
        return STATUS_OK;
    return error_set(
        err, STATUS_IO,
        "the disk of %s has %llu MiB left, and the packed weights would take %llu MiB; "
        "delete what is not used there, or set PHASOR_CACHE to a folder elsewhere",
        folder, (unsigned long long)(left >> 20), (unsigned long long)(bytes >> 20));
}

/* A file that has no name, so that nothing of it stays when the process is killed; where the
 * folder's system knows no such, one that has. */
struct nameless {
    int fd;
    char name[PATH_MAX]; /* "": none */
};

static bool nameless_open(struct nameless *out, const char *path)
{
    char folder[PATH_MAX];
    *out->name = 0;
    out->fd = -1;
    if (!folder_of(folder, path))
        return false;
    out->fd = open(folder, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
    if (out->fd < 0)
        out->fd = new_file_open(out->name, path);
    return out->fd >= 0;
}

/* Gives it its first name, beside `path`. */
static bool nameless_name(struct nameless *file, const char *path)
{
    char self[64];
    if (*file->name != 0)
        return true;
    snprintf(self, sizeof self, "/proc/self/fd/%d", file->fd);
    int fd = new_file_open(file->name, path); /* a name that is nobody's */
    if (fd < 0)
        return false;
    close(fd);
    return unlink(file->name) == 0 &&
           linkat(AT_FDCWD, self, AT_FDCWD, file->name, AT_SYMLINK_FOLLOW) == 0;
}

enum status packed_image_write(const struct packed_image *image,
                               const struct packed_read_progress *report, struct error *err)
{
    struct nameless file;
    uint64_t *sums;
    TRY(sums_get(&sums, image, err));
    enum status status = cache_folder_make_above(image->path, err);
    if (status == STATUS_OK && !nameless_open(&file, image->path))
        status = error_set_errno(err, errno, "cannot create a file beside %s", image->path);
    if (status != STATUS_OK)
        goto done;
    status = put_all(image, file.fd, sums, report, err);
    if (status == STATUS_OK &&
        (!nameless_name(&file, image->path) || disk_rename(file.name, image->path) != 0))
        status = error_set_errno(err, errno, "cannot give %s its name", image->path);
    close(file.fd); /* what it holds is on the disk */
    if (status == STATUS_OK)
        (void)disk_sync_folder_of(image->path); /* a name that is lost is an image to write again */
    else if (*file.name != 0)
        unlink(file.name);

done:
    memory_free(sums);
    return status;
}
