/* The file of a recording; docs/recording-format.md is the same in words. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_STATIC_LINKING_ONLY /* a state on the stack */
#include <xxhash.h>

#include "base/checked.h"
#include "base/disk.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/new_file.h"
#include "replay/recording.h"

#define VERSION        1
#define FILE_BYTES_MAX ((size_t)1 << 32)

struct header {
    char magic[8];
    uint32_t version;
    uint32_t rank_count;
    double wall_seconds;
    uint64_t file_bytes;
    uint64_t about_bytes;
    uint64_t text_bytes; /* of all strings, stages and tags, each with a NUL */
    uint32_t string_count, stage_count, tag_count, lane_count, node_count, need_count,
        collective_count, group_count, count_count, reserved;
};
#define AT(type, member, offset)                                                                   \
    _Static_assert(offsetof(struct type, member) == (offset), "docs/recording-format.md")
AT(header, rank_count, 12);
AT(header, wall_seconds, 16);
AT(header, string_count, 48);
AT(header, count_count, 80);
_Static_assert(sizeof(struct header) == 88, "docs/recording-format.md");
AT(recording_lane, rank, 4);
AT(recording_lane, count, 16);
_Static_assert(sizeof(struct recording_lane) == 20, "docs/recording-format.md");
AT(recording_node, name, 24);
AT(recording_node, layer, 36);
AT(recording_node, kind, 40);
AT(recording_node, threads, 44);
AT(recording_node, dims, 48);
AT(recording_node, collective, 68);
_Static_assert(sizeof(struct recording_node) == 72, "docs/recording-format.md");
AT(recording_collective, op, 8);
AT(recording_collective, count_first, 12);
_Static_assert(sizeof(struct recording_collective) == 16, "docs/recording-format.md");
_Static_assert(sizeof(struct recording_group) == 68, "docs/recording-format.md");
#undef AT
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "structs are the file's bytes");

/* An array of the recording as it lies in the file, where zeros fill it up to 8 bytes. */
struct section {
    void **array;
    uint32_t count;
    size_t size; /* of one */
};
#define SECTIONS 6

static void list_sections(struct section out[SECTIONS], struct recording *recording)
{
    const struct section sections[SECTIONS] = {
        {(void **)&recording->lanes, recording->lane_count, sizeof *recording->lanes},
        {(void **)&recording->nodes, recording->node_count, sizeof *recording->nodes},
        {(void **)&recording->needs, recording->need_count, sizeof *recording->needs},
        {(void **)&recording->collectives, recording->collective_count,
         sizeof *recording->collectives},
        {(void **)&recording->groups, recording->group_count, sizeof *recording->groups},
        {(void **)&recording->counts, recording->count_count, sizeof *recording->counts},
    };
    memcpy(out, sections, sizeof sections);
}

/* The three lists of names. */
struct names {
    char ***list;
    uint32_t count;
};
#define NAME_LISTS 3

static void list_names(struct names out[NAME_LISTS], struct recording *recording)
{
    out[0] = (struct names){&recording->strings, recording->string_count};
    out[1] = (struct names){&recording->stage_names, recording->stage_count};
    out[2] = (struct names){&recording->tag_names, recording->tag_count};
}

static uint64_t padded(uint64_t bytes)
{
    return (bytes + 7) / 8 * 8;
}

/* ---- Writing --------------------------------------------------------------------------------- */

struct writer {
    int fd;
    const char *path;
    uint64_t written;
    XXH3_state_t hash;
    struct error *err;
};

static enum status put(struct writer *writer, const void *bytes, size_t length)
{
    const char *at = bytes;
    XXH3_64bits_update(&writer->hash, bytes, length);
    writer->written += length;
    while (length > 0) {
        ssize_t done = disk_write(writer->fd, at, length);
        if (done < 0)
            return error_set_errno(writer->err, errno, "cannot write %s", writer->path);
        at += done;
        length -= (size_t)done;
    }
    return STATUS_OK;
}

