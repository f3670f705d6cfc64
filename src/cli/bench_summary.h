/* What the rounds of phasor bench come to, for each mode of a cell. */
#ifndef PHASOR_CLI_BENCH_SUMMARY_H
#define PHASOR_CLI_BENCH_SUMMARY_H

#include <stdio.h>

#include "bench_results.h"
#include "bench_stats.h"

/* Beside another mode, over the rounds that both have. By the clock and modelled the interval is of
 * 95 %; predicted, it is that of all draws. */
struct bench_against {
    bool is_known;
    bool is_same;             /* the plan is the same: the ratio is 1, and was not measured */
    struct bench_ratio ratio; /* above 1: faster than the other */
};

struct bench_summary {
    const struct bench_plan *plan; /* NULL: the mode has none */
    const char *why;               /* then, or why a run has failed; NULL: none has */
    int rounds;                    /* that were run to their end; 0: nothing below is known */
    int failures;                  /* rounds that failed, and were not made since */
    struct bench_spread prefill, decode, between, total; /* the time of planning is in `total` */
    double ttft, tpot;                                   /* medians of the rounds' medians */
    double tokens_per_second;                            /* prompts and answers, by `total` */
    uint64_t collective_bytes, peak_bytes;               /* the most of a round */
    struct bench_against static_tp, static_tp_int4;
};

/* A mode is no slower than another where the upper end of its ratio's interval reaches this. */
#define BENCH_REACHES 0.99

/* The same over cells: the least and the most of the ratios, and their geometric mean. */
struct bench_overall {
    int cells; /* 0: nothing else is known */
    double least, most, mean;
    /* Of the cells that have an interval, because their plan is not the other's: those whose upper
     * end does not reach BENCH_REACHES, and the least upper end. */
    int timed, short_of;
    double least_high;
};

struct bench_overalls {
    struct bench_overall static_tp[BENCH_MODE_COUNT], static_tp_int4[BENCH_MODE_COUNT];
};

/* Cells of which the ratio is not known are left out. */
void bench_overalls_add(struct bench_overalls *to, enum bench_mode mode,
                        const struct bench_summary *cell);

/* Whether the interval says that the mode is slower; false also where there is none. */
bool bench_falls_short(const struct bench_against *of);

/* A line for each mode, between `before` and `behind`. What is predicted has no interval of 95 %:
 * nothing is said of it then. */
void bench_overalls_tell(const struct bench_overalls *of, const struct bench_question *question,
                         FILE *file, const char *before, const char *behind);

/* False where memory is short. */
bool bench_summarize(struct bench_summary *out, const struct bench_results *results, int cell,
                     enum bench_mode mode);

#endif
