/* Prometheus' text format, version 0.0.4: families of samples. */
#ifndef PHASOR_ENGINE_EXPOSITION_H
#define PHASOR_ENGINE_EXPOSITION_H

#include "base/text.h"
#include "engine/histogram.h"

/* Out of memory shows in text_check at the end. */
struct exposition {
    struct text *out;
    const char *prefix;     /* of all names: "phasor:" */
    const char *model_name; /* a label of all samples; any bytes */
    const char *family;
};

/* A label beside model_name; {NULL} is none. */
struct exposition_label {
    const char *name, *value;
};

/* The samples of `name` follow. `type` is "counter", "gauge" or "histogram"; `help` is one line
 * without a backslash. Names are borrowed until the next family. */
void exposition_family(struct exposition *to, const char *name, const char *type, const char *help);

void exposition_sample(struct exposition *to, struct exposition_label first,
                       struct exposition_label second, double value);

/* A family of one sample. */
void exposition_counter(struct exposition *to, const char *name, const char *help, double value);
void exposition_gauge(struct exposition *to, const char *name, const char *help, double value);
void exposition_histogram(struct exposition *to, const char *name, const char *help,
                          const struct histogram *histogram);

#endif
