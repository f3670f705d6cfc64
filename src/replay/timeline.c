#include "replay/timeline.h"

#include <stdio.h>

#include "base/json_writer.h"

static void put_string(struct json_writer *json, const char *key, const char *value)
{
    json_write_key(json, key);
    json_write_string(json, value);
}

static void put_int(struct json_writer *json, const char *key, int64_t value)
{
    json_write_key(json, key);
    json_write_int(json, value);
}

/* Microseconds, to the nanosecond. */
static void put_time(struct json_writer *json, const char *key, double seconds)
{
    int64_t ns = (int64_t)(seconds * 1e9 + 0.5);
    json_write_key(json, key);
    json_write_int(json, ns / 1000);
    text_append_format(json->out, ".%03d", (int)(ns % 1000));
}

/* "pid" and "tid" are what a rank and a lane are to the viewer. */
static void open_event(struct json_writer *json, const char *kind, int rank, uint32_t lane)
{
    json_write_open(json, '{');
    put_string(json, "ph", kind);
    put_int(json, "pid", rank + 1);
    put_int(json, "tid", (int64_t)lane + 1);
}

static void put_metadata(struct json_writer *json, const char *what, int rank, uint32_t lane,
                         const char *name)
{
    open_event(json, "M", rank, lane);
    put_string(json, "name", what);
    json_write_key(json, "args");
    json_write_open(json, '{');
    put_string(json, "name", name);
    json_write_close(json, '}');
    json_write_close(json, '}');
}

static const char *stage_of(const struct recording *recording, const struct recording_node *node)
{
    return node->stage < recording->stage_count ? recording->stage_names[node->stage] : "?";
}

static void put_node(struct json_writer *json, const struct recording *recording, uint32_t lane,
                     uint32_t at, const struct node_time *time)
{
    const struct recording_node *node = &recording->nodes[at];
    open_event(json, "X", recording->lanes[lane].rank, lane);
    put_string(json, "name", recording->strings[node->name]);
    put_string(json, "cat", stage_of(recording, node));
    put_time(json, "ts", time->begin);
    put_time(json, "dur", time->end - time->begin);
    json_write_key(json, "args");
    json_write_open(json, '{');
    if (node->layer >= 0)
        put_int(json, "layer", node->layer);
    if (node->bytes > 0)
        put_int(json, "bytes", (int64_t)node->bytes);
    if (node->flops > 0)
        put_int(json, "flops", (int64_t)node->flops);
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
    put_metadata(json, "process_name", lane->rank, at, process);
    put_metadata(json, "thread_name", lane->rank, at, recording->strings[lane->name]);
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
    put_string(&json, "displayTimeUnit", "ms");
    json_write_key(&json, "otherData");
    json_write_open(&json, '{');
    put_string(&json, "program", "phasor replay");
    put_string(&json, "times", label);
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
