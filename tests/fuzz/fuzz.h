/* What all fuzz targets share: checks that hold in every build, and the account of memory. */
#ifndef PHASOR_FUZZ_H
#define PHASOR_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/memory.h"
#include "base/status.h"

/* The entry of a target; libFuzzer or replay.c calls it. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A rule that no input may break. */
#define FUZZ_CHECK(condition)                                                                      \
    do {                                                                                           \
        if (!(condition))                                                                          \
            fuzz_fail(#condition, __FILE__, __LINE__);                                             \
    } while (0)
void fuzz_fail(const char *condition, const char *file, int line) __attribute__((noreturn));

/* A failed call must have a status of this list and a sentence; STATUS_INTERNAL and
 * STATUS_NO_MEMORY are nothing that an input may cause. */
void fuzz_check_error(enum status status, const struct error *err);

/* The account of one input. Between begin and end no allocation may be left over and the memory in
 * use may not grow by more than FUZZ_PEAK_BYTES and twice the input. What jansson allocates counts:
 * begin lets it use phasor's allocator. */
#define FUZZ_PEAK_BYTES ((uint64_t)64 << 20)
struct fuzz_account {
    struct memory_counters start;
    size_t input_bytes;
};
struct fuzz_account fuzz_begin(size_t input_bytes);
void fuzz_end(const struct fuzz_account *account);

/* The next part of an input whose parts are separated by lines "====". The part is a copy in
 * exactly as much memory as it needs (freed by memory_free), so that a read past its end is found.
 * False, with an empty part, when there is none left. */
struct fuzz_input {
    const char *at;
    size_t left;
    bool is_done;
};
bool fuzz_part(char **out, size_t *length, struct fuzz_input *input);

/* A file without a name that holds these bytes; the caller closes it. */
int fuzz_file(const void *bytes, size_t length);

/* The same in a file that fuzz_file has made; in a new one when `fd` is negative. */
int fuzz_file_rewrite(int fd, const void *bytes, size_t length);

/* "/proc/self/fd/N", by which such a file is opened again. */
struct fuzz_path {
    char text[32];
};
struct fuzz_path fuzz_file_path(int fd);

#endif