static enum status pad(struct writer *writer)
{
    static const char zeros[8];
    return put(writer, zeros, (size_t)(padded(writer->written) - writer->written));
}

static struct header make_header(struct recording *recording)
{
    struct header header = {.version = VERSION,
                            .rank_count = (uint32_t)recording->rank_count,
                            .wall_seconds = recording->wall_seconds,
                            .about_bytes = strlen(recording->about),
                            .string_count = recording->string_count,
                            .stage_count = recording->stage_count,
                            .tag_count = recording->tag_count,
                            .lane_count = recording->lane_count,
                            .node_count = recording->node_count,
                            .need_count = recording->need_count,
                            .collective_count = recording->collective_count,
                            .group_count = recording->group_count,
                            .count_count = recording->count_count};
    struct section sections[SECTIONS];
    struct names names[NAME_LISTS];
    memcpy(header.magic, RECORDING_MAGIC, sizeof header.magic);
    list_sections(sections, recording);
    list_names(names, recording);
    for (int n = 0; n < NAME_LISTS; n++) {
        for (uint32_t i = 0; i < names[n].count; i++)
            header.text_bytes += strlen((*names[n].list)[i]) + 1;
    }
    header.file_bytes = sizeof header + padded(header.about_bytes) + padded(header.text_bytes) + 8;
    for (int s = 0; s < SECTIONS; s++)
        header.file_bytes += padded((uint64_t)sections[s].count * sections[s].size);
    return header;
}

static enum status put_all(struct writer *writer, struct recording *recording)
{
    struct header header = make_header(recording);
    struct section sections[SECTIONS];
    struct names names[NAME_LISTS];
    list_sections(sections, recording);
    list_names(names, recording);
    if (header.file_bytes > FILE_BYTES_MAX)
        return error_set(
            writer->err, STATUS_LIMIT,
            "the recording would have %llu bytes, and files have at most %zu; record a "
            "shorter run",
            (unsigned long long)header.file_bytes, FILE_BYTES_MAX);
    TRY(put(writer, &header, sizeof header));
    TRY(put(writer, recording->about, (size_t)header.about_bytes));
    TRY(pad(writer));
    for (int n = 0; n < NAME_LISTS; n++) {
        for (uint32_t i = 0; i < names[n].count; i++)
            TRY(put(writer, (*names[n].list)[i], strlen((*names[n].list)[i]) + 1));
    }
    TRY(pad(writer));
    for (int s = 0; s < SECTIONS; s++) {
        TRY(put(writer, *sections[s].array, sections[s].count * sections[s].size));
        TRY(pad(writer));
    }
    uint64_t checksum = XXH3_64bits_digest(&writer->hash);
    return put(writer, &checksum, sizeof checksum);
}

static enum status write_file(int fd, const struct recording *recording, const char *path,
                              struct error *err)
{
    struct writer writer = {.fd = fd, .path = path, .err = err};
    struct recording copy = *recording; /* the lists are not const */
    XXH3_64bits_reset(&writer.hash);
    return put_all(&writer, &copy);
}

/* A device would become a file if it were replaced. */
static bool is_device(const char *path)
{
    struct stat about;
    return stat(path, &about) == 0 && (S_ISCHR(about.st_mode) || S_ISBLK(about.st_mode));
}

static enum status write_in_place(const struct recording *recording, const char *path,
                                  struct error *err)
{
    int fd = open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0)
        return error_set_errno(err, errno, "cannot write %s", path);
    enum status status = write_file(fd, recording, path, err);
    if (close(fd) != 0 && status == STATUS_OK)
        status = error_set_errno(err, errno, "cannot write %s", path);
    return status;
}

