/* Warnings and notices go to a callback; the library prints nothing. */
#ifndef PHASOR_BASE_LOG_H
#define PHASOR_BASE_LOG_H

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARNING };

/* Copied by value. `write` may be NULL (silence); it is called from any thread, one whole sentence
 * without a newline at a time. */
struct log_sink {
    void (*write)(void *context, enum log_level level, const char *message);
    void *context;
};

void log_write(const struct log_sink *sink, enum log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
