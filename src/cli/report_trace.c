#include "report_trace.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench_question.h"
#include "json_file.h"
#include "page.h"
#include "table.h"

#define MIB_MAX    64 /* a trace has 40 at most */
#define LANES_MAX  512
#define NAME_BYTES 80

#define WIDTH      940
#define LEFT       150
#define ROW_HEIGHT 18
#define BAR_HEIGHT 13
#define AXIS       30
#define COLUMNS    (WIDTH - LEFT)
#define WORD_DOTS  6   /* of a letter, at most */
#define AFTER      0.4 /* of the time before decode is shown behind its beginning */

/* What a span is, and the colour of page_colours that it has. */
static const struct kind {
    const char *words;
    int colour;
} kinds[] = {
    {"attention and projections", 0}, {"experts", 4},        {"collectives", 2},
    {"moves of experts", 6},          {"reads for them", 1}, {"checks and dequantization", 5},
    {"other operations", 7},
};
enum { ATTENTION, EXPERTS, COLLECTIVE, MOVE, READ, DEQUANTIZE, OTHER, KIND_COUNT };

struct span {
    int lane, kind;
    double begin, end; /* seconds of the run */
    bool is_stage;
    const char *name; /* of the tree */
};

struct lane {
    int64_t process, number; /* as the file has them: the run is 0, rank r is r + 1 */
    char words[NAME_BYTES];
    bool is_stream;  /* of passes */
    bool has_stages; /* they are shown, in place of operations */
};

struct report_trace {
    json_t *root;
    const char *path;
    struct lane lanes[LANES_MAX];
    int lane_count;
    struct span *spans;
    size_t span_count;
    double begin, decode, end; /* what is shown */
};

/* ---- Reading --------------------------------------------------------------------------------- */

static struct lane *lane_get(struct report_trace *trace, const json_t *event)
{
    int64_t process = table_int(event, "pid"), number = table_int(event, "tid");
    for (int i = 0; i < trace->lane_count; i++) {
        if (trace->lanes[i].process == process && trace->lanes[i].number == number)
            return &trace->lanes[i];
    }
    if (trace->lane_count == LANES_MAX)
        return NULL;
    struct lane *lane = &trace->lanes[trace->lane_count++];
    *lane = (struct lane){.process = process, .number = number};
    return lane;
}

static void lane_name(struct report_trace *trace, const json_t *event)
{
    struct lane *lane = lane_get(trace, event);
    const char *name = table_text(json_object_get(event, "args"), "name");
    if (lane == NULL)
        return;
    lane->is_stream = strcmp(name, "passes") == 0;
    if (lane->process <= 0)
        snprintf(lane->words, sizeof lane->words, "%.40s", name);
    else
        snprintf(lane->words, sizeof lane->words, "rank %lld %.40s", (long long)(lane->process - 1),
                 name);
}

static bool is_one_of(const char *word, const char *const *words)
{
    while (*words != NULL && strcmp(word, *words) != 0)
        words++;
    return *words != NULL;
}

static bool begins(const char *text, const char *word)
{
    return strncmp(text, word, strlen(word)) == 0;
}

static int kind_of(const char *name, bool is_stage)
{
    static const char *const attention[] = {"projection", "attention", "rope", NULL};
    static const char *const experts[] = {"experts", "shared", "router", "combine", NULL};
    static const char *const ways[] = {"keep", "reshard", "reload", "upload", "mixed", NULL};
    if (is_stage && is_one_of(name, attention))
        return ATTENTION;
    if (is_stage && is_one_of(name, experts))
        return EXPERTS;
    if (is_stage && strcmp(name, "collective") == 0)
        return COLLECTIVE;
    if (begins(name, "read"))
        return READ;
    if (begins(name, "check") || begins(name, "dequantize"))
        return DEQUANTIZE;
    if (begins(name, "copy") || begins(name, "transition") || is_one_of(name, ways))
        return MOVE;
    return OTHER;
}