enum status recording_write(const struct recording *recording, const char *path, struct error *err)
{
    char target[PATH_MAX], name[PATH_MAX];
    TRY(recording_check(recording, path, err));
    if (is_device(path))
        return write_in_place(recording, path, err);
    if (!file_resolve(target, path))
        return error_set_errno(err, errno, "cannot write %s", path);
    int fd = new_file_open(name, target);
    if (fd < 0)
        return error_set_errno(err, errno, "cannot make a file beside %s", target);
    enum status status = write_file(fd, recording, name, err);
    if (status == STATUS_OK && disk_sync(fd) != 0)
        status = error_set_errno(err, errno, "cannot bring %s to the disk", name);
    if (close(fd) != 0 && status == STATUS_OK)
        status = error_set_errno(err, errno, "cannot write %s", name);
    if (status == STATUS_OK && disk_rename(name, target) != 0)
        status = error_set_errno(err, errno, "cannot rename %s to %s", name, target);
    if (status != STATUS_OK)
        unlink(name);
    return status;
}

/* ---- Reading --------------------------------------------------------------------------------- */

struct reader {
    const char *at, *path;
    struct error *err;
};

/* Takes `bytes`, and what fills them up: check_size has seen that they are there. */
static const char *take(struct reader *reader, uint64_t bytes)
{
    const char *at = reader->at;
    reader->at += padded(bytes);
    return at;
}

static enum status check_header(const struct header *header, size_t length, const char *path,
                                struct error *err)
{
    if (header->version != VERSION)
        return error_set(err, STATUS_UNSUPPORTED,
                         "%s is a recording of version %u; this phasor reads version %d", path,
                         header->version, VERSION);
    if (header->file_bytes != length)
        return error_set(err, STATUS_FORMAT,
                         "%s has %zu bytes where its header says %llu: it was cut or is damaged",
                         path, length, (unsigned long long)header->file_bytes);
    return STATUS_OK;
}

/* That the sections fill the file. The lengths of texts are those of the file at most. */
static enum status check_size(const struct header *header, size_t length, const char *path,
                              struct error *err)
{
    struct recording counts = {.lane_count = header->lane_count,
                               .node_count = header->node_count,
                               .need_count = header->need_count,
                               .collective_count = header->collective_count,
                               .group_count = header->group_count,
                               .count_count = header->count_count};
    struct section sections[SECTIONS];
    uint64_t bytes = sizeof *header + sizeof(uint64_t);
    list_sections(sections, &counts);
    if (header->about_bytes <= length && header->text_bytes <= length)
        bytes += padded(header->about_bytes) + padded(header->text_bytes);
    for (int s = 0; s < SECTIONS; s++)
        bytes += padded((uint64_t)sections[s].count * sections[s].size);
    if (bytes != length || header->about_bytes > length || header->text_bytes > length)
        return error_set(err, STATUS_FORMAT, "%s has %zu bytes, which are not what its counts need",
                         path, length);
    if (header->string_count > RECORDING_STRINGS_MAX || header->stage_count > RECORDING_NAMES_MAX ||
        header->tag_count > RECORDING_NAMES_MAX)
        return error_set(err, STATUS_LIMIT, "%s: %u strings, %u stages and %u tags are too many",
                         path, header->string_count, header->stage_count, header->tag_count);
    return STATUS_OK;
}

/* `text` and `left` go on behind the names that are taken. */
static enum status read_names(char ***out, uint32_t count, const char **text, uint64_t *left,
                              const struct reader *reader)
{
    TRY(memory_get((void **)out, count, sizeof **out, "the names of a recording", reader->err));
    for (uint32_t i = 0; i < count; i++) {
        size_t length = strnlen(*text, (size_t)*left);
        if (length == *left)
            return error_set(reader->err, STATUS_FORMAT, "%s: name %u does not end", reader->path,
                             i);
        (*out)[i] = memory_copy_text(*text, length);
        if ((*out)[i] == NULL)
            return error_set(reader->err, STATUS_NO_MEMORY, "cannot allocate the names of %s",
                             reader->path);
        *text += length + 1;
        *left -= length + 1;
    }
    return STATUS_OK;
}

