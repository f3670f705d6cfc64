#include "quant/backup_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>
#include <zstd.h>
#include <zstd_errors.h>

#include "base/checked.h"
#include "base/file.h"
#include "base/memory.h"

struct backup {
    struct backup_source source;
    struct backup_form form;
    struct backup_entry *index;
    char *path;
    int fd;
};

/* ---- Opening ------------------------------------------------------------------------------- */

static enum status open_file(struct backup *backup, struct error *err)
{
    struct stat stat;
    /* O_NONBLOCK: opening a FIFO without a writer must not hang. */
    backup->fd = open(backup->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (backup->fd < 0)
        return error_set_errno(err, errno, "cannot open the backup %s", backup->path);
    if (fstat(backup->fd, &stat) != 0)
        return error_set_errno(err, errno, "cannot stat %s", backup->path);
    if (!S_ISREG(stat.st_mode))
        return error_set(err, STATUS_FORMAT, "%s is not a regular file", backup->path);
    /* From Linux 5.15 to 6.4 io_uring obeys O_NONBLOCK on regular files, too, and where the device
     * below cannot tell that it would wait all reads fail with EAGAIN. */
    if (fcntl(backup->fd, F_SETFL, 0) != 0)
        return error_set_errno(err, errno, "cannot open the backup %s", backup->path);
    backup->source.file_bytes = (uint64_t)stat.st_size;
    return STATUS_OK;
}

static enum status read_header(struct backup *backup, struct backup_header *header,
                               struct error *err)
{
    uint64_t size = backup->source.file_bytes;
    if (size < sizeof *header)
        return error_set(err, STATUS_FORMAT, "%s is no INT4 backup: it has %llu bytes",
                         backup->path, (unsigned long long)size);
    TRY(file_read_at(backup->fd, backup->path, 0, header, sizeof *header, err));
    TRY(backup_header_read(&backup->form, header, backup->path, err));
    if (!header->is_complete)
        return error_set(err, STATUS_FORMAT,
                         "%s is a backup that was not finished; phasor quantize goes on with it",
                         backup->path);
    /* granule_count < 2^26 and a span <= 2^30 + 2 pages. */
    const struct backup_form *form = &backup->form;
    uint64_t expected =
        form->settings.has_zstd
            ? header->file_bytes
            : (uint64_t)form->data_offset + (uint64_t)form->granule_count *
                                                (uint64_t)backup_granule_span(form->content_bytes);
    if (header->file_bytes != expected || size != expected)
        return error_set(err, STATUS_FORMAT,
                         "%s has %llu bytes where its header says %llu: it was cut or is damaged",
                         backup->path, (unsigned long long)size,
                         (unsigned long long)header->file_bytes);
    return STATUS_OK;
}

/* Each granule begins where the one before it ends, and the last ends the file. */
static enum status check_index(const struct backup *backup, uint64_t checksum, struct error *err)
{
    const struct backup_form *form = &backup->form;
    uint64_t at = (uint64_t)form->data_offset, end = backup->source.file_bytes;
    if (XXH3_64bits(backup->index, (size_t)form->index_bytes) != checksum)
        return error_set(err, STATUS_FORMAT, "%s: the index is damaged", backup->path);
    for (int64_t i = 0; i < form->granule_count; i++) {
        const struct backup_entry *entry = &backup->index[i];
        bool is_sound = entry->offset == at && entry->stored_bytes >= 1 &&
                        entry->stored_bytes <= ZSTD_COMPRESSBOUND((uint64_t)form->content_bytes);
        uint64_t span = is_sound ? (uint64_t)backup_granule_span((int64_t)entry->stored_bytes) : 0;
        if (!is_sound || !checked_range(at, span, end))
            return error_set(err, STATUS_FORMAT, "%s: the index is wrong about granule %lld",
                             backup->path, (long long)i);
        at += span;
    }
    if (at != end)
        return error_set(err, STATUS_FORMAT, "%s: %llu bytes follow the last granule", backup->path,
                         (unsigned long long)(end - at));
    return STATUS_OK;
}

static enum status read_index(struct backup *backup, uint64_t checksum, struct error *err)
{
    const struct backup_form *form = &backup->form;
    if (!form->settings.has_zstd)
        return STATUS_OK;
    if ((uint64_t)form->data_offset > backup->source.file_bytes)
        return error_set(err, STATUS_FORMAT, "%s ends within its index", backup->path);
    TRY(memory_get_raw((void **)&backup->index, (size_t)form->index_bytes, 1,
                       "the index of a backup", err));
    TRY(file_read_at(backup->fd, backup->path, BACKUP_PAGE, backup->index,
                     (size_t)form->index_bytes, err));
    return check_index(backup, checksum, err);
}

enum status backup_open(struct backup **out, const char *path, struct error *err)
{
    struct backup *backup;
    struct backup_header header;
    enum status status;
    TRY(memory_get((void **)&backup, 1, sizeof *backup, "a backup", err));
    backup->fd = -1;
    backup->path = memory_copy_text(path, strlen(path));
    if (backup->path == NULL) {
        status = error_set(err, STATUS_NO_MEMORY, "cannot allocate a path for %s", path);
        goto failed;
    }
    TRY_GOTO(open_file(backup, err), failed);
    TRY_GOTO(read_header(backup, &header, err), failed);
    TRY_GOTO(read_index(backup, header.index_checksum, err), failed);
    backup->source.form = &backup->form;
    backup->source.index = backup->index;
    backup->source.fd = backup->fd;
    backup->source.path = backup->path;
    *out = backup;
    return STATUS_OK;

failed:
    backup_close(backup);
    return status;
}

void backup_close(struct backup *backup)
{
    if (backup == NULL)
        return;
    if (backup->fd >= 0)
        close(backup->fd);
    memory_free(backup->index);
    memory_free(backup->path);
    memory_free(backup);
}

/* ---- Whose it is --------------------------------------------------------------------------- */

enum status backup_match(const struct backup *backup, const struct model_config *config,
                         const struct fingerprint *fingerprint, struct error *err)
{
    const struct backup_form *form = &backup->form;
    struct backup_form wanted;
    TRY(backup_form_make(&wanted, &form->settings, config, fingerprint, err));
    const struct {
        const char *name;
        int64_t here, expected;
    } sizes[] = {
        {"hidden size", form->hidden_dim, wanted.hidden_dim},
        {"expert width", form->expert_dim, wanted.expert_dim},
        {"number of experts", form->expert_count, wanted.expert_count},
        {"number of layers", form->layer_count, wanted.layer_count},
        {"number of layers with experts", form->moe_layer_count, wanted.moe_layer_count},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (sizes[i].here != sizes[i].expected)
            return error_set(
                err, STATUS_INVALID_ARGUMENT,
                "%s is the backup of another checkpoint: its %s is %lld, this one's is "
                "%lld",
                backup->path, sizes[i].name, (long long)sizes[i].here,
                (long long)sizes[i].expected);
    }
    if (memcmp(&form->fingerprint, fingerprint, sizeof *fingerprint) == 0)
        return STATUS_OK;
    char here[FINGERPRINT_DIGITS + 1], expected[FINGERPRINT_DIGITS + 1];
    fingerprint_format(here, &form->fingerprint);
    fingerprint_format(expected, fingerprint);
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "%s is the backup of another checkpoint: its fingerprint is %s, this one's is "
                     "%s",
                     backup->path, here, expected);
}

