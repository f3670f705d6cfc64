/* A lane from within: what trace.c and record.c keep of the thread that works on it. */
#ifndef PHASOR_BASE_TRACE_LANE_H
#define PHASOR_BASE_TRACE_LANE_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/record.h"
#include "base/trace.h"

/* Entries of one size, which stay where they are: what comes later never copies what is there,
 * which would be in the times that are measured. */
struct record_list {
    void **chunks;
    size_t chunk_count, chunk_room;
    size_t count; /* of entries */
};

/* A lane's part of a recording. */
struct record_lane {
    enum record_lane_kind kind;

    /* Under the lane's lock, and changed by record_lane.c alone. */
    struct record_list nodes, needs, values;
    size_t need_first; /* needs from here on are the next node's */
    uint32_t *seen;    /* [seen_room] by lane: nodes of it that this one has needed */
    size_t seen_room;

    /* Of the lane's thread alone, as all that follows. */
    struct trace_lane *as; /* on whose lane the thread's nodes are; NULL: its own */
    uint16_t recording;    /* of which the rest is: of an earlier one it means nothing */
    bool has_next;         /* a node has begun */
    struct record_node next;
    uint64_t since, since_ns; /* a host's work that is in no node began so, by its own clock and
                               * by the wall's; 0: it rests */
    uint64_t paused_ns;       /* a node that has begun pauses since; 0: it does not */
    uint64_t excluded_ns;     /* of the node that has begun: it paused so long */
    uint64_t ended_ns;        /* the last of the reads */
};

struct trace_lane {
    struct trace *trace;
    struct trace_lane *next;
    int rank;
    const char *name;
    uint16_t number; /* 1, 2, 3 ... of the trace */

    pthread_mutex_t lock; /* of what follows */
    struct trace_span *spans;
    int64_t span_count, span_max;

    /* Of the lane's thread alone. */
    int stage;
    int64_t layer;
    const char *given_name; /* by trace_name; NULL: none */
    uint64_t given_bytes;

    struct record_lane record;
};

struct trace {
    atomic_bool is_on;
    atomic_llong room;     /* spans that may still come */
    atomic_llong left_out; /* did not */

    atomic_bool is_recording;
    atomic_uint_least16_t recording; /* which: 1, 2, 3 ... */
    atomic_llong byte_room;          /* bytes that it may still take */
    atomic_int outcome;              /* enum record_outcome */
    atomic_int phase;                /* record_phase */

    pthread_mutex_t lock; /* of what follows */
    double left_out_since;
    struct trace_lane *lanes; /* in order */
    uint16_t lane_count;
};

/* The thread's. */
extern _Thread_local struct trace_lane *trace_own;

#endif
