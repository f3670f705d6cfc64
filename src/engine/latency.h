/* A distribution of times, in memory that does not grow with them: however many tokens a run has,
 * each gap between two of them counts.
 *
 * Buckets are spaced evenly on a logarithmic scale, so that what is read from them is off by a
 * share of the value, not by an amount. Count and mean are exact. */
#ifndef PHASOR_ENGINE_LATENCY_H
#define PHASOR_ENGINE_LATENCY_H

#include <stdint.h>

#define LATENCY_DECADES            12 /* from a microsecond to eleven days */
#define LATENCY_BUCKETS_PER_DECADE 120
#define LATENCY_BUCKET_COUNT       (1 + LATENCY_DECADES * LATENCY_BUCKETS_PER_DECADE)
#define LATENCY_SECONDS_MIN        1e-6
/* Of a quantile within those decades: half a bucket, 10^(1/240) - 1 = 0.0097, rounded up. Shorter
 * times are off by a microsecond at most. */
#define LATENCY_ERROR 0.01

/* Start with {0}. */
struct latency {
    uint64_t count;
    double sum_seconds;
    double min_seconds, max_seconds;
    uint64_t buckets[LATENCY_BUCKET_COUNT]; /* the first is for all that is shorter */
};

void latency_add(struct latency *latency, double seconds);

/* 0 where there is none, as vLLM has it. */
double latency_mean(const struct latency *latency);

/* The value below which a fraction (0 to 1) of the times lies, between neighbours in proportion, as
 * numpy.percentile has it; 0 where there is none. */
double latency_quantile(const struct latency *latency, double fraction);

#endif
