/* What a run did: a graph of operations, with which of them each had to wait for.
 *
 * A recording has lanes, each a sequence of nodes: one lane for each stream of a rank, each thread
 * of the host that drives, and the reads of a rank. A node begins when the one before it on its
 * lane has ended and all its `needs` have; it holds nothing that depends on when that was. So the
 * graph is the same whatever the links are, and replay (simulate.h) finds the times.
 *
 * Durations are of work alone: while a run is recorded the ranks work one at a time, and what a
 * lane waits for is in `needs`, never in a duration. Pure data; docs/recording-format.md describes
 * the file.
 */
#ifndef PHASOR_REPLAY_RECORDING_H
#define PHASOR_REPLAY_RECORDING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "layout/work.h"

/* What a file begins with. */
#define RECORDING_MAGIC "PHASORRC"

#define RECORDING_RANKS_MAX   64
#define RECORDING_STRINGS_MAX 65536
#define RECORDING_NAMES_MAX   256 /* of stages, and of tags */

/* Of the JSON: a run writes some kilobytes, and reading it takes near a hundred times as much. */
#define RECORDING_ABOUT_BYTES_MAX ((size_t)1 << 20)

/* With so many ranks: replay looks, again and again, at all lanes that work at once. A run has at
 * most 7 of a rank (its host, passes, what runs beside them, two of the mixed way, reads, files)
 * and 2 of none (the driver and the mover). */
#define RECORDING_LANES_MAX(rank_count) (16 * ((rank_count) + 1))

enum lane_kind {
    LANE_STREAM, /* of normal priority: its computation takes the rank's compute slot */
    LANE_LOW,    /* of low priority: computes while no LANE_STREAM of its rank does */
    LANE_HOST,   /* a thread that puts work on streams, and waits for them; takes no slot */
    LANE_READS,  /* file reads of a rank, in the order in which they are served */
    LANE_KIND_COUNT
};

enum node_kind {
    NODE_COMPUTE,    /* `duration`, on the lane's slot */
    NODE_COLLECTIVE, /* meets the other members' node of its group and number */
    NODE_COPY,       /* `bytes` between host and device */
    NODE_READ,       /* `bytes` of a file */
    NODE_WAIT,       /* nothing but its needs */
    NODE_KIND_COUNT
};

/* comm/comm.h */
enum collective_op {
    COLLECTIVE_OP_ALL_GATHER,
    COLLECTIVE_OP_REDUCE_SCATTER,
    COLLECTIVE_OP_ALL_REDUCE,
    COLLECTIVE_OP_ALL_TO_ALL,
    COLLECTIVE_OP_EXCHANGE,
    COLLECTIVE_OP_COUNT
};

enum record_phase { RECORD_BETWEEN, RECORD_PREFILL, RECORD_DECODE, RECORD_PHASE_COUNT };

/* Each node is of one lane. */
struct recording_lane {
    enum lane_kind kind;
    int rank;       /* -1: of none (the thread that drives the run): only a LANE_HOST, which then
                     * has no collectives and copies */
    uint32_t name;  /* index of a string */
    uint32_t first; /* nodes[first .. first + count - 1], in their order */
    uint32_t count;
};

struct recording_node {
    uint64_t duration_ns; /* as measured, alone; of a collective: the copying and adding that this
                           * member did; of a wait 0 */
    uint64_t bytes;       /* read and written in memory; of a copy and a read: moved */
    uint64_t flops;
    uint32_t name;       /* index of a string */
    uint32_t need_first; /* needs[need_first .. + need_count - 1] */
    uint32_t need_count;
    int32_t layer;           /* -1: none */
    uint8_t kind;            /* enum node_kind */
    uint8_t work;            /* enum work_kind */
    uint8_t phase;           /* enum record_phase, of the pass that it belongs to */
    uint8_t stage;           /* enum stage of exec, by the strings of stage_names */
    uint16_t threads;        /* that worked at it */
    uint8_t to_host;         /* of a copy: 1: from the device to the host; else 0 */
    uint8_t reserved;        /* 0 */
    int32_t dims[WORK_DIMS]; /* of the work, 0 where it has fewer; layout/work.h */
    uint32_t collective;     /* of NODE_COLLECTIVE: index of collectives */
};

/* One member's call. */
struct recording_collective {
    uint32_t group;       /* index of groups */
    uint32_t number;      /* 1, 2, 3 ... of its group, the same at all members */
    uint8_t op;           /* enum collective_op */
    uint8_t member;       /* of the group */
    uint8_t tag;          /* by the strings of tag_names */
    uint8_t reserved;     /* 0 */
    uint32_t count_first; /* counts[count_first .. + group size - 1]: bytes; calls may share them.
                           * ALL_GATHER, REDUCE_SCATTER: of each member's part, equal at all;
                           * ALL_REDUCE: of the whole, in the first, and zeros; ALL_TO_ALL,
                           * EXCHANGE: that this member sends to each, its own being 0 */
};

struct recording_group {
    int size;
    uint8_t ranks[RECORDING_RANKS_MAX];
};

/* All arrays are the recording's own, each string too (memory_free). Indices are within their
 * arrays; every node, collective and need is used once: the need counts of all nodes together are
 * need_count. Needs are of other nodes, and the graph has no cycle, where all members of a
 * collective have to come before it ends for any. Durations, bytes, flops and a call's counts each
 * add up to less than 2^63. recording_read and recording_check make sure. */
struct recording {
    int rank_count;
    double wall_seconds; /* of the recorded run itself, its ranks one at a time */
    char *about;         /* JSON object: docs/recording-format.md has the keys */
    char **strings;
    char **stage_names;
    char **tag_names;
    struct recording_lane *lanes;
    struct recording_node *nodes;
    uint32_t *needs; /* node indices */
    struct recording_collective *collectives;
    struct recording_group *groups;
    int64_t *counts;
    uint32_t string_count, stage_count, tag_count, lane_count, node_count, need_count,
        collective_count, group_count, count_count;
};

void recording_deinit(struct recording *recording); /* a zero one is allowed */

/* One sentence for the first thing that does not hold. Names are valid UTF-8 without control
 * characters. `path` is for the sentence. */
enum status recording_check(const struct recording *recording, const char *path,
                            struct error *err) MUST_CHECK;

/* Whole or not at all: beside `path`, then renamed; a device is written to as it is. What
 * recording_check refuses is not written. */
enum status recording_write(const struct recording *recording, const char *path,
                            struct error *err) MUST_CHECK;

/* Checked: a file that is torn, foreign or made with ill intent is refused with one sentence, and
 * never takes more memory than a small multiple of its length, and some tens of megabytes. */
enum status recording_read(struct recording *out, const char *path, struct error *err) MUST_CHECK;

/* The same of a file that is in memory; `path` is for sentences. */
enum status recording_parse(struct recording *out, const void *bytes, size_t length,
                            const char *path, struct error *err) MUST_CHECK;

#endif
