/* Tables of a name and a value, out of a JSON object. */
#ifndef PHASOR_CLI_TABLE_H
#define PHASOR_CLI_TABLE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define TABLE_NAME_WIDTH 19 /* the name and a space */

void table_row(const char *name, const char *value);

/* Bytes of the control character that the text (UTF-8) begins with, C0, DEL or C1; 0: it begins
 * with none. What files say of themselves is printed with '?' for each, as by table_put_safe: rows
 * and lines here do so. */
size_t table_control_bytes(const char *text);
void table_put_safe(FILE *file, const char *text);

/* A line that is put together piece by piece, each filled up to `width` with blanks, at least one
 * (0: as it is); blanks at the end are not printed. Start with {0}; printing empties it. */
struct table_line {
    char text[512];
    size_t length;
};
void table_add(struct table_line *line, int width, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void table_print(struct table_line *line);

/* Of a row of phasor_plan's "plans": it has times, and a run may have it. */
bool table_plan_is_possible(const json_t *row);

/* 0 and "none" where there is nothing of the kind. */
int64_t table_int(const json_t *object, const char *key);
double table_seconds(const json_t *object, const char *key); /* of a JSON real */
const char *table_text(const json_t *object, const char *key);

/* 46702792704 as "46.7 billion". */
void table_format_count(char *out, size_t capacity, double count);

/* 1610612736 as "1.50 GiB". */
void table_format_bytes(char *out, size_t capacity, double bytes);

/* "0.0021 s", "1.3 s", "1674 s"; returns `out`. */
#define TABLE_SECONDS_BYTES 32
const char *table_format_seconds(char out[TABLE_SECONDS_BYTES], double seconds);
#define TABLE_SECONDS(seconds) table_format_seconds((char[TABLE_SECONDS_BYTES]){0}, seconds)

#endif
