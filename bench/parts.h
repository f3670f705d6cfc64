/* The parts of a pass that both the planner's prices and the executor's stages tell apart. */
#ifndef PHASOR_BENCH_PARTS_H
#define PHASOR_BENCH_PARTS_H

#include "planner/pass_cost.h"

enum part {
    PART_PROJECTION,
    PART_ATTENTION,
    PART_EXPERTS,
    PART_SHARED,
    PART_ROWS,
    PART_HEAD,
    PART_EXCHANGE,
    PART_OTHERS, /* that a rank waited for; the planner has the slowest rank's times instead */
    PART_HOST,   /* copies between it and devices, too, where they are told apart */
    PART_COUNT
};

extern const char *const part_words[PART_COUNT];

/* By enum stage. The stages of embedding and head have their collectives in them where stages are
 * timed as wholes. */
enum part part_of_stage(int stage);

/* Adds. */
void parts_of_cost(double parts[PART_COUNT], const struct pass_cost *cost);

/* "  projection 1.2/1.3 ..." in ms: as predicted, and as they were. */
void parts_print(const double predicted[PART_COUNT], const double found[PART_COUNT]);

#endif
