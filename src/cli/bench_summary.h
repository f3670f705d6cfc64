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
    uint64_t peak_bytes;                                 /* the most of a round */
    uint64_t collective_bytes;                           /* likewise, and by kind in that round */
    uint64_t bytes_of[PHASOR_COLLECTIVE_COUNT];
    double planning; /* seconds that are in `total`; 0: nobody plans, or its time is left out */
    struct bench_against static_tp, static_tp_int4;
};

/* "1.20 GiB: dispatch 800 MiB, combine 300 MiB, others 100 MiB": in all, and the largest kinds; ""
 * where nothing is known of them. */
#define BENCH_BYTES_WORDS 256
void bench_bytes_format(char out[BENCH_BYTES_WORDS], const struct bench_summary *of);

/* What devices held, or by the plan hold: bench_memory_words(). */
void bench_memory_format(char out[32], const struct bench_question *question,
                         const struct bench_summary *of);

/* Of every cell and mode, [cell][mode], to be freed with free(); false where memory is short: told
 * on standard error. */
bool bench_summarize(struct bench_summary **out, const struct bench_results *results);

#endif
