/* Events of Chrome's trace format, which ui.perfetto.dev opens: docs/trace.md. Appends to a
 * json_writer's text; what stands around the events is the caller's. */
#ifndef PHASOR_BASE_TRACE_EVENT_H
#define PHASOR_BASE_TRACE_EVENT_H

#include <stdint.h>

#include "base/json_writer.h"

void trace_event_string(struct json_writer *json, const char *key, const char *value);
void trace_event_int(struct json_writer *json, const char *key, int64_t value);

/* Seconds >= 0 as microseconds, to the nanosecond; above 9e9 s they are those. */
void trace_event_time(struct json_writer *json, const char *key, double seconds);

/* An object with "ph", the kind of event, and "pid" and "tid", which a rank (-1: none) and a lane
 * of it are to the viewer. The caller closes it. */
void trace_event_open(struct json_writer *json, const char *kind, int rank, int64_t lane);

/* What the viewer calls them: `what` is "process_name" or "thread_name". */
void trace_event_name(struct json_writer *json, const char *what, int rank, int64_t lane,
                      const char *name);

#endif