/* What lies over others is left out, but for the stages of a stream. */
static void span_add(struct report_trace *trace, const json_t *event)
{
    const json_t *from = json_object_get(event, "ts"), *lasts = json_object_get(event, "dur");
    struct lane *lane = lane_get(trace, event);
    const char *name = table_text(event, "name"), *category = table_text(event, "cat");
    bool is_stage = strcmp(category, "stage") == 0;
    if (lane == NULL || !json_is_number(from) || !json_is_number(lasts) ||
        (is_stage ? !lane->is_stream : strcmp(category, "operation") != 0))
        return;
    struct span *span = &trace->spans[trace->span_count++];
    *span = (struct span){.lane = (int)(lane - trace->lanes),
                          .kind = kind_of(name, lane->is_stream),
                          .begin = json_number_value(from) / 1e6,
                          .is_stage = is_stage,
                          .name = name};
    span->end = span->begin + fmax(json_number_value(lasts), 0) / 1e6;
    lane->has_stages |= is_stage;
}

static bool spans_read(struct report_trace *trace)
{
    const json_t *events = json_object_get(trace->root, "traceEvents");
    trace->spans = calloc(json_array_size(events) + 1, sizeof *trace->spans);
    if (trace->spans == NULL)
        return false;
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t *event = json_array_get(events, i);
        const char *kind = table_text(event, "ph");
        if (strcmp(kind, "M") == 0 && strcmp(table_text(event, "name"), "thread_name") == 0)
            lane_name(trace, event);
        else if (strcmp(kind, "X") == 0)
            span_add(trace, event);
    }
    return true;
}

/* The first pass of decode behind one of prefill. */
static bool window_find(struct report_trace *trace)
{
    const struct span *prefill = NULL;
    double last = 0;
    for (size_t i = 0; i < trace->span_count; i++)
        last = fmax(last, trace->spans[i].end);
    for (size_t i = 0; i < trace->span_count; i++) {
        const struct span *span = &trace->spans[i];
        if (strcmp(trace->lanes[span->lane].words, "run") != 0)
            continue;
        if (strcmp(span->name, "prefill pass") == 0)
            prefill = span;
        if (strcmp(span->name, "decode pass") != 0 || prefill == NULL)
            continue;
        trace->begin = prefill->begin;
        trace->decode = span->begin;
        trace->end = fmin(last, span->begin + AFTER * (span->begin - prefill->begin));
        return trace->end > trace->begin && isfinite(trace->end - trace->begin);
    }
    return false;
}

bool report_trace_open(struct report_trace **out, const char *path)
{
    struct report_trace *trace = calloc(1, sizeof *trace);
    json_t *root = trace == NULL
                       ? NULL
                       : json_file_read("--trace", path, "a file of phasor run --trace", MIB_MAX);
    *out = trace;
    if (trace == NULL)
        fprintf(stderr, "phasor: out of memory for a page\n");
    if (root == NULL)
        return false;
    trace->root = root;
    trace->path = path;
    if (!spans_read(trace)) {
        fprintf(stderr, "phasor: out of memory for a page\n");
        return false;
    }
    if (window_find(trace))
        return true;
    fprintf(
        stderr,
        "phasor: --trace: %s: has no pass of decode behind one of prefill; it is to be a file of "
        "phasor run --trace\n",
        path);
    return false;
}

void report_trace_close(struct report_trace *trace)
{
    if (trace == NULL)
        return;
    json_decref(trace->root);
    free(trace->spans);
    free(trace);
}

/* ---- Drawing --------------------------------------------------------------------------------- */

/* A dot of a row: the span that has most of it. */
struct column {
    double seconds;
    const struct span *span; /* NULL: none */
};

struct row {
    struct column columns[COLUMNS];
    bool is_used;
};

