/* The file grows beside its place and is renamed when it is complete and on disk, so that a name
 * never stands for half a file. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/memory.h"
#include "base/text.h"
#include "model/safetensors.h"

#define HEADER_ALIGNMENT 8
#define BUFFER_BYTES     (1u << 20) /* joins the many small tensors into large writes */

struct safetensors_writer {
    char *path;
    char *temporary;
    int fd;
    struct text header; /* JSON without the closing brace */
    uint64_t data_bytes;
    uint64_t written_bytes;
    bool begun;
    char *buffer;
    size_t buffered;
};

static enum status open_temporary(struct safetensors_writer *writer, struct error *err)
{
    struct text name = {0};
    text_append_format(&name, "%s.partial-%ld", writer->path, (long)getpid());
    enum status status = text_check(&name, "a path", err);
    if (status == STATUS_OK) {
        writer->fd = open(name.bytes, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
        if (writer->fd < 0)
            status = error_set_errno(err, errno, "cannot create %s", name.bytes);
    }
    if (status != STATUS_OK) {
        text_deinit(&name);
        return status;
    }
    writer->temporary = name.bytes; /* ours from here on: abort removes it */
    return STATUS_OK;
}

enum status safetensors_writer_create(struct safetensors_writer **out, const char *path,
                                      struct error *err)
{
    struct safetensors_writer *writer;
    TRY(memory_get((void **)&writer, 1, sizeof *writer, path, err));
    writer->fd = -1;
    enum status status = STATUS_OK;
    writer->path = memory_copy_text(path, strlen(path));
    if (writer->path == NULL) {
        status = error_set(err, STATUS_NO_MEMORY, "cannot allocate a path for %s", path);
        goto fail;
    }
    TRY_GOTO(memory_get_raw((void **)&writer->buffer, BUFFER_BYTES, 1, path, err), fail);
    TRY_GOTO(open_temporary(writer, err), fail);
    text_append_string(&writer->header, "{");
    *out = writer;
    return STATUS_OK;
fail:
    safetensors_writer_abort(writer);
    return status;
}

static void append_quoted(struct text *text, const char *string)
{
    text_append_string(text, "\"");
    for (; *string != 0; string++) {
        unsigned char byte = (unsigned char)*string;
        if (byte < 0x20 || byte == '"' || byte == '\\')
            text_append_format(text, "\\u%04x", byte);
        else
            text_append(text, string, 1);
    }
    text_append_string(text, "\"");
}

enum status safetensors_writer_add(struct safetensors_writer *writer, const char *name,
                                   enum dtype dtype, const int64_t *shape, int rank,
                                   struct error *err)
{
    static const char *const dtype_texts[] = {
        [DTYPE_F32] = "F32", [DTYPE_BF16] = "BF16", [DTYPE_F16] = "F16"};
    ASSERT(!writer->begun && rank >= 0 && rank <= TENSOR_RANK_MAX);
    uint64_t bytes = (uint64_t)dtype_bytes(dtype), end;
    bool fits = true;
    for (int i = 0; i < rank && fits; i++)
        fits = shape[i] >= 0 && checked_mul(&bytes, bytes, (uint64_t)shape[i]);
    if (!fits || !checked_add(&end, writer->data_bytes, bytes) || end > INT64_MAX)
        return error_set(err, STATUS_LIMIT, "%s: tensor \"%s\" is too large", writer->path, name);
    struct text *header = &writer->header;
    text_append_string(header, header->length > 1 ? "," : "");
    append_quoted(header, name);
    text_append_format(header, ":{\"dtype\":\"%s\",\"shape\":[", dtype_texts[dtype]);
    for (int i = 0; i < rank; i++)
        text_append_format(header, "%s%lld", i > 0 ? "," : "", (long long)shape[i]);
    text_append_format(header, "],\"data_offsets\":[%llu,%llu]}",
                       (unsigned long long)writer->data_bytes, (unsigned long long)end);
    TRY(text_check(header, writer->path, err));
    writer->data_bytes = end;
    return STATUS_OK;
}

static enum status write_all(struct safetensors_writer *writer, const char *at, size_t bytes,
                             struct error *err)
{
    while (bytes > 0) {
        ssize_t written = write(writer->fd, at, bytes);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return error_set_errno(err, written < 0 ? errno : EIO, "cannot write %s",
                                   writer->temporary);
        at += written;
        bytes -= (size_t)written;
    }
    return STATUS_OK;
}

static enum status flush(struct safetensors_writer *writer, struct error *err)
{
    TRY(write_all(writer, writer->buffer, writer->buffered, err));
    writer->buffered = 0;
    return STATUS_OK;
}

enum status safetensors_writer_begin(struct safetensors_writer *writer, struct error *err)
{
    struct text *header = &writer->header;
    ASSERT(!writer->begun);
    /* __metadata__ as transformers writes it: some readers insist on the format. */
    text_append_format(header, "%s\"__metadata__\":{\"format\":\"pt\"}}",
                       header->length > 1 ? "," : "");
    while (!header->failed && header->length % HEADER_ALIGNMENT != 0)
        text_append_string(header, " ");
    TRY(text_check(header, writer->path, err));
    if (header->length > SAFETENSORS_HEADER_BYTES_MAX)
        return error_set(err, STATUS_LIMIT, "%s: too many tensors for one file", writer->path);
    char word[8];
    for (int i = 0; i < 8; i++)
        word[i] = (char)((uint64_t)header->length >> 8 * i);
    TRY(write_all(writer, word, sizeof word, err));
    TRY(write_all(writer, header->bytes, header->length, err));
    writer->begun = true;
    return STATUS_OK;
}

enum status safetensors_writer_data(struct safetensors_writer *writer, const void *data,
                                    size_t bytes, struct error *err)
{
    ASSERT(writer->begun && bytes <= writer->data_bytes - writer->written_bytes);
    if (bytes > BUFFER_BYTES - writer->buffered)
        TRY(flush(writer, err));
    if (bytes > BUFFER_BYTES) {
        TRY(write_all(writer, data, bytes, err));
    } else {
        memcpy(writer->buffer + writer->buffered, data, bytes);
        writer->buffered += bytes;
    }
    writer->written_bytes += bytes;
    return STATUS_OK;
}

/* Makes the new name durable: the directory has to reach the disk, too. */
static enum status sync_directory(const char *path, struct error *err)
{
    const char *slash = strrchr(path, '/');
    char *dir = slash == NULL ? memory_copy_text(".", 1)
                              : memory_copy_text(path, (size_t)(slash - path) + 1);
    if (dir == NULL)
        return error_set(err, STATUS_NO_MEMORY, "cannot allocate a path for %s", path);
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    enum status status = STATUS_OK;
    if (fd < 0 || fsync(fd) != 0)
        status = error_set_errno(err, errno, "cannot sync %s", dir);
    if (fd >= 0)
        close(fd);
    memory_free(dir);
    return status;
}

static enum status complete(struct safetensors_writer *writer, struct error *err)
{
    ASSERT(writer->begun && writer->written_bytes == writer->data_bytes);
    TRY(flush(writer, err));
    if (fsync(writer->fd) != 0)
        return error_set_errno(err, errno, "cannot write %s", writer->temporary);
    int closed = close(writer->fd);
    writer->fd = -1;
    if (closed != 0)
        return error_set_errno(err, errno, "cannot write %s", writer->temporary);
    if (rename(writer->temporary, writer->path) != 0)
        return error_set_errno(err, errno, "cannot rename %s to %s", writer->temporary,
                               writer->path);
    memory_free(writer->temporary);
    writer->temporary = NULL;
    return sync_directory(writer->path, err);
}

enum status safetensors_writer_finish(struct safetensors_writer *writer, struct error *err)
{
    enum status status = complete(writer, err);
    safetensors_writer_abort(writer);
    return status;
}

void safetensors_writer_abort(struct safetensors_writer *writer)
{
    if (writer == NULL)
        return;
    if (writer->fd >= 0)
        close(writer->fd);
    if (writer->temporary != NULL)
        unlink(writer->temporary);
    memory_free(writer->temporary);
    text_deinit(&writer->header);
    memory_free(writer->buffer);
    memory_free(writer->path);
    memory_free(writer);
}
