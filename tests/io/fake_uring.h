/* A kernel's io_uring as tests want it: each call may fail, and completions come late, out of
 * order, short, twice, damaged or never. Bytes are read only when a completion is given out: who
 * looks at a buffer before that finds nothing. Rings of several threads share the faults. */
#ifndef TESTS_IO_FAKE_URING_H
#define TESTS_IO_FAKE_URING_H

#include "io/uring_calls.h"

enum fake_call {
    FAKE_SETUP,
    FAKE_FILES,
    FAKE_BUFFERS,
    FAKE_READ,
    FAKE_NEXT,
    FAKE_RESULT,
    FAKE_BYTES /* "fails": a bit of what was read is wrong */
};

struct fake {
    /* The n-th call (1 is the first) fails; with is_sticky all later ones, too. 0: none. */
    enum fake_call call;
    int n, error;
    bool is_sticky;
    int count; /* of that call, so far */

    bool is_short;       /* a result has fewer bytes than were asked for, and any number of them */
    bool is_shuffled;    /* and is withheld for some looks */
    bool is_doubled;     /* each completion comes three times */
    bool refuses_direct; /* such a read is invalid */
    int refuses_after;   /* ... after so many that were not */
    bool lacks_read;     /* every read is invalid: Linux before 5.6 */
    bool hangs;          /* no completion comes */
    double delay;        /* seconds before each */
    bool stops_process;  /* once, while it is waited for one; none has come when it goes on */

    int ring_count;   /* set up and not exited */
    int flying_count; /* reads, in all of them */
    uint64_t draw;
};
extern struct fake fake;

/* Sets all to what a kernel without faults does. */
void fake_reset(void);

extern const struct uring_calls fake_uring;

/* The reads that hang are done now, into whatever memory they were given. */
void fake_write_late(void);

#endif
