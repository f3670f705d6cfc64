/* What a test says to the stub of NCCL: a libnccl.so.2 over the emulated GPUs (tests/simt), which
 * behaves as NCCL does in what can go wrong. It is opened by dlopen, as NCCL is, and finds the
 * emulated runtime in the program; NCCL_STUB_GET gives its table.
 *
 * An operation is work on its stream: it begins when that comes to it and no other one is on the
 * GPU, moves bytes when those of its peers have begun, and ends when its own have been taken. So
 * one that a peer does not launch holds its stream, and its GPU for all others, until it is
 * aborted; an abort returns when what its member launched has left. Groups of calls are launched
 * some polls of ncclCommGetAsyncError later, the first between two members when both have begun
 * one, and until then what else is put on the stream runs before them.
 *
 * What would hang, or spoil memory, ends the process with a sentence on standard error: a sender
 * and a receiver that disagree, operations of two communicators in different orders on two GPUs,
 * buffers that overlap, a handle that is used before it is ready or after its end.
 */
#ifndef PHASOR_TESTS_NCCL_STUB_H
#define PHASOR_TESTS_NCCL_STUB_H

#include <stdbool.h>
#include <stdint.h>

struct nccl_stub {
    /* How often an operation or a communicator says that it is in progress; 0: operations never.
     * At the start 2. */
    void (*polls_set)(int polls);

    /* With a seed other than 0 threads wait for random times before they begin a group. */
    void (*jitter_set)(uint64_t seed);

    /* The n-th call from here on returns `result` and does nothing (but what is ended is gone);
     * 0: none. Whether it is yet to come. */
    void (*fail_at)(uint64_t n, int result);
    bool (*fail_is_ahead)(void);

    /* The n-th launch from here on never begins, as that of a GPU that hangs; 0: none. `result`
     * other than 0: its communicator says so. */
    void (*lose_at)(uint64_t n, int result);

    /* The n-th abort from here on, what its member launched having left, does not return before
     * this is called with 0, for none. */
    void (*hang_abort_at)(uint64_t n);

    /* Since the start of the process. */
    uint64_t (*launch_count)(void);
    uint64_t (*abort_count)(void);
    uint64_t (*live_count)(void); /* handles */
};

/* In the library. */
typedef const struct nccl_stub *nccl_stub_get_type(void);
#define NCCL_STUB_GET "nccl_stub_get"

/* Its version, as ncclGetVersion counts, where this variable of the environment is set. */
#define NCCL_STUB_VERSION "NCCL_STUB_VERSION"

#endif
