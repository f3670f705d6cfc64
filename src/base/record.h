/* What a run did and what waited for what: nodes on the lanes of a trace (base/trace.h), from which
 * replay finds when all of it would have happened elsewhere (replay/recording.h).
 *
 * A lane is a sequence of nodes. A node begins when the one before it on its lane has ended and all
 * its needs have, which are ends of nodes of other lanes: a *mark* is such an end. Whoever lets
 * another go on hands over a mark; who goes on needs it.
 *
 * Lanes are of two sorts. On the lane of a stream a node is what stands between record_begin and
 * record_end. On the lane of a host all that its thread does is work, but between record_pause and
 * record_resume; it is cut into nodes where somebody needs it, or it needs somebody. So no time is
 * lost or counted twice.
 *
 * Nothing is kept before record_start, and asking costs a load then.
 *
 * Threads: one drives, which starts, stops, looks and forgets. The others may be at work meanwhile:
 * what they tell reaches a lane whole or not at all, nothing of it behind record_stop, and nothing
 * in a later recording that they have begun to tell in an earlier one. But a graph has no loose
 * ends only where the threads whose work is to be in it rest at start and stop: else of what was
 * under way the beginning or the end is missing, such as a member of a collective
 * (engine/batch_recording.h leaves out what is not whole).
 */
#ifndef PHASOR_BASE_RECORD_H
#define PHASOR_BASE_RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct trace;
struct trace_lane;

enum record_lane_kind {
    RECORD_LANE_NONE,   /* has no nodes */
    RECORD_LANE_STREAM, /* of normal priority */
    RECORD_LANE_LOW,    /* of low priority */
    RECORD_LANE_HOST,   /* its time is that of its thread on a CPU: others work beside it, and what
                         * it is kept waiting by them is no work of its own */
    RECORD_LANE_DRIVER, /* a host whose time is the clock's: while it works nobody else does, and
                         * what it asks of the system (files) counts */
    RECORD_LANE_READS,  /* reads of files, in the order in which they ended */
    RECORD_LANE_KIND_COUNT
};

enum record_node_kind {
    RECORD_NODE_COMPUTE,
    RECORD_NODE_COLLECTIVE,
    RECORD_NODE_COPY, /* between host and device */
    RECORD_NODE_READ,
    RECORD_NODE_WAIT, /* nothing but its needs */
    RECORD_NODE_KIND_COUNT
};

/* The first `count` nodes of a lane have ended; all zero: nothing has to. One of an earlier
 * recording means nothing in this one. */
struct record_mark {
    uint16_t lane, recording;
    uint32_t count;
};

#define RECORD_DIMS 5

/* What was computed; of what kind is not known here (layout/work.h). */
struct record_work {
    int kind;
    int64_t dims[RECORD_DIMS];
    uint64_t flops, bytes;
};

/* A member's call. */
struct record_collective {
    uint32_t group, number; /* any number of the group's, and 1, 2, 3 ... within it */
    int op, tag;            /* of the caller's meaning */
    int member, size;
    const int *ranks;      /* [size] */
    const int64_t *counts; /* [size] */
};

struct record_node {
    const char *name; /* of static storage */
    uint64_t duration_ns;
    uint64_t begin_ns, end_ns; /* by the wall's clock, what it paused included */
    uint64_t bytes, flops;
    uint32_t need_first, need_count; /* of the lane's needs */
    uint32_t value_first;            /* of a collective: of the lane's values */
    int32_t layer;                   /* -1: none */
    int32_t dims[RECORD_DIMS];
    uint16_t threads;
    uint8_t kind; /* enum record_node_kind */
    uint8_t work, phase, stage;
    bool to_host; /* of a copy */
};

/* Of a collective's values. */
enum record_value {
    RECORD_VALUE_GROUP,
    RECORD_VALUE_NUMBER,
    RECORD_VALUE_OP,
    RECORD_VALUE_TAG,
    RECORD_VALUE_MEMBER,
    RECORD_VALUE_SIZE,
    RECORD_VALUES /* behind them the ranks, and then the counts */
};

/* How a recording ended. */
enum record_outcome {
    RECORD_WHOLE,
    RECORD_FULL,     /* it would take more bytes than it was to take */
    RECORD_NO_MEMORY /* for them */
};

