/* phasor's own allocator: checked sizes, accounting, and the point where tests let the n-th
 * allocation fail. All of phasor's heap memory passes here; what libraries allocate does not.
 * Thread-safe. */
#ifndef PHASOR_BASE_MEMORY_H
#define PHASOR_BASE_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* Zeroed memory for `count` objects of `size` bytes, aligned to 64; NULL when it cannot be had or
 * the product overflows. Count 0 gives a unique pointer. Freed by memory_free. */
void *memory_alloc(size_t count, size_t size);

/* The same, not zeroed: for weights and large buffers that are written in full. */
void *memory_alloc_raw(size_t count, size_t size);

/* Grows or shrinks `memory` (from this allocator, or NULL) to hold `count` objects; new bytes are
 * not zeroed. On failure returns NULL and `memory` stays as it was. */
void *memory_resize(void *memory, size_t count, size_t size);

void memory_free(void *memory); /* NULL is allowed */

/* A copy of `length` bytes with a NUL behind; NULL when out of memory. */
char *memory_copy_text(const char *text, size_t length);

/* memory_alloc that makes the sentence: "cannot allocate 123 MiB for <what>". `*out` is set. */
enum status memory_get(void **out, size_t count, size_t size, const char *what,
                       struct error *err) MUST_CHECK;
enum status memory_get_raw(void **out, size_t count, size_t size, const char *what,
                           struct error *err) MUST_CHECK;

/* Whole pages for `bytes` bytes, zeroed, of which nothing else has a part, so that mprotect can
 * open and close them. They count as memory_alloc's do. Freed by memory_pages_free with the same
 * bytes.
 */
enum status memory_pages_get(void **out, size_t bytes, const char *what,
                             struct error *err) MUST_CHECK;
void memory_pages_free(void *memory, size_t bytes); /* NULL is allowed */

/* From the beginning of such memory on, pages for `bytes` become those of the file from `offset`
 * on, a multiple of the page: one that is written is the process's own from then on. The file has
 * whole pages for all of them, and is not cut while they are mapped. fd -1: pages of zeros. They
 * may be read and written, whatever mprotect said. On failure what was there may be gone. */
enum status memory_pages_map(void *memory, size_t bytes, int fd, uint64_t offset,
                             struct error *err) MUST_CHECK;

/* So many bytes more are, or are no longer, pages of a file: memory_counters.mapped_bytes. */
void memory_count_mapped(int64_t bytes);

/* Brings pages that are mapped to memory, where the system knows how (Linux 5.14): elsewhere they
 * come as they are touched. False, with errno: some cannot be read, and who touches them ends the
 * process. */
bool memory_pages_fetch(void *memory, size_t bytes) MUST_CHECK;

/* The bytes that memory_pages_get maps for `bytes`: a multiple of the page. */
size_t memory_pages_bytes(size_t bytes);

struct memory_counters {
    uint64_t alloc_count; /* successful allocations since the start */
    uint64_t live_count;  /* allocations not yet freed */
    uint64_t live_bytes;
    uint64_t peak_bytes;
    uint64_t mapped_bytes; /* of live_bytes: pages of files, which the system counts as free */
};
struct memory_counters memory_counters_get(void);

/* Tests only: the n-th allocation from now on fails (1 = the next); 0 switches it off. `sticky`
 * makes all later ones fail, too. */
void memory_fail_at(uint64_t n, int sticky);

/* A line of sizes that grow: appends `count` objects' room to an array with doubling.
 * `array` is a pointer to a pointer; capacity counts objects. */
enum status memory_reserve(void *array, size_t *capacity, size_t needed, size_t size,
                           const char *what, struct error *err) MUST_CHECK;

#endif
