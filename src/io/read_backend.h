/* What read_queue.c and the backends share: read_queue.c has the buffers, the order of a read's
 * pieces and the sentences; read_*.c only have bytes fetched. */
#ifndef PHASOR_IO_READ_BACKEND_H
#define PHASOR_IO_READ_BACKEND_H

#include "io/read_queue.h"

/* One call of the system's: it may give less than it was asked for. */
struct read_request {
    uint64_t ticket; /* names the request; no two have the same */
    char *place;
    size_t bytes;
    uint64_t offset;
    int buffer; /* of which `place` is a part; -1: none */
    bool is_direct;
};

struct read_result {
    uint64_t ticket;
    int count; /* bytes; 0: the file ends there; -errno */
};

/* The file and the buffers that the requests of a queue are about. */
struct read_target {
    int fd, direct_fd; /* the same file; direct_fd is -1 where O_DIRECT is refused */
    char *buffers;     /* [buffer_count][buffer_bytes] */
    int request_count; /* at most so many at a time */

    /* What a backend's `open` tells: see read_queue_use. */
    bool is_registered;
    char note[400];
    bool note_is_usual;
};

/* A row of the table of backends. */
struct read_backend_ops {
    /* On failure nothing is kept. */
    enum status (*open)(void **out, const struct read_queue_params *params,
                        struct read_target *target, struct error *err);
    /* `is_abandoned`: requests are in flight that may never end; what they use is not released. */
    void (*close)(void *backend, bool is_abandoned);
    /* Begins a request: 0, or -errno when it has not begun. */
    int (*begin)(void *backend, const struct read_request *request);
    /* The next request that has ended: 1; 0 when none did within `seconds`; -errno. */
    int (*next)(void *backend, struct read_result *out, double seconds);
};

extern const struct read_backend_ops read_uring, read_threads, read_locked;

#endif
