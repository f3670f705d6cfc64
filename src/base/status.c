#include "base/status.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

/* C0, DEL and C1 (U+009B starts a terminal's sequences as ESC [ does). */
static bool is_control(uint32_t code_point)
{
    return code_point < 0x20 || (code_point >= 0x7F && code_point < 0xA0);
}

/* Makes the text safe to print: a cut text ends in "..." at a UTF-8 boundary; control characters
 * and bytes that are no UTF-8 become '?'. */
static void message_finish(char *message, int full_length)
{
    if (full_length >= ERROR_MESSAGE_BYTES) {
        size_t end = ERROR_MESSAGE_BYTES - 4;
        for (int i = 0; i < 3 && ((unsigned char)message[end] & 0xC0) == 0x80; i++)
            end--;
        memcpy(message + end, "...", 4);
    }
    char *to = message;
    const char *from = message;
    size_t left = strlen(message);
    while (left > 0) {
        uint32_t code_point = 0;
        size_t length = utf8_decode(&code_point, from, left);
        size_t step = length == 0 ? 1 : length;
        if (length == 0 || is_control(code_point)) {
            *to++ = '?';
        } else {
            memmove(to, from, length);
            to += length;
        }
        from += step;
        left -= step;
    }
    *to = 0;
}

enum status error_set_v(struct error *err, enum status status, const char *format, va_list args)
{
    if (err == NULL)
        return status;
    err->status = status;
    int length = vsnprintf(err->message, sizeof err->message, format, args);
    message_finish(err->message, length);
    return status;
}

enum status error_set(struct error *err, enum status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    error_set_v(err, status, format, args);
    va_end(args);
    return status;
}

enum status error_set_errno(struct error *err, int error_number, const char *format, ...)
{
    enum status status = error_number == ENOENT   ? STATUS_NOT_FOUND
                         : error_number == ENOMEM ? STATUS_NO_MEMORY
                                                  : STATUS_IO;
    char text[ERROR_MESSAGE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    char reason[128];
    if (strerror_r(error_number, reason, sizeof reason) != 0)
        snprintf(reason, sizeof reason, "error %d", error_number);
    return error_set(err, status, "%s: %s", text, reason);
}

enum status error_prefix(struct error *err, enum status status, const char *format, ...)
{
    if (err == NULL)
        return status;
    char prefix[ERROR_MESSAGE_BYTES / 2];
    char old[ERROR_MESSAGE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(prefix, sizeof prefix, format, args);
    va_end(args);
    memcpy(old, err->message, sizeof old);
    return error_set(err, status, "%s: %s", prefix, old);
}

const char *status_name(enum status status)
{
    switch (status) {
    case STATUS_OK:
        return "ok";
    case STATUS_INVALID_ARGUMENT:
        return "invalid argument";
    case STATUS_NOT_FOUND:
        return "not found";
    case STATUS_FORMAT:
        return "format";
    case STATUS_UNSUPPORTED:
        return "unsupported";
    case STATUS_LIMIT:
        return "limit";
    case STATUS_NO_MEMORY:
        return "out of memory";
    case STATUS_IO:
        return "input/output";
    case STATUS_CANCELLED:
        return "cancelled";
    case STATUS_INTERNAL:
        return "internal";
    }
    return "unknown";
}

void assert_fail(const char *condition, const char *file, int line)
{
    fprintf(stderr, "phasor: internal mistake at %s:%d: %s does not hold. Please report this.\n",
            file, line, condition);
    abort();
}
