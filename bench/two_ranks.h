/* What a machine gives to two ranks, one core each: for the box file of bench/reality.c. */
#ifndef BENCH_TWO_RANKS_H
#define BENCH_TWO_RANKS_H

#include "base/status.h"
#include "comm/comm.h"

struct two_ranks {
    double alone_bytes_per_second; /* of memory, that one core reads while the other has a rest */
    double both_bytes_per_second;  /* that both read together */
    /* How much longer than the links need a collective takes, of which a member is there at once
     * with the other: threads that wake each other, and a clock that wakes them. */
    double meeting_seconds;    /* an all-gather */
    double all_reduce_seconds; /* which meets once more */
};

enum status two_ranks_measure(struct two_ranks *out, const struct comm_links *links,
                              struct error *err) MUST_CHECK;

#endif
