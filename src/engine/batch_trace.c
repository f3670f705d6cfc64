/* The file of --trace: what ran when, in the JSON of Chrome's trace viewer, which ui.perfetto.dev
 * opens. docs/trace.md tells what is on it. */
#include <stdio.h>

#include "base/json_writer.h"
#include "engine/batch_metrics.h"
#include "exec/stage.h"

struct trace_out {
    struct json_writer json;
    double since; /* 0 of the file's clock */
    int lane_count;
};

/* ---- Events ---------------------------------------------------------------------------------- */

static void write_string(struct json_writer *json, const char *key, const char *value)
{
    json_write_key(json, key);
    json_write_string(json, value);
}

static void write_int(struct json_writer *json, const char *key, int64_t value)
{
    json_write_key(json, key);
    json_write_int(json, value);
}

/* Microseconds, to the nanosecond. */
static void write_time(struct json_writer *json, const char *key, double seconds)
{
    int64_t ns = (int64_t)(seconds * 1e9 + 0.5);
    json_write_key(json, key);
    json_write_int(json, ns / 1000);
    text_append_format(json->out, ".%03d", (int)(ns % 1000));
}

/* "ph": the kind of event; "pid" and "tid" are what a rank and a lane are to the viewer. */
static void event_open(struct trace_out *out, const char *kind, int rank, int lane)
{
    json_write_open(&out->json, '{');
    write_string(&out->json, "ph", kind);
    write_int(&out->json, "pid", rank + 1);
    write_int(&out->json, "tid", lane);
}

static void write_metadata(struct trace_out *out, const char *what, int rank, int lane,
                           const char *format, int value)
{
    char name[64];
    snprintf(name, sizeof name, format, value);
    event_open(out, "M", rank, lane);
    write_string(&out->json, "name", what);
    json_write_key(&out->json, "args");
    json_write_open(&out->json, '{');
    write_string(&out->json, "name", name);
    json_write_close(&out->json, '}');
    json_write_close(&out->json, '}');
}

static void write_span(struct trace_out *out, const struct trace_lane_view *lane,
                       const struct trace_span *span, const char *name, const char *kind)
{
    struct json_writer *json = &out->json;
    double begin = span->begin > out->since ? span->begin - out->since : 0;
    event_open(out, "X", lane->rank, out->lane_count);
    write_string(json, "name", name);
    write_string(json, "cat", kind);
    write_time(json, "ts", begin);
    write_time(json, "dur", span->end - out->since - begin);
    if (span->layer >= 0 || span->bytes > 0) {
        json_write_key(json, "args");
        json_write_open(json, '{');
        if (span->layer >= 0)
            write_int(json, "layer", span->layer);
        if (span->bytes > 0)
            write_int(json, "bytes", (int64_t)span->bytes);
        json_write_close(json, '}');
    }
    json_write_close(json, '}');
}

/* ---- Lanes ----------------------------------------------------------------------------------- */

static bool is_of_one(const struct trace_span *a, const struct trace_span *b, bool of_one_stage)
{
    return a->layer == b->layer && (!of_one_stage || a->stage == b->stage);
}

/* One span over all from `first` on that are of its layer, or of its stage too, before `end`;
 * returns how many those are. */
static int64_t gather(struct trace_span *over, const struct trace_lane_view *lane, int64_t first,
                      int64_t end, bool of_one_stage)
{
    const struct trace_span *spans = lane->spans;
    int64_t i = first;
    *over = spans[first];
    over->bytes = 0;
    for (; i < end && is_of_one(&spans[i], &spans[first], of_one_stage); i++) {
        over->begin = spans[i].begin < over->begin ? spans[i].begin : over->begin;
        over->end = spans[i].end;
    }
    return i - first;
}

/* What lies over others stands before them. */
static void write_stage(struct trace_out *out, const struct trace_lane_view *lane, int64_t first,
                        int64_t count, const struct trace_span *over)
{
    if (over->stage != STAGE_BETWEEN)
        write_span(out, lane, over, stage_names[over->stage], "stage");
    for (int64_t i = first; i < first + count; i++)
        write_span(out, lane, &lane->spans[i], lane->spans[i].name, "operation");
}

static void write_layer(struct trace_out *out, const struct trace_lane_view *lane, int64_t first,
                        int64_t count, const struct trace_span *over)
{
    char name[32];
    snprintf(name, sizeof name, "layer %lld", (long long)over->layer);
    if (over->layer >= 0)
        write_span(out, lane, over, name, "layer");
    for (int64_t i = first, end = first + count; i < end;) {
        struct trace_span stage;
        int64_t of_stage = gather(&stage, lane, i, end, true);
        write_stage(out, lane, i, of_stage, &stage);
        i += of_stage;
    }
}

static void write_lane(void *context, const struct trace_lane_view *lane)
{
    struct trace_out *out = context;
    if (lane->span_count == 0)
        return;
    out->lane_count++;
    write_metadata(out, "process_name", lane->rank, 0, lane->rank < 0 ? "phasor" : "rank %d",
                   lane->rank);
    write_metadata(out, "thread_name", lane->rank, out->lane_count, lane->name, 0);
    for (int64_t i = 0; i < lane->span_count;) {
        struct trace_span layer;
        int64_t count = gather(&layer, lane, i, lane->span_count, false);
        write_layer(out, lane, i, count, &layer);
        i += count;
    }
}

/* ---- The file -------------------------------------------------------------------------------- */

void batch_trace_write(struct text *text, const struct batch_snapshot *now)
{
    struct trace_out out = {.json.out = text, .since = now->started_at};
    struct json_writer *json = &out.json;
    json_write_open(json, '{');
    write_string(json, "displayTimeUnit", "ms");
    json_write_key(json, "otherData");
    json_write_open(json, '{');
    write_string(json, "program", "phasor " PHASOR_VERSION);
    write_string(json, "model", now->model_name);
    write_string(json, "plan", now->plan);
    write_string(json, "kernels", now->kernels);
    json_write_close(json, '}');
    json_write_key(json, "traceEvents");
    json_write_open(json, '[');
    trace_look(now->trace, write_lane, &out);
    json_write_close(json, ']');
    json_write_close(json, '}');
    text_append_string(text, "\n");
}
