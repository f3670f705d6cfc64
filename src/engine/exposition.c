#include "engine/exposition.h"

#include <string.h>

#define NO_LABEL ((struct exposition_label){NULL, NULL})

/* A label's value: any bytes, of which those that are no UTF-8 become U+FFFD. */
static void append_value(struct text *out, const char *value)
{
    size_t length = strlen(value);
    for (size_t at = 0; at < length;) {
        uint32_t code_point;
        size_t step = utf8_decode(&code_point, value + at, length - at);
        if (step == 0)
            text_append_string(out, "\xEF\xBF\xBD");
        else if (value[at] == '\n')
            text_append_string(out, "\\n");
        else if (value[at] == '"' || value[at] == '\\')
            text_append_format(out, "\\%c", value[at]);
        else
            text_append(out, value + at, step);
        at += step == 0 ? 1 : step;
    }
}

static void append_label(struct exposition *to, struct exposition_label label)
{
    if (label.name == NULL)
        return;
    text_append_format(to->out, ",%s=\"", label.name);
    append_value(to->out, label.value);
    text_append_string(to->out, "\"");
}

static void append_sample(struct exposition *to, const char *suffix, struct exposition_label first,
                          struct exposition_label second, double value)
{
    text_append_format(to->out, "%s%s%s{model_name=\"", to->prefix, to->family, suffix);
    append_value(to->out, to->model_name);
    text_append_string(to->out, "\"");
    append_label(to, first);
    append_label(to, second);
    text_append_string(to->out, "} ");
    text_append_number(to->out, value);
    text_append_string(to->out, "\n");
}

void exposition_family(struct exposition *to, const char *name, const char *type, const char *help)
{
    to->family = name;
    text_append_format(to->out, "# HELP %s%s %s\n# TYPE %s%s %s\n", to->prefix, name, help,
                       to->prefix, name, type);
}

void exposition_sample(struct exposition *to, struct exposition_label first,
                       struct exposition_label second, double value)
{
    append_sample(to, "", first, second, value);
}

void exposition_counter(struct exposition *to, const char *name, const char *help, double value)
{
    exposition_family(to, name, "counter", help);
    append_sample(to, "", NO_LABEL, NO_LABEL, value);
}

void exposition_gauge(struct exposition *to, const char *name, const char *help, double value)
{
    exposition_family(to, name, "gauge", help);
    append_sample(to, "", NO_LABEL, NO_LABEL, value);
}

static void append_bucket(struct exposition *to, const char *bound, uint64_t count)
{
    append_sample(to, "_bucket", (struct exposition_label){"le", bound}, NO_LABEL, (double)count);
}

void exposition_histogram(struct exposition *to, const char *name, const char *help,
                          const struct histogram *histogram)
{
    struct text bound = {0};
    uint64_t count = 0;
    exposition_family(to, name, "histogram", help);
    for (int i = 0; i < histogram->bounds->count; i++) {
        text_clear(&bound);
        text_append_number(&bound, histogram->bounds->values[i]);
        count += histogram->counts[i];
        append_bucket(to, bound.bytes == NULL ? "" : bound.bytes, count);
    }
    append_bucket(to, "+Inf", histogram->count);
    append_sample(to, "_sum", NO_LABEL, NO_LABEL, histogram->sum);
    append_sample(to, "_count", NO_LABEL, NO_LABEL, (double)histogram->count);
    to->out->failed |= bound.failed;
    text_deinit(&bound);
}
