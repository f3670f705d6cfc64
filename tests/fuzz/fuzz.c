#define _GNU_SOURCE /* memfd_create, memmem */

#include "fuzz.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/text.h"

#define SEPARATOR "\n====\n"

void fuzz_fail(const char *condition, const char *file, int line)
{
    fprintf(stderr, "%s:%d: broken: %s\n", file, line, condition);
    abort();
}

void fuzz_check_error(enum status status, const struct error *err)
{
    FUZZ_CHECK(status == STATUS_FORMAT || status == STATUS_UNSUPPORTED || status == STATUS_LIMIT ||
               status == STATUS_NOT_FOUND || status == STATUS_INVALID_ARGUMENT);
    FUZZ_CHECK(err->status == status);
    size_t length = strnlen(err->message, sizeof err->message);
    FUZZ_CHECK(length > 0 && length < sizeof err->message);
    FUZZ_CHECK(utf8_is_valid(err->message, length));
    for (size_t i = 0; i < length; i++)
        FUZZ_CHECK((unsigned char)err->message[i] >= 0x20 && err->message[i] != 0x7F);
}

static void *allocate(size_t bytes)
{
    return memory_alloc_raw(bytes, 1);
}

struct fuzz_account fuzz_begin(size_t input_bytes)
{
    static bool is_ready;
    if (!is_ready)
        json_set_alloc_funcs(allocate, memory_free);
    is_ready = true;
    return (struct fuzz_account){memory_counters_get(), input_bytes};
}

void fuzz_end(const struct fuzz_account *account)
{
    struct memory_counters now = memory_counters_get();
    FUZZ_CHECK(now.live_count == account->start.live_count);
    FUZZ_CHECK(now.live_bytes == account->start.live_bytes);
    /* The peak is that of the whole process: only one that grew says something of this input. */
    uint64_t grown = now.peak_bytes - account->start.live_bytes;
    if (now.peak_bytes > account->start.peak_bytes &&
        grown > FUZZ_PEAK_BYTES + 2 * account->input_bytes) {
        fprintf(stderr, "%zu bytes of input took %llu bytes of memory\n", account->input_bytes,
                (unsigned long long)grown);
        FUZZ_CHECK(!"memory within the limit");
    }
}

bool fuzz_part(char **out, size_t *length, struct fuzz_input *input)
{
    bool found = !input->is_done;
    *length = 0;
    if (found) {
        const char *end =
            input->left == 0 ? NULL : memmem(input->at, input->left, SEPARATOR, strlen(SEPARATOR));
        *length = end == NULL ? input->left : (size_t)(end - input->at);
        input->is_done = end == NULL;
    }
    *out = memory_alloc_raw(*length, 1);
    FUZZ_CHECK(*out != NULL);
    if (*length > 0)
        memcpy(*out, input->at, *length);
    if (found && !input->is_done) {
        input->at += *length + strlen(SEPARATOR);
        input->left -= *length + strlen(SEPARATOR);
    }
    return found;
}

int fuzz_file_rewrite(int fd, const void *bytes, size_t length)
{
    if (fd < 0)
        fd = memfd_create("fuzz", MFD_CLOEXEC);
    FUZZ_CHECK(fd >= 0);
    FUZZ_CHECK(ftruncate(fd, 0) == 0 && lseek(fd, 0, SEEK_SET) == 0);
    for (size_t done = 0; done < length;) {
        ssize_t put = write(fd, (const char *)bytes + done, length - done);
        FUZZ_CHECK(put > 0);
        done += (size_t)put;
    }
    FUZZ_CHECK(lseek(fd, 0, SEEK_SET) == 0);
    return fd;
}

int fuzz_file(const void *bytes, size_t length)
{
    return fuzz_file_rewrite(-1, bytes, length);
}

struct fuzz_path fuzz_file_path(int fd)
{
    struct fuzz_path path;
    snprintf(path.text, sizeof path.text, "/proc/self/fd/%d", fd);
    return path;
}
