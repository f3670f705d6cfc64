#include "engine/latency.h"

#include <math.h>

static int bucket_of(double seconds)
{
    if (!(seconds > LATENCY_SECONDS_MIN))
        return 0;
    double place = 1 + log10(seconds / LATENCY_SECONDS_MIN) * LATENCY_BUCKETS_PER_DECADE;
    return place < LATENCY_BUCKET_COUNT ? (int)place : LATENCY_BUCKET_COUNT - 1;
}

/* The middle on the logarithmic scale: as far from either end in proportion. */
static double bucket_middle(int bucket)
{
    if (bucket == 0)
        return LATENCY_SECONDS_MIN;
    return LATENCY_SECONDS_MIN * pow(10, (bucket - 0.5) / LATENCY_BUCKETS_PER_DECADE);
}

void latency_add(struct latency *latency, double seconds)
{
    if (!(seconds > 0))
        seconds = 0;
    if (latency->count == 0 || seconds < latency->min_seconds)
        latency->min_seconds = seconds;
    if (seconds > latency->max_seconds)
        latency->max_seconds = seconds;
    latency->count++;
    latency->sum_seconds += seconds;
    latency->buckets[bucket_of(seconds)]++;
}

double latency_mean(const struct latency *latency)
{
    return latency->count == 0 ? 0 : latency->sum_seconds / (double)latency->count;
}

/* The value with so many smaller ones, nearly. */
static double value_at(const struct latency *latency, uint64_t index)
{
    uint64_t passed = 0;
    int bucket = 0;
    if (index == 0)
        return latency->min_seconds;
    while (bucket < LATENCY_BUCKET_COUNT - 1 && passed + latency->buckets[bucket] <= index)
        passed += latency->buckets[bucket++];
    return fmax(latency->min_seconds, fmin(latency->max_seconds, bucket_middle(bucket)));
}

double latency_quantile(const struct latency *latency, double fraction)
{
    if (latency->count == 0)
        return 0;
    double place = fraction * (double)(latency->count - 1);
    uint64_t index = (uint64_t)place;
    if (index >= latency->count - 1)
        return latency->max_seconds;
    double below = value_at(latency, index), above = value_at(latency, index + 1);
    return below + (place - (double)index) * (above - below);
}
