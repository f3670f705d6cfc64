#include "exposition_check.h"

#include <criterion/criterion.h>
#include <ctype.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define FAMILIES_MAX 64

struct family {
    char name[128], type[16];
    size_t first; /* of its samples */
};

static struct family families[FAMILIES_MAX];
static size_t family_count;

/* ---- Lines --------------------------------------------------------------------------------- */

/* A name at *at, which is passed. */
static void read_name(char out[128], const char **at, bool may_have_colon)
{
    size_t length = 0;
    while (isalnum((unsigned char)(*at)[length]) || (*at)[length] == '_' ||
           (may_have_colon && (*at)[length] == ':'))
        length++;
    cr_assert(length > 0 && length < 128 && !isdigit((unsigned char)**at), "no name: %.40s", *at);
    memcpy(out, *at, length);
    out[length] = 0;
    *at += length;
}

static void pass(const char **at, const char *text)
{
    cr_assert_eq(strncmp(*at, text, strlen(text)), 0, "expected \"%s\": %.60s", text, *at);
    *at += strlen(text);
}

static const char *line_end(const char *at)
{
    const char *end = strchr(at, '\n');
    cr_assert_not_null(end, "the last line is not whole: %s", at);
    return end;
}

/* "# HELP name text", then "# TYPE name type". */
static void read_family(const char **at)
{
    char name[128], again[128];
    pass(at, "# HELP ");
    read_name(name, at, true);
    pass(at, " ");
    const char *end = line_end(*at);
    cr_assert(end > *at, "%s has no help", name);
    *at = end + 1;
    pass(at, "# TYPE ");
    read_name(again, at, true);
    cr_assert_str_eq(again, name);
    pass(at, " ");
    for (size_t i = 0; i < family_count; i++)
        cr_assert_str_neq(families[i].name, name, "%s comes twice", name);
    cr_assert_lt(family_count, FAMILIES_MAX);
    struct family *family = &families[family_count++];
    strcpy(family->name, name);
    read_name(again, at, false);
    cr_assert(strcmp(again, "counter") == 0 || strcmp(again, "gauge") == 0 ||
                  strcmp(again, "histogram") == 0,
              "%s is a %s", name, again);
    memcpy(family->type, again, sizeof family->type);
    pass(at, "\n");
}

/* A label's value, its quotes included. */
static void pass_quoted(const char **at)
{
    pass(at, "\"");
    while (**at != '"') {
        cr_assert(**at != '\n' && **at != 0, "a label's value does not end");
        if (**at == '\\') {
            ++*at;
            cr_assert(**at == '\\' || **at == '"' || **at == 'n', "\\%c is no escape", **at);
        }
        ++*at;
    }
    ++*at;
}

static void read_labels(char out[512], const char **at)
{
    char name[128];
    pass(at, "{");
    const char *begin = *at;
    for (bool is_first = true; **at != '}'; is_first = false) {
        if (!is_first)
            pass(at, ",");
        read_name(name, at, false);
        pass(at, "=");
        pass_quoted(at);
    }
    cr_assert_lt(*at - begin, 512);
    memcpy(out, begin, (size_t)(*at - begin));
    out[*at - begin] = 0;
    pass(at, "}");
}

static bool belongs(const char *name, const struct family *family)
{
    static const char *const suffixes[] = {"_bucket", "_sum", "_count"};
    size_t length = strlen(family->name);
    if (strcmp(family->type, "histogram") != 0)
        return strcmp(name, family->name) == 0;
    if (strncmp(name, family->name, length) != 0)
        return false;
    for (size_t i = 0; i < 3; i++) {
        if (strcmp(name + length, suffixes[i]) == 0)
            return true;
    }
    return false;
}

static void read_sample(struct exposition_sample *out, const char **at)
{
    char *end;
    cr_assert_gt(family_count, 0, "a sample without a family: %.60s", *at);
    const struct family *family = &families[family_count - 1];
    read_name(out->name, at, true);
    cr_assert(belongs(out->name, family), "%s stands among %s", out->name, family->name);
    read_labels(out->labels, at);
    pass(at, " ");
    cr_assert(!isspace((unsigned char)**at));
    out->value = strtod(*at, &end);
    cr_assert(end > *at && *end == '\n' && isfinite(out->value), "no value: %.60s", *at);
    *at = end + 1;
}