static double place_of(const struct report_trace *trace, double seconds)
{
    double share = (seconds - trace->begin) / (trace->end - trace->begin);
    return fmin(fmax(share, 0), 1) * COLUMNS;
}

static void column_add(struct column *column, const struct span *span, double dots)
{
    if (dots <= column->seconds)
        return;
    column->seconds = dots;
    column->span = span;
}

static void span_place(struct row *rows, const struct report_trace *trace, const struct span *span)
{
    if (span->is_stage != trace->lanes[span->lane].has_stages || span->end <= trace->begin ||
        span->begin >= trace->end)
        return;
    struct row *row = &rows[span->lane];
    double from = place_of(trace, span->begin), to = place_of(trace, span->end);
    row->is_used = true;
    for (int i = (int)from; i < COLUMNS && i < to; i++)
        column_add(&row->columns[i], span, fmin(to, i + 1) - fmax(from, i));
}

/* Neighbouring dots of one span, or of short ones of its kind. */
static bool is_one_bar(const struct span *a, const struct span *b, double dot)
{
    return a == b || (a != NULL && b != NULL && a->kind == b->kind && a->end - a->begin < 3 * dot &&
                      b->end - b->begin < 3 * dot);
}

static void bar_put(FILE *file, const struct report_trace *trace, const struct span *span, int from,
                    int to, double y)
{
    if (span == NULL)
        return;
    fprintf(file, "<rect x=\"%d\" y=\"%.0f\" width=\"%d\" height=\"%d\" fill=\"%s\"><title>",
            LEFT + from, y, to - from, BAR_HEIGHT, page_colours[kinds[span->kind].colour]);
    page_text(file, span->name);
    fprintf(file, ": %.4g ms from %.6g s</title></rect>\n", 1e3 * (span->end - span->begin),
            span->begin);
    if (trace->lanes[span->lane].process > 0 ||
        (double)strlen(span->name) * WORD_DOTS > to - from - 8)
        return;
    fprintf(file, "<text class=\"tiny\" x=\"%d\" y=\"%.0f\">", LEFT + from + 4, y + BAR_HEIGHT - 3);
    page_text(file, span->name);
    fputs("</text>\n", file);
}

static void row_put(FILE *file, const struct report_trace *trace, const struct row *row, double y)
{
    double dot = (trace->end - trace->begin) / COLUMNS;
    int from = 0;
    for (int i = 1; i <= COLUMNS; i++) {
        const struct span *span = row->columns[from].span;
        if (i < COLUMNS && is_one_bar(span, row->columns[i].span, dot))
            continue;
        bar_put(file, trace, span, from, i, y);
        from = i;
    }
}

static void axis_put(FILE *file, const struct report_trace *trace, double y)
{
    double whole = 1e3 * (trace->end - trace->begin);
    double step = pow(10, floor(log10(whole / 2)));
    char text[32];
    for (double at = 0; at <= whole; at += step) {
        double x = LEFT + place_of(trace, trace->begin + at / 1e3);
        page_line(file, x, 8, x, y, "grid");
        snprintf(text, sizeof text, "%g ms", at);
        page_label(file, x, y + 14, at + step > whole ? "end" : "middle", text);
    }
    double x = LEFT + place_of(trace, trace->decode);
    page_line(file, x, 2, x, y, "mark");
}

/* Of the command what the trace knows; to be freed, NULL where memory is short. */
static char *command_of(const struct report_trace *trace)
{
    const json_t *about = json_object_get(trace->root, "otherData");
    char *command = NULL;
    size_t length;
    FILE *words = open_memstream(&command, &length);
    if (words == NULL)
        return NULL;
    fputs("phasor run ", words);
    bench_word_put(words, table_text(about, "model"));
    fputs(" -i ROWS -o ANSWERS --devices DEVICES --plan ", words);
    bench_word_put(words, table_text(about, "plan"));
    fputs(" --trace ", words);
    bench_word_put(words, trace->path);
    if (fclose(words) == 0)
        return command;
    free(command);
    return NULL;
}

