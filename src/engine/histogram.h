/* Counts of values between fixed bounds, as Prometheus takes them. */
#ifndef PHASOR_ENGINE_HISTOGRAM_H
#define PHASOR_ENGINE_HISTOGRAM_H

#include <stdint.h>

#define HISTOGRAM_BOUNDS_MAX 24

/* `values` rise. */
struct histogram_bounds {
    int count;
    double values[HISTOGRAM_BOUNDS_MAX];
};

/* 1 ms to 10,000 s: in a batch a request may wait for hours. */
extern const struct histogram_bounds histogram_seconds;
/* 1 to a million tokens. */
extern const struct histogram_bounds histogram_tokens;

/* Start with {.bounds = ...}. */
struct histogram {
    const struct histogram_bounds *bounds;
    uint64_t counts[HISTOGRAM_BOUNDS_MAX + 1]; /* of values up to each bound, and above the last */
    uint64_t count;
    double sum;
};

void histogram_add(struct histogram *histogram, double value);

#endif
