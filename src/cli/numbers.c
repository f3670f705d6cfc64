#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "options.h"

struct unit {
    const char *text;
    double factor;
};

static const struct unit count_units[] = {{"", 1},       {"k", 1e3},    {"m", 1e6},   {"g", 1e9},
                                          {"K", 0x1p10}, {"M", 0x1p20}, {"G", 0x1p30}};

static const struct unit byte_units[] = {
    {"", 1},       {"B", 1},        {"K", 0x1p10},   {"M", 0x1p20},   {"G", 0x1p30},
    {"T", 0x1p40}, {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40},
    {"kB", 1e3},   {"KB", 1e3},     {"MB", 1e6},     {"GB", 1e9},     {"TB", 1e12},
};

/* A decimal number (1.5 is allowed before a unit) times its unit. */
static bool parse(double *out, const char *text, const struct unit *units, size_t count)
{
    char *end;
    if (*text < '0' || *text > '9')
        return false; /* strtod takes signs, "inf", "nan" and white space */
    size_t digits = strspn(text, "0123456789.");
    double number = strtod(text, &end);
    if (end != text + digits)
        return false;
    for (size_t i = 0; i < count; i++) {
        if (strcmp(end, units[i].text) == 0) {
            double value = number * units[i].factor;
            *out = value;
            return value < 0x1p63 && value == floor(value);
        }
    }
    return false;
}

/* Plain digits keep all 63 bits; a double has 53. */
static bool parse_plain(int64_t *out, const char *text)
{
    if (*text == 0 || text[strspn(text, "0123456789")] != 0)
        return false;
    errno = 0;
    long long value = strtoll(text, NULL, 10);
    if (errno != 0)
        return false;
    *out = value;
    return true;
}

bool number_parse_count(int64_t *out, const char *text)
{
    double value;
    if (parse_plain(out, text))
        return true;
    if (!parse(&value, text, count_units, sizeof count_units / sizeof *count_units))
        return false;
    *out = (int64_t)value;
    return true;
}

bool number_parse_bytes(uint64_t *out, const char *text)
{
    double value;
    int64_t plain;
    if (parse_plain(&plain, text)) {
        *out = (uint64_t)plain;
        return true;
    }
    if (!parse(&value, text, byte_units, sizeof byte_units / sizeof *byte_units))
        return false;
    *out = (uint64_t)value;
    return true;
}