static void patches_make(struct page_patch out[KIND_COUNT])
{
    for (int i = 0; i < KIND_COUNT; i++) {
        out[i].colour = kinds[i].colour;
        snprintf(out[i].name, sizeof out[i].name, "%s", kinds[i].words);
    }
}

static void words_put(FILE *file, const struct report_trace *trace, const char *command)
{
    const json_t *about = json_object_get(trace->root, "otherData");
    struct page_patch patches[KIND_COUNT];
    fputs("<h2>From prefill to decode</h2>\n", file);
    page_made(file, "wall", command);
    fputs("<p>One run: ", file);
    page_text(file, table_text(about, "model"));
    fputs(" under <code>", file);
    page_text(file, table_text(about, "plan"));
    fputs("</code>, its last pass of prefill before the first of decode, which begins at the "
          "line across all rows. A row is a stream, a thread that reads, or what the run as a "
          "whole does.</p>\n",
          file);
    patches_make(patches);
    page_patches(file, patches, KIND_COUNT);
}

/* A row for each lane; those that nothing is in are not drawn. NULL: memory is short. */
static struct row *rows_make(const struct report_trace *trace, int *used)
{
    struct row *rows = calloc((size_t)trace->lane_count, sizeof *rows);
    *used = 0;
    for (size_t i = 0; i < trace->span_count && rows != NULL; i++)
        span_place(rows, trace, &trace->spans[i]);
    for (int i = 0; i < trace->lane_count && rows != NULL; i++)
        *used += rows[i].is_used;
    return rows;
}

static void rows_draw(FILE *file, const struct report_trace *trace, const struct row *rows,
                      int used)
{
    double y = 10;
    axis_put(file, trace, 10 + ROW_HEIGHT * used);
    for (int i = 0; i < trace->lane_count; i++) {
        if (!rows[i].is_used)
            continue;
        page_label(file, LEFT - 8, y + BAR_HEIGHT - 2, "end", trace->lanes[i].words);
        row_put(file, trace, &rows[i], y);
        y += ROW_HEIGHT;
    }
}

static void page_put(FILE *file, const struct report_trace *trace, const struct row *rows, int used,
                     const char *command)
{
    words_put(file, trace, command);
    page_picture_begin(file, WIDTH, 10 + ROW_HEIGHT * used + AXIS);
    rows_draw(file, trace, rows, used);
    page_picture_end(file);
}

static void plot_put(FILE *file, const struct report_trace *trace, const struct row *rows, int used,
                     const char *command)
{
    const json_t *about = json_object_get(trace->root, "otherData");
    struct page_plot plot = {.width = WIDTH,
                             .height = 10 + ROW_HEIGHT * used + AXIS,
                             .label = "wall",
                             .command = command,
                             .patch_count = KIND_COUNT};
    snprintf(plot.title, sizeof plot.title, "From prefill to decode, under %.80s",
             table_text(about, "plan"));
    patches_make(plot.patches);
    page_plot_begin(file, &plot);
    rows_draw(file, trace, rows, used);
    page_plot_end(file);
}

static bool trace_put(FILE *file, const struct report_trace *trace, bool is_alone)
{
    int used;
    struct row *rows = rows_make(trace, &used);
    char *command = command_of(trace);
    bool is_good = rows != NULL && command != NULL;
    if (!is_good)
        fprintf(stderr, "phasor: out of memory for a page\n");
    else if (is_alone)
        plot_put(file, trace, rows, used, command);
    else
        page_put(file, trace, rows, used, command);
    free(command);
    free(rows);
    return is_good;
}

bool report_put_trace(FILE *file, const struct report_trace *trace)
{
    return trace_put(file, trace, false);
}

bool report_plot_trace(FILE *file, const struct report_trace *trace)
{
    return trace_put(file, trace, true);
}