/* ---- Families ------------------------------------------------------------------------------ */

/* Values between these bounds, so many of them: what their sum may be. */
struct bounds_of_sum {
    double below, above;
};

static void check_histogram(const struct exposition_sample *samples, size_t count, const char *name)
{
    double bound = -INFINITY, last = 0, seen = 0;
    struct bounds_of_sum sums = {0, 0};
    cr_assert_gt(count, 3, "%s", name);
    for (size_t i = 0; i + 2 < count; i++) {
        const char *label = strstr(samples[i].labels, "le=\"");
        cr_assert(label != NULL && strstr(samples[i].name, "_bucket") != NULL, "%s", name);
        double next = strtod(label + 4, NULL);
        cr_assert_gt(next, bound, "%s: bounds rise", name);
        cr_assert_geq(samples[i].value, last, "%s: buckets are cumulative", name);
        seen = samples[i].value - last;
        sums.below += seen > 0 && bound > 0 ? seen * bound : 0;
        sums.above += seen > 0 ? seen * next : 0;
        bound = next;
        last = samples[i].value;
    }
    cr_assert_eq(bound, INFINITY, "%s has no bucket +Inf", name);
    const struct exposition_sample *sum = &samples[count - 2], *all = &samples[count - 1];
    cr_assert(strstr(sum->name, "_sum") != NULL && strstr(all->name, "_count") != NULL, "%s", name);
    cr_assert_eq(all->value, last, "%s: +Inf is the count", name);
    cr_assert(sum->value >= sums.below * 0.999999 && sum->value <= sums.above * 1.000001,
              "%s: a sum of %g, and by its buckets %g to %g", name, sum->value, sums.below,
              sums.above);
}

static void check_family(const struct family *family, const struct exposition_sample *samples,
                         size_t count)
{
    size_t length = strlen(family->name);
    cr_assert_gt(count, 0, "%s has no samples", family->name);
    for (size_t i = 0; i < count; i++) {
        for (size_t j = 0; j < i; j++)
            cr_assert(strcmp(samples[i].name, samples[j].name) != 0 ||
                          strcmp(samples[i].labels, samples[j].labels) != 0,
                      "%s{%s} comes twice", samples[i].name, samples[i].labels);
    }
    if (strcmp(family->type, "histogram") == 0)
        check_histogram(samples, count, family->name);
    if (strcmp(family->type, "counter") != 0)
        return;
    cr_assert(length > 6 && strcmp(family->name + length - 6, "_total") == 0, "counter %s",
              family->name);
    for (size_t i = 0; i < count; i++)
        cr_assert_geq(samples[i].value, 0, "%s", family->name);
}

struct exposition_read exposition_read(const char *text)
{
    struct exposition_read read = {0};
    size_t capacity = 0;
    family_count = 0;
    for (const char *at = text; *at != 0;) {
        if (*at == '#') {
            read_family(&at);
            families[family_count - 1].first = read.count;
            continue;
        }
        if (read.count == capacity) {
            capacity = 2 * capacity + 64;
            read.samples = realloc(read.samples, capacity * sizeof *read.samples);
        }
        read_sample(&read.samples[read.count++], &at);
    }
    cr_assert_gt(family_count, 0, "nothing is there");
    for (size_t i = 0; i < family_count; i++) {
        size_t end = i + 1 < family_count ? families[i + 1].first : read.count;
        check_family(&families[i], read.samples + families[i].first, end - families[i].first);
    }
    return read;
}

void exposition_free(struct exposition_read *read)
{
    free(read->samples);
    *read = (struct exposition_read){0};
}

double exposition_sum(const struct exposition_read *read, const char *name, const char *label)
{
    double sum = 0;
    size_t found = 0;
    for (size_t i = 0; i < read->count; i++) {
        if (strcmp(read->samples[i].name, name) != 0 ||
            (label != NULL && strstr(read->samples[i].labels, label) == NULL))
            continue;
        sum += read->samples[i].value;
        found++;
    }
    cr_assert_gt(found, 0, "no %s{%s}", name, label == NULL ? "" : label);
    return sum;
}
