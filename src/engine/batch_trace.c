/* The file of --trace: what ran when, in the JSON of Chrome's trace viewer, which ui.perfetto.dev
 * opens. docs/trace.md tells what is on it. */
#include <stdio.h>

#include "base/trace_event.h"
#include "engine/batch_metrics.h"
#include "exec/stage.h"

struct trace_out {
    struct json_writer json;
    double since; /* 0 of the file's clock */
    int lane_count;
};

/* ---- Events ---------------------------------------------------------------------------------- */

static void write_span(struct trace_out *out, const struct trace_lane_view *lane,
                       const struct trace_span *span, const char *name, const char *kind)
{
    struct json_writer *json = &out->json;
    double begin = span->begin > out->since ? span->begin - out->since : 0;
    trace_event_open(json, "X", lane->rank, out->lane_count);
    trace_event_string(json, "name", name);
    trace_event_string(json, "cat", kind);
    trace_event_time(json, "ts", begin);
    trace_event_time(json, "dur", span->end - out->since - begin);
    if (span->layer >= 0 || span->bytes > 0) {
        json_write_key(json, "args");
        json_write_open(json, '{');
        if (span->layer >= 0)
            trace_event_int(json, "layer", span->layer);
        if (span->bytes > 0)
            trace_event_int(json, "bytes", (int64_t)span->bytes);
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
    char process[32] = "phasor";
    if (lane->rank >= 0)
        snprintf(process, sizeof process, "rank %d", lane->rank);
    trace_event_name(&out->json, "process_name", lane->rank, 0, process);
    trace_event_name(&out->json, "thread_name", lane->rank, out->lane_count, lane->name);
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
    trace_event_string(json, "displayTimeUnit", "ms");
    json_write_key(json, "otherData");
    json_write_open(json, '{');
    trace_event_string(json, "program", "phasor " PHASOR_VERSION);
    trace_event_string(json, "model", now->model_name);
    trace_event_string(json, "plan", now->plan);
    trace_event_string(json, "kernels", now->kernels);
    json_write_close(json, '}');
    json_write_key(json, "traceEvents");
    json_write_open(json, '[');
    trace_look(now->trace, write_lane, &out);
    json_write_close(json, ']');
    json_write_close(json, '}');
    text_append_string(text, "\n");
}