const struct backup_form *backup_form(const struct backup *backup)
{
    return &backup->form;
}

uint64_t backup_file_bytes(const struct backup *backup)
{
    return backup->source.file_bytes;
}

int backup_fd(const struct backup *backup)
{
    return backup->fd;
}

const char *backup_path(const struct backup *backup)
{
    return backup->path;
}

int64_t backup_moe_layer(const struct model_config *config, int64_t layer)
{
    int64_t before = 0;
    ASSERT(layer >= 0 && layer < config->layer_count && config->layers[layer].ffn == FFN_MOE);
    for (int64_t i = 0; i < layer; i++)
        before += config->layers[i].ffn == FFN_MOE;
    return before;
}

/* ---- Granules ------------------------------------------------------------------------------ */

static int64_t stored_bytes(const struct backup_source *source, int64_t number)
{
    ASSERT(number >= 0 && number < source->form->granule_count);
    return source->index == NULL ? source->form->content_bytes
                                 : (int64_t)source->index[number].stored_bytes;
}

static uint64_t source_offset(const struct backup_source *source, int64_t number)
{
    ASSERT(number >= 0 && number < source->form->granule_count);
    if (source->index != NULL)
        return source->index[number].offset;
    return (uint64_t)(source->form->data_offset +
                      number * backup_granule_span(source->form->content_bytes));
}

uint64_t backup_granule_offset(const struct backup *backup, int64_t number)
{
    return source_offset(&backup->source, number);
}

int64_t backup_granule_stored(const struct backup *backup, int64_t number)
{
    return stored_bytes(&backup->source, number);
}

