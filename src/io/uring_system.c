#define _GNU_SOURCE
#include "io/uring_calls.h"

#if defined(PHASOR_URING)

#include <errno.h>
#include <liburing.h>

#include "base/memory.h"

/* The ticket of an entry that means nothing (those of requests count up from 1). */
#define NO_TICKET UINT64_MAX

struct uring_ring {
    struct io_uring ring;
};

static int ring_setup(struct uring_ring **out, unsigned entries)
{
    struct uring_ring *ring = memory_alloc(1, sizeof *ring);
    if (ring == NULL)
        return -ENOMEM;
    int failure = io_uring_queue_init(entries, &ring->ring, 0);
    if (failure != 0) {
        memory_free(ring);
        return failure;
    }
    *out = ring;
    return 0;
}

static void ring_exit(struct uring_ring *ring)
{
    io_uring_queue_exit(&ring->ring);
    memory_free(ring);
}

static int ring_register_files(struct uring_ring *ring, const int *fds, unsigned count)
{
    return io_uring_register_files(&ring->ring, fds, count);
}

static int ring_register_buffers(struct uring_ring *ring, const struct iovec *buffers,
                                 unsigned count)
{
    return io_uring_register_buffers(&ring->ring, buffers, count);
}

/* An entry that the kernel has not taken stays in the ring, and the kernel takes it with a later
 * one: so it is made one that reads nothing. */
static void make_harmless(struct io_uring_sqe *entry)
{
    io_uring_prep_nop(entry);
    entry->user_data = NO_TICKET;
}

static int ring_read(struct uring_ring *ring, const struct read_request *request, int file,
                     bool has_files, int buffer)
{
    struct io_uring_sqe *entry = io_uring_get_sqe(&ring->ring);
    if (entry == NULL) { /* full of entries that the kernel has not taken */
        int count = io_uring_submit(&ring->ring);
        return count < 0 ? count : -EAGAIN;
    }
    if (buffer >= 0)
        io_uring_prep_read_fixed(entry, file, request->place, (unsigned)request->bytes,
                                 request->offset, buffer);
    else
        io_uring_prep_read(entry, file, request->place, (unsigned)request->bytes, request->offset);
    if (has_files)
        entry->flags |= IOSQE_FIXED_FILE;
    entry->user_data = request->ticket;
    unsigned waiting = io_uring_sq_ready(&ring->ring);
    int count = io_uring_submit(&ring->ring);
    if (count == (int)waiting)
        return 0;
    make_harmless(entry);
    return count < 0 ? count : -EAGAIN;
}

static int ring_next(struct uring_ring *ring, struct read_result *out, double seconds)
{
    struct io_uring_cqe *entry;
    struct __kernel_timespec time = {.tv_sec = (long long)seconds};
    time.tv_nsec = (long long)(1e9 * (seconds - (double)time.tv_sec));
    do {
        int failure = io_uring_peek_cqe(&ring->ring, &entry);
        if (failure == -EAGAIN && seconds > 0)
            failure = io_uring_wait_cqe_timeout(&ring->ring, &entry, &time);
        if (failure == -ETIME || failure == -EAGAIN)
            return 0;
        if (failure != 0)
            return failure;
        *out = (struct read_result){entry->user_data, entry->res};
        io_uring_cqe_seen(&ring->ring, entry);
    } while (out->ticket == NO_TICKET);
    return 1;
}

const struct uring_calls *uring_calls_system(void)
{
    static const struct uring_calls calls = {
        ring_setup, ring_exit, ring_register_files, ring_register_buffers, ring_read, ring_next};
    return &calls;
}

#else

const struct uring_calls *uring_calls_system(void)
{
    return NULL;
}

#endif
