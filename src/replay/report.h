/* What a simulation says of a run: where each phase's time went, the critical path, and how busy
 * the links were. Means are over the ranks. Pure data; report_write makes JSON of it.
 */
#ifndef PHASOR_REPLAY_REPORT_H
#define PHASOR_REPLAY_REPORT_H

#include <stdint.h>

#include "base/status.h"
#include "base/text.h"
#include "replay/box_model.h"
#include "replay/recording.h"
#include "replay/simulate.h"

#define REPORT_STEPS_MAX 12 /* of the critical path, that are told one by one */

/* What a rank's first lane of normal priority did in a phase; a mean over the ranks. Computation,
 * collectives, copies and waits add up to the time for which the lane was in that phase. */
struct report_phase {
    double wall_seconds; /* of the lane that drives: from the end of its node before */
    double compute_seconds[RECORDING_NAMES_MAX];    /* by stage */
    double collective_seconds[RECORDING_NAMES_MAX]; /* by tag: from when the last member has come */
    uint64_t collective_bytes[RECORDING_NAMES_MAX]; /* by tag, that all ranks sent (comm/comm.h) */
    double copy_seconds;
    double others_seconds;     /* waited for the last member of a collective */
    double transition_seconds; /* waited for experts that change their layout: exposed */
    double wait_seconds;       /* waited for anything else: the host, other lanes */
    double hidden_seconds;     /* in which other lanes of the rank were at bringing experts, also
                                * where streams kept them waiting, beside transition_seconds */
    uint64_t tokens; /* of the recording's `about`, such as "decode_tokens"; 0: not told */
};

enum path_kind {
    PATH_COMPUTE,    /* by stage, of lanes of normal priority */
    PATH_BESIDE,     /* by stage, of lanes of low priority, with what streams keep them waiting */
    PATH_COLLECTIVE, /* by tag, with the links' latency */
    PATH_COPY,
    PATH_READ,
    PATH_HOST, /* what threads of the host did */
    PATH_KIND_COUNT
};

/* A part of the critical path, of one kind and name. */
struct path_part {
    enum path_kind kind;
    uint8_t
        name; /* a stage's of PATH_COMPUTE and PATH_BESIDE, a tag's of PATH_COLLECTIVE; else 0 */
    double seconds;
    uint64_t count; /* of nodes */
};

struct path_step {
    uint32_t node, lane;
    double seconds;
};

struct report {
    double seconds;             /* of the whole run */
    uint64_t rows, rows_before; /* of its batch, by the recording's `about`, and of those the ones
                                 * that an earlier run did: where there are any, what was recorded
                                 * is a part of a run. 0: not told */
    struct report_phase phases[RECORD_PHASE_COUNT];
    struct path_part *path; /* the longest first */
    int path_count;
    double path_gap_seconds;                  /* on the path, and in no node */
    struct path_step steps[REPORT_STEPS_MAX]; /* the longest first */
    int step_count;
};

/* Of a recording that was checked, and a simulation of it. */
enum status report_make(struct report *out, const struct recording *recording,
                        const struct simulation *simulation, struct error *err) MUST_CHECK;
void report_deinit(struct report *report); /* a zero one is allowed */

/* What the simulation was of. */
struct report_subject {
    const struct recording *recording;
    const struct box_model *box; /* NULL: as recorded */
    const struct simulation *simulation;
    enum durations durations;
    double link_scale; /* 0: not scaled */
};

/* "replay", "modelled" or "as recorded". */
const char *report_label(const struct report_subject *subject);

/* Appends a JSON object; its keys are in phasor(1). */
void report_write(struct text *out, const struct report *report,
                  const struct report_subject *subject);

#endif