/* The lane takes part from here on, as one of that kind, before a thread works on it; NULL is
 * allowed. */
void record_lane_set(struct trace_lane *lane, enum record_lane_kind kind);

/* Forgets what was kept, and keeps from here on. Where that takes more than `byte_max` bytes, or
 * there is no memory, it stops: half a graph is none. A node takes sizeof(struct record_node), a
 * need that of a mark, and a collective 48 bytes and 16 for each member. */
void record_start(struct trace *trace, int64_t byte_max);
enum record_outcome record_stop(struct trace *trace);

/* How the recording has ended, or, where it goes on, RECORD_WHOLE. Any thread. */
enum record_outcome record_outcome(const struct trace *trace);

/* Ends it, and gives the memory of what was kept back. Any thread, while nobody looks. */
void record_forget(struct trace *trace);

/* Of what runs from now on (replay/recording.h). By the thread that drives. */
void record_phase(struct trace *trace, int phase);

/* ---- For a thread that works ------------------------------------------------------------------
 */

/* Whether anything is kept of what this thread does. */
bool record_is_on(void);

/* Where its lane stands: what it has done, and all that it has needed. Of a host some microseconds
 * of work may be missing, which are the next node's then: so not every command that is put on a
 * stream makes one. */
struct record_mark record_mark(void);

/* The same of a lane on which nobody works now, nor begins to meanwhile; NULL is allowed. */
struct record_mark record_mark_of(struct trace_lane *lane);

/* The next node of the thread's lane needs it. */
void record_need(struct record_mark mark);

/* It waits: what passes until record_resume is no work. A host begins its work with record_resume,
 * too. */
void record_pause(void);
void record_resume(void);

/* The thread's nodes are on another lane of its rank from here on (NULL: on its own again), on
 * which nobody works meanwhile. Spans stay where they are. */
void record_as(struct trace_lane *lane);
struct trace_lane *record_lane(void); /* on which they are; NULL: on none */

/* A node of a stream begins, at best anew; and ends, under the name and with the bytes that its
 * work gave itself (trace_name, trace_bytes), or else by this name: before trace_add_named. One
 * whose name is "", or that record_drop was called for, is none: its needs are the next one's. */
void record_begin(void);
void record_end(const char *name);
void record_drop(void);

/* The node that has begun was over at `at_ns` (record_now), under this name; another one begins
 * there, of as many threads. */
void record_cut(const char *name, uint64_t at_ns);

/* What the node is that has begun; else it computes, by one thread. */
void record_copy(bool to_host); /* between host and device */
void record_work(const struct record_work *work);
void record_threads(int threads);
void record_collective(const struct record_collective *call);

/* A node that began and ended at these times (record_now) and is told of now, with what its lane
 * needs; on the lane that record_lane tells. */
void record_add(enum record_node_kind kind, const char *name, uint64_t begin_ns, uint64_t end_ns,
                uint64_t bytes, int threads);

/* The same of a read on the lane of reads, which it begins when the mark and the read before it
 * have ended, if that was later than `begin_ns`. Returns its end. One thread at a time tells of a
 * lane's reads. */
struct record_mark record_read(struct trace_lane *reads, const char *name, uint64_t begin_ns,
                               uint64_t end_ns, uint64_t bytes, struct record_mark need);

uint64_t record_now(void); /* nanoseconds; 0 where nothing is kept */

/* ---- For who looks, behind record_stop --------------------------------------------------------
 */

struct record_list;

struct record_lane_view {
    uint32_t number; /* of marks */
    int rank;
    const char *name;
    enum record_lane_kind kind;
    size_t node_count;
    const struct record_list *nodes, *needs, *values; /* for what follows */
};

const struct record_node *record_node_at(const struct record_lane_view *lane, size_t n);

/* The node's i-th. */
struct record_mark record_need_at(const struct record_lane_view *lane,
                                  const struct record_node *node, size_t i);

/* By enum record_value; NULL: the node is no collective. */
const int64_t *record_values_of(const struct record_lane_view *lane,
                                const struct record_node *node);

/* All lanes that take part, in the order of trace_look; what they show stays until record_forget or
 * record_start. */
void record_look(struct trace *trace,
                 void (*look)(void *context, const struct record_lane_view *lane), void *context);

#endif
