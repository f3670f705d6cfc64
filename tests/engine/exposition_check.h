/* A strict reader of Prometheus' text format: what a test may ask of a file, and a failed assertion
 * for anything that the format does not allow. */
#ifndef EXPOSITION_CHECK_H
#define EXPOSITION_CHECK_H

#include <stddef.h>

struct exposition_sample {
    char name[128], labels[512]; /* labels as they stand between the braces */
    double value;
};

struct exposition_read {
    struct exposition_sample *samples;
    size_t count;
};

/* Each family has HELP and TYPE, once and before its samples, which stand together and once each;
 * counters end in _total and are not negative; buckets rise, and the last is the count. */
struct exposition_read exposition_read(const char *text);
void exposition_free(struct exposition_read *read);

/* The sum of the samples of that name whose labels have `label` in them (NULL: all); fails the test
 * when there is none. */
double exposition_sum(const struct exposition_read *read, const char *name, const char *label);

#endif
