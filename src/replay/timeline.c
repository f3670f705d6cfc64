#include "replay/timeline.h"

#include <stdio.h>

#include "base/trace_event.h"

static const char *stage_of(const struct recording *recording, const struct recording_node *node)
{
    return node->stage < recording->stage_count ? recording->stage_names[node->stage] : "?";
}

static void put_node(struct json_writer *json, const struct recording *recording, uint32_t lane,
                     uint32_t at, const struct node_time *time)
{
    const struct recording_node *node = &recording->nodes[at];
    trace_event_open(json, "X", recording->lanes[lane].rank, (int64_t)lane + 1);
    trace_event_string(json, "name", recording->strings[node->name]);
    trace_event_string(json, "cat", stage_of(recording, node));
    trace_event_time(json, "ts", time->begin);
    trace_event_time(json, "dur", time->end - time->begin);
    json_write_key(json, "args");
    json_write_open(json, '{');
    if (node->layer >= 0)
        trace_event_int(json, "layer", node->layer);
    if (node->bytes > 0)
        trace_event_int(json, "bytes", (int64_t)node->bytes);
    if (node->flops > 0)
        trace_event_int(json, "flops", (int64_t)node->flops);
    json_write_close(json, '}');
    json_write_close(json, '}');
}

static void put_lane(struct json_writer *json, const struct recording *recording, uint32_t at,
                     const struct node_time *times)
{
    const struct recording_lane *lane = &recording->lanes[at];
    char process[32] = "phasor";
    if (lane->rank >= 0)
        snprintf(process, sizeof process, "rank %d", lane->rank);
    trace_event_name(json, "process_name", lane->rank, (int64_t)at + 1, process);
    trace_event_name(json, "thread_name", lane->rank, (int64_t)at + 1,
                     recording->strings[lane->name]);
    for (uint32_t i = lane->first; i < lane->first + lane->count; i++) {
        if (times[i].end > times[i].begin)
            put_node(json, recording, at, i, &times[i]);
    }
}

void timeline_write(struct text *out, const struct recording *recording,
                    const struct simulation *simulation, const char *label)
{
    struct json_writer json = {.out = out};
    json_write_open(&json, '{');
    trace_event_string(&json, "displayTimeUnit", "ms");
    json_write_key(&json, "otherData");
    json_write_open(&json, '{');
    trace_event_string(&json, "program", "phasor replay");
    trace_event_string(&json, "times", label);
    json_write_close(&json, '}');
    json_write_key(&json, "traceEvents");
    json_write_open(&json, '[');
    for (uint32_t i = 0; i < recording->lane_count; i++) {
        if (recording->lanes[i].count > 0)
            put_lane(&json, recording, i, simulation->times);
    }
    json_write_close(&json, ']');
    json_write_close(&json, '}');
    text_append_string(out, "\n");
}
