#include "base/trace_event.h"

void trace_event_string(struct json_writer *json, const char *key, const char *value)
{
    json_write_key(json, key);
    json_write_string(json, value);
}

void trace_event_int(struct json_writer *json, const char *key, int64_t value)
{
    json_write_key(json, key);
    json_write_int(json, value);
}

/* Nanoseconds of more do not fit. */
#define SECONDS_MAX 9e9

void trace_event_time(struct json_writer *json, const char *key, double seconds)
{
    int64_t ns = (int64_t)((seconds < SECONDS_MAX ? seconds : SECONDS_MAX) * 1e9 + 0.5);
    json_write_key(json, key);
    json_write_int(json, ns / 1000);
    text_append_format(json->out, ".%03d", (int)(ns % 1000));
}

void trace_event_open(struct json_writer *json, const char *kind, int rank, int64_t lane)
{
    json_write_open(json, '{');
    trace_event_string(json, "ph", kind);
    trace_event_int(json, "pid", rank + 1);
    trace_event_int(json, "tid", lane);
}

void trace_event_name(struct json_writer *json, const char *what, int rank, int64_t lane,
                      const char *name)
{
    trace_event_open(json, "M", rank, lane);
    trace_event_string(json, "name", what);
    json_write_key(json, "args");
    json_write_open(json, '{');
    trace_event_string(json, "name", name);
    json_write_close(json, '}');
    json_write_close(json, '}');
}
