/* Problems for the planner: a profile whose times are simple to work out, and random ones. */
#ifndef TESTS_PLANNER_PROBLEMS_H
#define TESTS_PLANNER_PROBLEMS_H

#include "base/random.h"
#include "planner/planner.h"

#define PROBLEM_TABLES_MAX 64

/* A problem with all that it points to. Not to be copied. */
struct test_problem {
    struct plan_problem problem;
    struct model_shape shape;
    struct profile profile;
    struct work_table work[PROBLEM_TABLES_MAX];
    struct collective_table collectives[PROBLEM_TABLES_MAX];
    double log_ratios[PROBLEM_TABLES_MAX];
    double bytes[PROBLEM_TABLES_MAX][2], seconds[PROBLEM_TABLES_MAX][2];
    int64_t passes[4], waves[4];
    uint64_t expert_bytes; /* of one layout of the experts, on a rank */
};

/* Every operation at `flops` and `bytes` per second, every collective at `link` bytes per second
 * after `latency`. Memory is endless. */
struct simple_box {
    int rank_count;
    double flops, bytes, link, latency;
};
void problem_simple(struct test_problem *out, const struct model_shape *shape,
                    const struct simple_box *box);

/* Any shape that has a legal layout, speeds, memory that some plans do not fit into. */
void problem_random(struct test_problem *out, struct random *random);

#endif
