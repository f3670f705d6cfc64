/* A recorded run from within: its nodes with the times at which they were, and what depends on
 * what. */
#ifndef RECORD_RIG_H
#define RECORD_RIG_H

#include <jansson.h>

#include "base/record.h"
#include "engine/batch_recording.h"
#include "phasor.h"

#define RIG_LANES_MAX 64

struct record_case {
    const char *plan;
    int rank_count;
    enum phasor_transition transition;
    int64_t max_num_batched_tokens, max_num_seqs;
};

/* A lane's nodes as they were when the run had ended. */
struct rig_lane {
    uint32_t number;
    int rank;
    const char *name;
    enum record_lane_kind kind;
    size_t node_count, need_count, value_count;
    struct record_node *nodes;
    struct record_mark *needs;
    int64_t *values;
};

struct record_run {
    struct engine *engine;
    struct phasor_batch_result result;
    struct recording recording;
    struct rig_lane lanes[RIG_LANES_MAX];
    int lane_count;
    /* clocks[lane][node][other]: how many nodes of the other lane ended before the node began, by
     * its needs and theirs; meetings of collectives aside. */
    uint32_t (*clocks[RIG_LANES_MAX])[RIG_LANES_MAX];
};

/* The case's engine, and four rows of the test's folder with max_tokens of 4 to 7. */
struct engine *record_engine_open(const struct record_case *of, bool records);
struct phasor_batch_params record_batch(const struct record_case *of);

/* Runs the rows and records, into the test's folder: OUT, and the trace beside. The recording is
 * what the file holds. */
void record_run_open(struct record_run *run, const struct record_case *of);
void record_run_close(struct record_run *run);

/* The output rows of the same, not recorded. */
json_t *record_rows_plain(const struct record_case *of);

#endif
