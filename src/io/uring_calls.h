/* What read_uring.c needs of io_uring, as a table, so that tests can be the kernel. */
#ifndef PHASOR_IO_URING_CALLS_H
#define PHASOR_IO_URING_CALLS_H

#include "io/read_backend.h"

struct uring_ring;
struct iovec;

/* Each gives 0 or -errno, as io_uring's own calls do. */
struct uring_calls {
    /* A ring for `entries` requests that have not been handed to the kernel. */
    int (*setup)(struct uring_ring **out, unsigned entries);
    void (*exit)(struct uring_ring *ring);
    int (*register_files)(struct uring_ring *ring, const int *fds, unsigned count);
    int (*register_buffers)(struct uring_ring *ring, const struct iovec *buffers, unsigned count);

    /* Hands a read to the kernel. `file` is a descriptor, or with `has_files` an index of what was
     * registered; `buffer` an index of what was registered, or -1. After a failure the kernel has
     * not got it and never will. */
    int (*read)(struct uring_ring *ring, const struct read_request *request, int file,
                bool has_files, int buffer);

    /* 1: a completion; 0: none within `seconds`. */
    int (*next)(struct uring_ring *ring, struct read_result *out, double seconds);
};

/* The system's, by liburing; NULL in a build without it. */
const struct uring_calls *uring_calls_system(void);

#endif
