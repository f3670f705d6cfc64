/* What phasor bench comes to over all loads, for each mode beside static TP. */
#ifndef PHASOR_CLI_BENCH_OVERALL_H
#define PHASOR_CLI_BENCH_OVERALL_H

#include "bench_summary.h"

/* A mode is no slower than another where the upper end of its ratio's interval reaches this. */
#define BENCH_REACHES 0.99

/* Of a mode's ratios to another's, over cells of which they are known. */
struct bench_overall {
    int cells;                /* 0: nothing else is known */
    double least, most, mean; /* the geometric one */
    /* Of the cells that have an interval, because their plan is not the other's: those whose upper
     * end does not reach BENCH_REACHES, and the least upper end. */
    int timed, short_of;
    double least_high;
    /* Predicted: of each draw that has all these cells the least ratio, and over draws the median
     * and the least of those. */
    int draws; /* 0: these are not known */
    double worst_median, worst_least;
};

struct bench_overalls {
    struct bench_overall static_tp[BENCH_MODE_COUNT], static_tp_int4[BENCH_MODE_COUNT];
};

/* Whether the interval says that the mode is slower; false also where there is none. */
bool bench_falls_short(const struct bench_against *of);

/* `of`: [cell][mode], all of the results'. */
void bench_overalls_make(struct bench_overalls *out, const struct bench_results *results,
                         const struct bench_summary *of);

/* A line for each mode, between `before` and `behind`. What is predicted has no interval of 95 %:
 * of its draws the worst loads are told instead. */
void bench_overalls_tell(const struct bench_overalls *of, const struct bench_question *question,
                         FILE *file, const char *before, const char *behind);

#endif
