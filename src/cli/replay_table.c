#include "replay_table.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "table.h"

#define NAME_WIDTH  38
#define VALUE_WIDTH 12
#define PARTS_SHOWN 12

static const char *const phases[] = {"prefill", "decode", "between"};
#define PHASE_COUNT (sizeof phases / sizeof *phases)

static double number(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}

/* "12.3 us", "1.23 ms", "4.56 s". */
static void format_seconds(char *out, size_t capacity, double seconds)
{
    if (seconds == 0)
        snprintf(out, capacity, "0");
    else if (seconds >= 1)
        snprintf(out, capacity, "%.3f s", seconds);
    else if (seconds >= 1e-3)
        snprintf(out, capacity, "%.3f ms", seconds * 1e3);
    else
        snprintf(out, capacity, "%.1f us", seconds * 1e6);
}

static void add_seconds(struct table_line *line, double seconds)
{
    char text[32];
    format_seconds(text, sizeof text, seconds);
    table_add(line, VALUE_WIDTH, "%s", text);
}

static void print_title(const char *title)
{
    struct table_line line = {.length = 0};
    printf("\n");
    table_add(&line, 0, "%s", title);
    table_print(&line);
}

/* ---- What it is of --------------------------------------------------------------------------- */

static void print_about(const json_t *about)
{
    static const char *const keys[] = {"model", "plan", "kernels"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        if (json_is_string(json_object_get(about, keys[i])))
            table_row(keys[i], table_text(about, keys[i]));
    }
}

static void print_subject(const json_t *root)
{
    char text[256], seconds[32];
    const json_t *notes = json_object_get(root, "notes");
    bool has_box = json_is_string(json_object_get(root, "box"));
    if (has_box)
        snprintf(text, sizeof text, "%s: %s", table_text(root, "box"), table_text(root, "title"));
    else
        snprintf(text, sizeof text, "its ranks one at a time");
    table_row(table_text(root, "label"), text);
    if (json_object_get(root, "link_scale") != NULL) {
        snprintf(text, sizeof text, "%.4g of the box's", number(root, "link_scale"));
        table_row("links", text);
    }
    format_seconds(seconds, sizeof seconds, number(root, "seconds"));
    table_row("time", seconds);
    format_seconds(seconds, sizeof seconds, number(root, "recorded_seconds"));
    snprintf(text, sizeof text, "%s, on %" PRId64 " ranks one at a time", seconds,
             table_int(root, "ranks"));
    table_row("recorded in", text);
    print_about(json_object_get(root, "about"));
    for (size_t i = 0; i < json_array_size(notes); i++)
        table_row("note", json_string_value(json_array_get(notes, i)));
}

/* ---- Phases ---------------------------------------------------------------------------------- */

static const json_t *phase_of(const json_t *root, size_t phase)
{
    return json_object_get(json_object_get(root, "phases"), phases[phase]);
}

/* A row of one member of each phase, under `group` where there is one; none where all are 0. */
static void print_row(const json_t *root, const char *name, const char *group, const char *key)
{
    struct table_line line = {.length = 0};
    bool is_needed = false;
    table_add(&line, NAME_WIDTH, "%s", name);
    for (size_t i = 0; i < PHASE_COUNT; i++) {
        const json_t *object = phase_of(root, i);
        if (group != NULL)
            object = json_object_get(object, group);
        add_seconds(&line, number(object, key));
        is_needed = is_needed || number(object, key) > 0;
    }
    if (is_needed)
        table_print(&line);
}

static void print_count_row(const json_t *root, const char *name, const char *key,
                            const char *format)
{
    struct table_line line = {.length = 0};
    bool is_needed = false;
    table_add(&line, NAME_WIDTH, "%s", name);
    for (size_t i = 0; i < PHASE_COUNT; i++) {
        double value = number(phase_of(root, i), key);
        char text[32] = "";
        if (value > 0)
            snprintf(text, sizeof text, format, value);
        table_add(&line, VALUE_WIDTH, "%s", text);
        is_needed = is_needed || value > 0;
    }
    if (is_needed)
        table_print(&line);
}

/* Rows of the members of `group` ("compute", "collectives") that any phase has, each once. */
static void print_group(const json_t *root, const char *group)
{
    for (size_t phase = 0; phase < PHASE_COUNT; phase++) {
        const char *key;
        json_t *value;
        json_object_foreach((json_t *)(uintptr_t)json_object_get(phase_of(root, phase), group), key,
                            value)
        {
            bool was_shown = false;
            struct table_line line = {.length = 0};
            table_add(&line, NAME_WIDTH, "  %s", key);
            for (size_t i = 0; i < PHASE_COUNT; i++) {
                const json_t *other =
                    json_object_get(json_object_get(phase_of(root, i), group), key);
                was_shown = was_shown || (i < phase && other != NULL);
                add_seconds(&line, number(other, "seconds"));
            }
            if (!was_shown)
                table_print(&line);
        }
    }
}

