/* What the rounds of phasor bench come to, for each mode of a cell. */
#ifndef PHASOR_CLI_BENCH_SUMMARY_H
#define PHASOR_CLI_BENCH_SUMMARY_H

#include "bench_results.h"
#include "bench_stats.h"

struct bench_summary {
    const struct bench_plan *plan; /* NULL: the mode has none */
    const char *why;               /* then, or why a run has failed; NULL: none has */
    int rounds;                    /* that were run to their end; 0: nothing below is known */
    int failures;                  /* rounds that failed, and were not made since */
    struct bench_spread prefill, decode, between, total; /* the time of planning is in `total` */
    double ttft, tpot;                                   /* medians of the rounds' medians */
    double tokens_per_second;                            /* prompts and answers, by `total` */
    uint64_t collective_bytes, peak_bytes;               /* the most of a round */
    bool has_ratio;           /* to static TP, over the rounds that both have */
    bool is_static_tp;        /* the plan is the same: the ratio is 1, and was not measured */
    struct bench_ratio ratio; /* above 1: faster than static TP */
};

/* False where memory is short. */
bool bench_summarize(struct bench_summary *out, const struct bench_results *results, int cell,
                     enum bench_mode mode);

#endif
