#include "base/log.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include "base/status.h"

void log_write(const struct log_sink *sink, enum log_level level, const char *format, ...)
{
    if (sink == NULL || sink->write == NULL)
        return;
    struct error text; /* the same rules hold for a warning: one line, no control characters */
    va_list args;
    va_start(args, format);
    error_set_v(&text, STATUS_OK, format, args);
    va_end(args);
    sink->write(sink->context, level, text.message);
}