static void print_phases(const json_t *root)
{
    struct table_line line = {.length = 0};
    printf("\n");
    table_add(&line, NAME_WIDTH, "%s", "");
    for (size_t i = 0; i < PHASE_COUNT; i++)
        table_add(&line, VALUE_WIDTH, "%s", phases[i]);
    table_print(&line);
    print_row(root, "time", NULL, "wall_seconds");
    print_count_row(root, "tokens", "tokens", "%.0f");
    print_count_row(root, "tokens a second", "tokens_per_second", "%.1f");
    print_title("computed (mean of the ranks)");
    print_group(root, "compute");
    print_title("collectives (mean of the ranks)");
    print_group(root, "collectives");
    print_row(root, "copies", NULL, "copy_seconds");
    print_title("waited (mean of the ranks)");
    print_row(root, "  for other ranks", "waits", "others");
    print_row(root, "  for experts (exposed)", "waits", "transition");
    print_row(root, "  for the rest", "waits", "rest");
    print_row(root, "experts on their way, hidden", NULL, "hidden_transition_seconds");
}

/* ---- The critical path ----------------------------------------------------------------------- */

static void print_parts(const json_t *root, const json_t *parts)
{
    double seconds = number(root, "seconds");
    for (size_t i = 0; i < json_array_size(parts) && i < PARTS_SHOWN; i++) {
        struct table_line line = {.length = 0};
        const json_t *part = json_array_get(parts, i);
        const char *name = json_string_value(json_object_get(part, "name"));
        table_add(&line, NAME_WIDTH, "  %s%s%s", table_text(part, "kind"), name == NULL ? "" : ": ",
                  name == NULL ? "" : name);
        add_seconds(&line, number(part, "seconds"));
        table_add(&line, VALUE_WIDTH, "%.1f %%",
                  seconds > 0 ? 100 * number(part, "seconds") / seconds : 0);
        table_add(&line, 0, "%" PRId64 " step%s", table_int(part, "count"),
                  table_int(part, "count") == 1 ? "" : "s");
        table_print(&line);
    }
}

/* Of what nothing that was recorded tells. */
static void print_gap(const json_t *root, const json_t *path)
{
    struct table_line line = {.length = 0};
    double gap = number(path, "gap_seconds");
    if (gap <= 0)
        return;
    table_add(&line, NAME_WIDTH, "  in no step");
    add_seconds(&line, gap);
    table_add(&line, 0, "%.1f %%", 100 * gap / number(root, "seconds"));
    table_print(&line);
}

static void print_steps(const json_t *steps)
{
    for (size_t i = 0; i < json_array_size(steps); i++) {
        struct table_line line = {.length = 0};
        char begin[32];
        const json_t *step = json_array_get(steps, i);
        format_seconds(begin, sizeof begin, number(step, "begin"));
        table_add(&line, NAME_WIDTH, "  %s", table_text(step, "name"));
        add_seconds(&line, number(step, "seconds"));
        table_add(&line, 0, "at %s", begin);
        if (table_int(step, "rank") >= 0)
            table_add(&line, 0, ", rank %" PRId64, table_int(step, "rank"));
        table_add(&line, 0, ", %s", table_text(step, "lane"));
        if (table_int(step, "layer") >= 0)
            table_add(&line, 0, ", layer %" PRId64, table_int(step, "layer"));
        table_print(&line);
    }
}

static void print_path(const json_t *root)
{
    const json_t *path = json_object_get(root, "critical_path");
    print_title("critical path");
    print_parts(root, json_object_get(path, "parts"));
    print_gap(root, path);
    print_title("its longest steps");
    print_steps(json_object_get(path, "longest"));
}

/* ---- Links ----------------------------------------------------------------------------------- */

static void add_direction(struct table_line *line, const json_t *link, size_t direction)
{
    char bytes[32];
    const json_t *count = json_array_get(json_object_get(link, "bytes"), direction);
    if (count == NULL)
        return;
    table_format_bytes(bytes, sizeof bytes, json_number_value(count));
    table_add(line, VALUE_WIDTH, "%.1f %%",
              100 * json_number_value(json_array_get(json_object_get(link, "used"), direction)));
    table_add(line, VALUE_WIDTH, "%s", bytes);
}

static void print_links(const json_t *root)
{
    const json_t *links = json_object_get(root, "links");
    struct table_line line = {.length = 0};
    if (json_array_size(links) == 0)
        return;
    printf("\n");
    table_add(&line, NAME_WIDTH, "links");
    table_add(&line, VALUE_WIDTH, "busy");
    table_add(&line, 2 * VALUE_WIDTH, "there, of all it can");
    table_add(&line, 0, "back");
    table_print(&line);
    for (size_t i = 0; i < json_array_size(links); i++) {
        const json_t *link = json_array_get(links, i);
        table_add(&line, NAME_WIDTH, "  %s", table_text(link, "name"));
        table_add(&line, VALUE_WIDTH, "%.1f %%", 100 * number(link, "busy"));
        add_direction(&line, link, 0);
        add_direction(&line, link, 1);
        table_print(&line);
    }
}

void replay_table_print(const json_t *root)
{
    print_subject(root);
    print_phases(root);
    print_path(root);
    print_links(root);
}
