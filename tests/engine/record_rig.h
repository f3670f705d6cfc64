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

struct record_run {
    struct engine *engine;
    struct phasor_batch_result result;
    struct recording recording;
    struct record_lane_view lanes[RIG_LANES_MAX];
    int lane_count;
    /* clocks[lane][node][other]: how many nodes of the other lane ended before the node began, by
     * its needs and theirs; meetings of collectives aside. */
    uint32_t (*clocks[RIG_LANES_MAX])[RIG_LANES_MAX];
};

/* Runs the rows and records, into the test's folder: OUT, and the trace beside. */
void record_run_open(struct record_run *run, const struct record_case *of);
void record_run_close(struct record_run *run);

/* The output rows of the same, not recorded. */
json_t *record_rows_plain(const struct record_case *of);

#endif