static enum status read_texts(struct recording *out, struct reader *reader,
                              const struct header *header)
{
    struct names names[NAME_LISTS];
    const char *about = take(reader, header->about_bytes);
    const char *text = take(reader, header->text_bytes);
    uint64_t left = header->text_bytes;
    if (memchr(about, 0, (size_t)header->about_bytes) != NULL)
        return error_set(reader->err, STATUS_FORMAT, "%s: what it is about has a NUL",
                         reader->path);
    out->about = memory_copy_text(about, (size_t)header->about_bytes);
    if (out->about == NULL)
        return error_set(reader->err, STATUS_NO_MEMORY, "cannot allocate what %s is about",
                         reader->path);
    list_names(names, out);
    for (int n = 0; n < NAME_LISTS; n++)
        TRY(read_names(names[n].list, names[n].count, &text, &left, reader));
    return left == 0 ? STATUS_OK
                     : error_set(reader->err, STATUS_FORMAT, "%s: bytes follow the last name",
                                 reader->path);
}

static enum status read_arrays(struct recording *out, struct reader *reader)
{
    struct section sections[SECTIONS];
    list_sections(sections, out);
    for (int s = 0; s < SECTIONS; s++) {
        size_t bytes = sections[s].count * sections[s].size;
        TRY(memory_get_raw(sections[s].array, sections[s].count, sections[s].size, "a recording",
                           reader->err));
        memcpy(*sections[s].array, take(reader, bytes), bytes);
    }
    return STATUS_OK;
}

static enum status read_all(struct recording *out, const struct header *header, const char *bytes,
                            const char *path, struct error *err)
{
    struct reader reader = {.at = bytes + sizeof *header, .path = path, .err = err};
    if (header->rank_count > RECORDING_RANKS_MAX)
        return error_set(err, STATUS_LIMIT, "%s: expected 1 to %d ranks, found %u", path,
                         RECORDING_RANKS_MAX, header->rank_count);
    *out = (struct recording){.rank_count = (int)header->rank_count,
                              .wall_seconds = header->wall_seconds,
                              .string_count = header->string_count,
                              .stage_count = header->stage_count,
                              .tag_count = header->tag_count,
                              .lane_count = header->lane_count,
                              .node_count = header->node_count,
                              .need_count = header->need_count,
                              .collective_count = header->collective_count,
                              .group_count = header->group_count,
                              .count_count = header->count_count};
    TRY(read_texts(out, &reader, header));
    TRY(read_arrays(out, &reader));
    return recording_check(out, path, err);
}

enum status recording_parse(struct recording *out, const void *bytes, size_t length,
                            const char *path, struct error *err)
{
    struct recording recording = {0};
    struct header header;
    uint64_t checksum;
    if (length < sizeof header + sizeof checksum ||
        memcmp(bytes, RECORDING_MAGIC, sizeof header.magic) != 0)
        return error_set(err, STATUS_FORMAT, "%s is no recording of phasor's", path);
    memcpy(&header, bytes, sizeof header);
    memcpy(&checksum, (const char *)bytes + length - sizeof checksum, sizeof checksum);
    TRY(check_header(&header, length, path, err));
    if (XXH3_64bits(bytes, length - sizeof checksum) != checksum)
        return error_set(err, STATUS_FORMAT, "%s is damaged: its checksum is wrong", path);
    TRY(check_size(&header, length, path, err));
    enum status status = read_all(&recording, &header, bytes, path, err);
    if (status == STATUS_OK)
        *out = recording;
    else
        recording_deinit(&recording);
    return status;
}

enum status recording_read(struct recording *out, const char *path, struct error *err)
{
    char *bytes;
    size_t length;
    TRY(file_read_whole(&bytes, &length, path, FILE_BYTES_MAX, err));
    enum status status = recording_parse(out, bytes, length, path, err);
    memory_free(bytes);
    return status;
}
