#include "report_trace.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "page.h"
#include "table.h"

/* A trace has 40 MB at most; a tree of it some twenty times that. */
#define FILE_BYTES_MAX (64 << 20)
#define LANES_MAX      1024
#define NAME_BYTES     64

#define WIDTH      940
#define LEFT       150
#define ROW_HEIGHT 18
#define BAR_HEIGHT 13
#define AXIS       30
#define LEAST_DOTS 0.4 /* that a bar is wide, and what is left out between two of one kind */
#define WORD_DOTS  70  /* that a bar has for its name */
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
    const char *name;  /* of the tree */
};

struct lane {
    int64_t rank, number;
    char words[NAME_BYTES];
    bool is_stream; /* of a rank's passes: its stages are shown, else its operations */
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

static json_t *tree_read(const char *path)
{
    struct stat about;
    json_error_t error;
    if (stat(path, &about) != 0) {
        fprintf(stderr, "phasor: --trace: %s: %s\n", path, strerror(errno));
        return NULL;
    }
    if (!S_ISREG(about.st_mode) || about.st_size > FILE_BYTES_MAX) {
        fprintf(stderr, "phasor: --trace: %s: not a file of at most 64 MiB, which a trace is\n",
                path);
        return NULL;
    }
    json_t *root = json_load_file(path, 0, &error);
    if (root == NULL)
        fprintf(stderr,
                "phasor: --trace: %s: line %d: %s; it is to be a file of phasor run --trace\n",
                path, error.line, error.text);
    return root;
}

static struct lane *lane_get(struct report_trace *trace, const json_t *event)
{
    int64_t rank = table_int(event, "pid") - 1, number = table_int(event, "tid");
    for (int i = 0; i < trace->lane_count; i++) {
        if (trace->lanes[i].rank == rank && trace->lanes[i].number == number)
            return &trace->lanes[i];
    }
    if (trace->lane_count == LANES_MAX)
        return NULL;
    struct lane *lane = &trace->lanes[trace->lane_count++];
    *lane = (struct lane){.rank = rank, .number = number};
    return lane;
}

static void lane_name(struct report_trace *trace, const json_t *event)
{
    struct lane *lane = lane_get(trace, event);
    const char *name = table_text(json_object_get(event, "args"), "name");
    if (lane == NULL)
        return;
    lane->is_stream = strcmp(name, "passes") == 0;
    if (lane->rank < 0)
        snprintf(lane->words, sizeof lane->words, "%s", name);
    else
        snprintf(lane->words, sizeof lane->words, "rank %lld %s", (long long)lane->rank, name);
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

/* Whether the picture has the span: of a rank's stream a stage, of other lanes what lies lowest. */
static bool is_drawn(const struct lane *lane, const char *category)
{
    return strcmp(category, lane->is_stream ? "stage" : "operation") == 0;
}

static void span_add(struct report_trace *trace, const json_t *event)
{
    const json_t *from = json_object_get(event, "ts"), *lasts = json_object_get(event, "dur");
    struct lane *lane = lane_get(trace, event);
    const char *name = table_text(event, "name"), *category = table_text(event, "cat");
    if (lane == NULL || !json_is_number(from) || !json_is_number(lasts) ||
        !is_drawn(lane, category))
        return;
    struct span *span = &trace->spans[trace->span_count++];
    *span = (struct span){.lane = (int)(lane - trace->lanes),
                          .kind = kind_of(name, lane->is_stream),
                          .begin = json_number_value(from) / 1e6,
                          .name = name};
    span->end = span->begin + fmax(json_number_value(lasts), 0) / 1e6;
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
    json_t *root = trace == NULL ? NULL : tree_read(path);
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

static double place_of(const struct report_trace *trace, double seconds)
{
    double share = (seconds - trace->begin) / (trace->end - trace->begin);
    return LEFT + fmin(fmax(share, 0), 1) * (WIDTH - LEFT);
}

static bool is_seen(const struct report_trace *trace, const struct span *span)
{
    return span->end > trace->begin && span->begin < trace->end;
}

struct bar {
    double from, to;
    int colour, count;
    bool has_word;
    const char *name;
};

static void bar_put(FILE *file, const struct report_trace *trace, const struct bar *bar, double y)
{
    char title[160];
    if (bar->count == 0)
        return;
    double x = place_of(trace, bar->from), wide = place_of(trace, bar->to) - x;
    if (bar->count == 1)
        snprintf(title, sizeof title, "%.60s: %.4g ms from %.6g s", bar->name,
                 1e3 * (bar->to - bar->from), bar->from);
    else
        snprintf(title, sizeof title, "%.60s and %d more: %.4g ms from %.6g s", bar->name,
                 bar->count - 1, 1e3 * (bar->to - bar->from), bar->from);
    page_rect(file, x, y, fmax(wide, LEAST_DOTS), BAR_HEIGHT, page_colours[bar->colour], title);
    if (bar->has_word && wide > WORD_DOTS) {
        fprintf(file, "<text class=\"tiny\" x=\"%.1f\" y=\"%.1f\">", x + 4, y + BAR_HEIGHT - 3);
        page_text(file, bar->name);
        fputs("</text>\n", file);
    }
}

/* Spans of one kind that a page cannot tell apart are one bar. */
static void lane_put(FILE *file, const struct report_trace *trace, int lane, double y)
{
    double dot = LEAST_DOTS * (trace->end - trace->begin) / (WIDTH - LEFT);
    struct bar bar = {.count = 0};
    for (size_t i = 0; i < trace->span_count; i++) {
        const struct span *span = &trace->spans[i];
        if (span->lane != lane || !is_seen(trace, span))
            continue;
        int colour = kinds[span->kind].colour;
        if (bar.count > 0 && colour == bar.colour && span->begin - bar.to < dot &&
            span->begin >= bar.from && bar.to - bar.from + (span->end - span->begin) < 8 * dot) {
            bar.to = fmax(bar.to, span->end);
            bar.count++;
            continue;
        }
        bar_put(file, trace, &bar, y);
        bar = (struct bar){span->begin, span->end, colour, 1, trace->lanes[lane].rank < 0,
                           span->name};
    }
    bar_put(file, trace, &bar, y);
}

static bool lane_is_seen(const struct report_trace *trace, int lane)
{
    for (size_t i = 0; i < trace->span_count; i++) {
        if (trace->spans[i].lane == lane && is_seen(trace, &trace->spans[i]))
            return true;
    }
    return false;
}

static void axis_put(FILE *file, const struct report_trace *trace, double y)
{
    double whole = 1e3 * (trace->end - trace->begin);
    double step = pow(10, floor(log10(whole / 2)));
    char text[32];
    for (double at = 0; at <= whole; at += step) {
        double x = place_of(trace, trace->begin + at / 1e3);
        page_line(file, x, 8, x, y, "grid");
        snprintf(text, sizeof text, "%g ms", at);
        page_label(file, x, y + 14, at + step > whole ? "end" : "middle", text);
    }
    double x = place_of(trace, trace->decode);
    page_line(file, x, 2, x, y, "mark");
}

static void words_put(FILE *file, const struct report_trace *trace)
{
    const json_t *about = json_object_get(trace->root, "otherData");
    fputs("<h2>From prefill to decode</h2>\n<p>One run: ", file);
    page_text(file, table_text(about, "model"));
    fputs(" under <code>", file);
    page_text(file, table_text(about, "plan"));
    fputs("</code>, its last pass of prefill before the first of decode, which begins at the "
          "line across all rows. A row is a stream, a thread that reads, or what the run as a "
          "whole does; by the clock, "
          "from <code>phasor run --trace ",
          file);
    page_text(file, trace->path);
    fputs("</code>.</p>\n<p class=\"legend\">", file);
    for (int i = 0; i < KIND_COUNT; i++)
        fprintf(file, "<span><i style=\"background:%s\"></i>%s</span> ",
                page_colours[kinds[i].colour], kinds[i].words);
    fputs("</p>\n", file);
}

void report_put_trace(FILE *file, const struct report_trace *trace)
{
    int rows = 0;
    for (int i = 0; i < trace->lane_count; i++)
        rows += lane_is_seen(trace, i);
    double height = 10 + ROW_HEIGHT * rows;
    words_put(file, trace);
    fprintf(file, "<div class=\"picture\"><svg viewBox=\"0 0 %d %.0f\">\n", WIDTH, height + AXIS);
    axis_put(file, trace, height);
    double y = 10;
    for (int i = 0; i < trace->lane_count; i++) {
        if (!lane_is_seen(trace, i))
            continue;
        page_label(file, LEFT - 8, y + BAR_HEIGHT - 2, "end", trace->lanes[i].words);
        lane_put(file, trace, i, y);
        y += ROW_HEIGHT;
    }
    fputs("</svg></div>\n", file);
}
