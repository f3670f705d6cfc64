/* Passes of prefill and decode that are recorded by themselves, each once and for all boxes, and
 * replayed: what plans are composed of (bench/regret.c). One file for each recording; what is there
 * is not recorded again.
 *
 * A failure ends the program. */
#ifndef PHASOR_BENCH_PASSES_H
#define PHASOR_BENCH_PASSES_H

#include "engine/pass_recorder.h"
#include "parts.h"
#include "pool.h"
#include "replay/box_model.h"

#define PASSES_ROUNDS_MAX 99

struct passes {
    const char *model; /* its folder */
    const char *name;  /* of the model, as files have it */
    const char *folder;
    int rank_count;
    struct pool pool; /* of all recordings that passes_time replays */
};

/* Records those of the layout's cases that the round has not yet. Returns how many were recorded. */
int passes_record(const struct passes *passes, const struct layout *layout,
                  const struct pass_case *cases, int count, int round);

/* Adds the round's recordings of these cases to the pool; pool_settle comes behind the last. */
void passes_pool(struct passes *passes, const struct layout *layout, const struct pass_case *cases,
                 int count, int round);

/* By replay on the box. */
struct pass_time {
    double seconds;
    double parts[PART_COUNT]; /* means over the ranks, of their streams */
};

/* The median of all rounds' recordings, whose operations take what the pool says. */
struct pass_time passes_time(const struct passes *passes, const struct layout *layout,
                             const struct pass_case *of, int round_count,
                             const struct box_model *box);

#endif
