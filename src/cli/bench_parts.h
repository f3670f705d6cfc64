/* What each part of an adaptive plan is worth, one on top of the other: the ablation. */
#ifndef PHASOR_CLI_BENCH_PARTS_H
#define PHASOR_CLI_BENCH_PARTS_H

#include "bench_summary.h"

#define BENCH_PARTS 4

/* Each is what its mode has and the one before it has not; the first is on top of static TP. */
struct bench_part {
    enum bench_mode mode;
    const char *adds;
};
extern const struct bench_part bench_parts[BENCH_PARTS];

/* Whether all modes that it takes were asked for. */
bool bench_parts_asked(const struct bench_question *question);

/* How many times as fast with the part as without it, by medians; and with all of them as static
 * TP. 0: not known. */
struct bench_parts_worth {
    double of[BENCH_PARTS], all;
};

/* `cell`: of each mode. */
struct bench_parts_worth bench_parts_of(const struct bench_summary *cell);

/* Whether all of them are. */
bool bench_parts_are_known(const struct bench_parts_worth *of);

/* The geometric mean over cells that have all of them; `of`: [cell][mode]. */
struct bench_parts_worth bench_parts_mean(const struct bench_summary *of, int cell_count);

#endif
