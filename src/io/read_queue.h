/* Reads of one file that go on while their caller does something else.
 *
 * A queue has a fixed number of buffers, and at most one read goes into each: so their number is
 * how deep the queue is. From its submission to its completion a read's buffer belongs to the
 * queue; then it is the caller's, until the next read is submitted into it. Reads complete in any
 * order, each with the id it was submitted with. What comes late or twice is dropped.
 *
 * How bytes come is the *backend*: one row of the table in read_queue.c, one file each. All give
 * the same bytes and the same sentences. One thread at a time uses a queue, and does not end while
 * reads that it submitted are in flight (io_uring would give them up). */
#ifndef PHASOR_IO_READ_QUEUE_H
#define PHASOR_IO_READ_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum read_backend {
    READ_URING,   /* the kernel reads by itself, by io_uring */
    READ_THREADS, /* threads that wait in pread: everywhere */
    READ_LOCKED,  /* nothing is read: the bytes are in memory (locked_file.h) */
    READ_BACKEND_COUNT
};

/* "io_uring", "threads", "locked memory". */
extern const char *const read_backend_names[READ_BACKEND_COUNT];

/* Buffers begin and end at multiples of it. Reads that do, in file and length, may go past the page
 * cache (O_DIRECT). */
#define READ_ALIGNMENT 4096

#define READ_BUFFERS_MAX      1024
#define READ_BUFFER_BYTES_MAX ((size_t)1 << 30) /* what io_uring registers as one */

struct locked_file;
struct uring_calls;

struct read_queue_params {
    enum read_backend backend;
    int fd;           /* of a regular file; the queue keeps a descriptor of its own */
    const char *path; /* what sentences call the file; borrowed */

    int buffer_count;    /* 1 .. READ_BUFFERS_MAX */
    size_t buffer_bytes; /* of each: a multiple of READ_ALIGNMENT, <= READ_BUFFER_BYTES_MAX */
    void *buffers;     /* [buffer_count][buffer_bytes], aligned to READ_ALIGNMENT, borrowed (memory
                        * that is pinned for a device); NULL: the queue takes its own */
    bool avoids_cache; /* read past the page cache, where the file system allows it */
    int thread_count;  /* of READ_THREADS, >= 1: reads that wait for the disk at a time. They
                        * run on the CPUs that the creating thread may use */
    double patience_seconds; /* a read of which nothing comes for so long has failed: seconds in
                              * which somebody waited, not those in which the process was stopped or
                              * the machine asleep */

    const struct locked_file *locked; /* READ_LOCKED, which reads nothing else and has no buffers of
                                       * its own; borrowed; else NULL */

    const struct uring_calls *uring; /* tests: instead of the system's (uring_calls.h); else NULL */
};

/* Takes all that reading needs, and reads the file's first page: so a queue that was created works,
 * and knows whether its reads may go past the page cache. Later calls allocate nothing.
 *
 * STATUS_UNSUPPORTED with READ_URING: the machine does not let it be used; the sentence names the
 * cure. Ranks that are to read alike create theirs first, and all take READ_THREADS where one could
 * not: a limit may be reached by the last ring alone. Other failures are of memory or the file. */
struct read_queue;
enum status read_queue_create(struct read_queue **out, const struct read_queue_params *params,
                              struct error *err) MUST_CHECK;

/* Waits until nothing is being read any more, then releases everything. false: the system had not
 * given up `buffers` for longer than the patience (a disk or a server hangs) and may still write to
 * them: memory of the caller must stay for ever, memory of the queue does. NULL is allowed. */
bool read_queue_destroy(struct read_queue *queue);

/* Begins to read `bytes` (1 .. buffer_bytes) at `offset` into a buffer that is the caller's. It
 * cannot fail: what fails is told of by read_queue_wait. */
void read_queue_submit(struct read_queue *queue, uint64_t id, int buffer, uint64_t offset,
                       size_t bytes);

struct read_done {
    uint64_t id;
    int buffer;        /* that is the caller's again; -1: none */
    const char *bytes; /* in the buffer; with READ_LOCKED in the locked file */
};

/* The next read that is complete; waits for it at most `seconds` (0: only looks).
 *
 * STATUS_OK: its buffer has all its bytes; or `out->buffer` is -1, and none was complete in time.
 * STATUS_FORMAT: the file ended before that. STATUS_IO or STATUS_NO_MEMORY: the system failed the
 * read (the sentence has path and offset); its buffer, the caller's again, has anything, and other
 * reads go on. STATUS_IO with `out->buffer` -1: nothing has come of the read for longer than the
 * patience, or the queue itself has failed; only read_queue_cancel and read_queue_destroy may
 * follow. */
enum status read_queue_wait(struct read_queue *queue, struct read_done *out, double seconds,
                            struct error *err) MUST_CHECK;

/* Gives up all that was submitted and not told of: when it returns true nothing is being read, and
 * all buffers are the caller's. false: as in read_queue_destroy, which alone may follow, and does
 * not wait again. */
bool read_queue_cancel(struct read_queue *queue) MUST_CHECK;

void *read_queue_buffer(const struct read_queue *queue, int buffer); /* not with READ_LOCKED */

/* How the queue reads, and what it has read since it was created. */
struct read_queue_use {
    enum read_backend backend;
    bool is_direct;     /* reads that are aligned go past the page cache */
    bool is_registered; /* the kernel holds the buffers' pages (READ_URING) */
    const char *note;   /* why not, where it was wanted: half a sentence; "" */
    bool note_is_usual; /* and so it is on most machines: nobody has to mend it */

    uint64_t read_count, read_bytes; /* told of by read_queue_wait, without failure */
    /* Calls of the backend, of which a read that comes in pieces takes several. */
    uint64_t request_count, direct_count, registered_count;
    uint64_t again_count;   /* pieces after the first, and requests that the system put off */
    uint64_t dropped_count; /* late or twice */
};
struct read_queue_use read_queue_use_get(const struct read_queue *queue);

#endif
