#include "table.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

size_t table_control_bytes(const char *text)
{
    unsigned char first = (unsigned char)text[0], second = (unsigned char)text[first != 0];
    if (first == 0xC2 && second >= 0x80 && second < 0xA0)
        return 2;
    return (first > 0 && first < 0x20) || first == 0x7F ? 1 : 0;
}

void table_put_safe(FILE *file, const char *text)
{
    while (*text != '\0') {
        size_t control = table_control_bytes(text);
        fputc(control > 0 ? '?' : *text, file);
        text += control > 0 ? control : 1;
    }
}

void table_row(const char *name, const char *value)
{
    printf("%-*s", TABLE_NAME_WIDTH, name);
    table_put_safe(stdout, value);
    putchar('\n');
}

void table_add(struct table_line *line, int width, const char *format, ...)
{
    char piece[256];
    va_list args;
    va_start(args, format);
    vsnprintf(piece, sizeof piece, format, args);
    va_end(args);
    size_t room = sizeof line->text - line->length;
    bool fills = width > 0 && strlen(piece) >= (size_t)width; /* the next one stands apart, too */
    int length =
        snprintf(line->text + line->length, room, "%-*s%s", width, piece, fills ? " " : "");
    line->length += (size_t)length < room ? (size_t)length : room - 1;
}

void table_print(struct table_line *line)
{
    while (line->length > 0 && line->text[line->length - 1] == ' ')
        line->length--;
    line->text[line->length] = '\0';
    table_put_safe(stdout, line->text);
    putchar('\n');
    *line = (struct table_line){.length = 0};
}

int64_t table_int(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

double table_seconds(const json_t *object, const char *key)
{
    return json_real_value(json_object_get(object, key));
}

const char *table_text(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text == NULL ? "none" : text;
}

void table_format_count(char *out, size_t capacity, double count)
{
    if (count >= 1e9)
        snprintf(out, capacity, "%.1f billion", count / 1e9);
    else if (count >= 1e6)
        snprintf(out, capacity, "%.1f million", count / 1e6);
    else
        snprintf(out, capacity, "%.0f", count);
}

void table_format_bytes(char *out, size_t capacity, double bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    int unit = 0;
    while (bytes >= 1024 && unit < 6) {
        bytes /= 1024;
        unit++;
    }
    snprintf(out, capacity, unit == 0 ? "%.0f %s" : "%.2f %s", bytes, units[unit]);
}

const char *table_format_seconds(char out[TABLE_SECONDS_BYTES], double seconds)
{
    bool is_long = seconds >= 999.5 && seconds < 1e15;
    snprintf(out, TABLE_SECONDS_BYTES, is_long ? "%.0f s" : "%.3g s", seconds);
    return out;
}

bool table_plan_is_possible(const json_t *row)
{
    return strcmp(table_text(row, "verdict"), "possible") == 0;
}
