/* What every call that can fail returns, and the sentence that explains a failure.
 *
 * A function that can fail returns `enum status` and takes `struct error *err` as its last
 * parameter. The sentence is made once, where the cause is known (error_set), and only forwarded
 * above. A failed call changes nothing that its caller can see, unless its contract says otherwise.
 */
#ifndef PHASOR_BASE_STATUS_H
#define PHASOR_BASE_STATUS_H

#include <stdarg.h>

enum status {
    STATUS_OK = 0,
    STATUS_INVALID_ARGUMENT, /* a flag or parameter is wrong: the caller can mend it */
    STATUS_NOT_FOUND,        /* a file, tensor or key that must exist does not */
    STATUS_FORMAT,           /* a file breaks the rules of its format */
    STATUS_UNSUPPORTED,      /* well formed, but phasor does not know it */
    STATUS_LIMIT,            /* larger than a stated limit */
    STATUS_NO_MEMORY,        /* the machine or the given budget has too little memory */
    STATUS_IO,               /* the operating system refused or failed an operation */
    STATUS_CANCELLED,        /* stopped on request */
    STATUS_INTERNAL,         /* our own mistake, found before it did harm */
};

#define ERROR_MESSAGE_BYTES 1024

/* Filled only when a call fails. The message is one sentence in UTF-8: what, which file, tensor or
 * flag, what was expected and found, and the cure where there is one. */
struct error {
    enum status status;
    char message[ERROR_MESSAGE_BYTES];
};

#define MUST_CHECK __attribute__((warn_unused_result))

/* Writes the sentence and returns `status`, so that a caller can `return error_set(...)`.
 * `err` may be NULL (the sentence is dropped). Control characters and bytes that are no UTF-8 are
 * shown as '?', so that a hostile file name cannot write to a terminal. A text that is too long
 * ends in "...". */
enum status error_set(struct error *err, enum status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
enum status error_set_v(struct error *err, enum status status, const char *format, va_list args)
    __attribute__((format(printf, 3, 0)));

/* error_set with STATUS_IO (STATUS_NOT_FOUND for ENOENT) and the system's words for `error_number`.
 */
enum status error_set_errno(struct error *err, int error_number, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Puts "text: " before the message of a failure that is being forwarded; returns its status. */
enum status error_prefix(struct error *err, enum status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Short lower-case name, e.g. "format"; never NULL. */
const char *status_name(enum status status);

/* Forwards a failure. */
#define TRY(call)                                                                                  \
    do {                                                                                           \
        enum status try_status_ = (call);                                                          \
        if (try_status_ != STATUS_OK)                                                              \
            return try_status_;                                                                    \
    } while (0)

/* The same for functions that clean up at one label: sets `status` (a local of the function). */
#define TRY_GOTO(call, label)                                                                      \
    do {                                                                                           \
        status = (call);                                                                           \
        if (status != STATUS_OK)                                                                   \
            goto label;                                                                            \
    } while (0)

/* For our own mistakes only; active in every build. Never for what a file or a user can cause. */
#define ASSERT(condition)                                                                          \
    do {                                                                                           \
        if (__builtin_expect(!(condition), 0))                                                     \
            assert_fail(#condition, __FILE__, __LINE__);                                           \
    } while (0)
void assert_fail(const char *condition, const char *file, int line) __attribute__((noreturn));

#endif
