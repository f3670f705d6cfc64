/* A random forest for regression: the mean of trees, each grown on a sample with repetition of the
 * data, each split the best of a random half of the features. Source: Breiman, "Random forests",
 * 2001. For a baseline, not for speed. */
#ifndef PHASOR_BENCH_FOREST_H
#define PHASOR_BENCH_FOREST_H

#include <stdint.h>

#define FOREST_FEATURES 6

struct forest;

/* NULL: out of memory. Borrows nothing. */
struct forest *forest_create(const double (*features)[FOREST_FEATURES], const double *targets,
                             int count, uint64_t seed);
void forest_destroy(struct forest *forest);

double forest_value(const struct forest *forest, const double features[FOREST_FEATURES]);

#endif