int64_t backup_granule_bytes(const struct backup *backup, int64_t number)
{
    return backup_granule_span(stored_bytes(&backup->source, number));
}

int64_t backup_granule_bytes_max(const struct backup *backup)
{
    return backup_granule_span_max(&backup->form);
}

static struct backup_trailer trailer_of(const struct backup_source *source, int64_t number,
                                        const void *bytes)
{
    struct backup_trailer trailer;
    memcpy(&trailer, (const char *)bytes + stored_bytes(source, number), sizeof trailer);
    return trailer;
}

struct backup_trailer backup_granule_trailer(const struct backup *backup, int64_t number,
                                             const void *bytes)
{
    return trailer_of(&backup->source, number, bytes);
}

static bool is_zero(const char *bytes, int64_t count)
{
    while (count > 0 && bytes[count - 1] == 0)
        count--;
    return count == 0;
}

/* Sets `*content`; STATUS_FORMAT: `*damage` is what is wrong with the granule's bytes. The checksum
 * stands before the decoder: what was damaged on its way never comes to it. */
static enum status find_content(const void **content, const char **damage,
                                const struct backup_source *source, int64_t number,
                                const void *bytes, void *scratch)
{
    const struct backup_form *form = source->form;
    int64_t stored = stored_bytes(source, number);
    uint64_t checksum = trailer_of(source, number, bytes).checksum;
    *damage = "its checksum does not hold";
    if (checksum != backup_granule_checksum(form, number, bytes, stored))
        return STATUS_FORMAT;
    int64_t end = stored + (int64_t)sizeof(struct backup_trailer);
    *damage = "there is something behind its end";
    if (!is_zero((const char *)bytes + end, backup_granule_span(stored) - end))
        return STATUS_FORMAT;
    if (source->index == NULL) {
        *content = bytes;
        return STATUS_OK;
    }
    size_t length = ZSTD_decompress(scratch, (size_t)form->content_bytes, bytes, (size_t)stored);
    *damage = "it is not what zstd made of a granule";
    if (ZSTD_getErrorCode(length) == ZSTD_error_memory_allocation)
        return STATUS_NO_MEMORY;
    if (length != (size_t)form->content_bytes)
        return STATUS_FORMAT;
    *content = scratch;
    return STATUS_OK;
}

enum status backup_granule_check(const void **content, const struct backup *backup, int64_t number,
                                 const void *bytes, void *scratch, struct error *err)
{
    const struct backup_form *form = &backup->form;
    const char *damage;
    enum status status = find_content(content, &damage, &backup->source, number, bytes, scratch);
    if (status == STATUS_OK)
        return STATUS_OK;
    if (status == STATUS_NO_MEMORY)
        return error_set(err, status, "cannot allocate what zstd decompresses %s with",
                         backup->path);
    int64_t expert = number / form->parts;
    return error_set(err, STATUS_FORMAT,
                     "%s: granule %lld (%lldth layer with experts, expert %lld, part %lld) is "
                     "damaged: %s; make the backup anew with phasor quantize --overwrite",
                     backup->path, (long long)number, (long long)(expert / form->expert_count + 1),
                     (long long)(expert % form->expert_count), (long long)(number % form->parts),
                     damage);
}

enum status backup_granule_read(const void **content, const struct backup *backup, int64_t number,
                                void *bytes, void *scratch, struct error *err)
{
    TRY(file_read_at(backup->fd, backup->path, backup_granule_offset(backup, number), bytes,
                     (size_t)backup_granule_bytes(backup, number), err));
    return backup_granule_check(content, backup, number, bytes, scratch, err);
}

bool backup_source_has(const struct backup_source *source, int64_t number, void *bytes,
                       void *scratch, struct backup_trailer *trailer)
{
    const void *content;
    const char *damage;
    struct error ignored;
    int64_t limit = (int64_t)ZSTD_COMPRESSBOUND((uint64_t)source->form->content_bytes);
    int64_t stored = stored_bytes(source, number);
    if (stored < 1 || stored > limit)
        return false;
    uint64_t offset = source_offset(source, number), span = (uint64_t)backup_granule_span(stored);
    if (offset < (uint64_t)source->form->data_offset ||
        !checked_range(offset, span, source->file_bytes) ||
        file_read_at(source->fd, source->path, offset, bytes, (size_t)span, &ignored) !=
            STATUS_OK ||
        find_content(&content, &damage, source, number, bytes, scratch) != STATUS_OK)
        return false;
    *trailer = trailer_of(source, number, bytes);
    return true;
}
