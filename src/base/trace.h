/* What ran when: spans of time on lanes, one lane for each thread that works.
 *
 * A thread says once which lane is its own; whatever it runs then may add spans, without knowing
 * where they go. Spans of a lane may lie within one another, and do not overlap otherwise. Nothing
 * is kept before trace_start. What there is no room for is left out and counted. Any thread.
 */
#ifndef PHASOR_BASE_TRACE_H
#define PHASOR_BASE_TRACE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

struct trace;
struct trace_lane;

struct trace_span {
    const char *name;  /* of static storage */
    double begin, end; /* by system_seconds */
    int64_t layer;     /* of the model; -1: none */
    uint64_t bytes;    /* read or moved; 0: not told */
    int stage;         /* 0: none */
};

enum status trace_create(struct trace **out, struct error *err) MUST_CHECK;
void trace_destroy(struct trace *trace); /* after the threads of its lanes; NULL is allowed */

/* Forgets what was kept, and keeps from here on at most `span_max` spans of all lanes together. */
void trace_start(struct trace *trace, int64_t span_max);
void trace_stop(struct trace *trace);

/* A lane of a rank (-1: of none), as long as the trace. NULL without a trace, or without memory for
 * it: then its thread adds nothing. `name` is of static storage. */
struct trace_lane *trace_lane_add(struct trace *trace, int rank, const char *name);

/* ---- For a thread that works -----------------------------------------------------------------
 */

/* The thread's, from here on (NULL: none); returns the one before. */
struct trace_lane *trace_lane_use(struct trace_lane *lane);

/* When a span begins; 0 where none is kept. */
double trace_begin(void);

/* It began at `begin` and ends now, or at `end`; 0 adds nothing. */
void trace_add(double begin, const char *name, uint64_t bytes);
void trace_add_until(double begin, double end, const char *name, uint64_t bytes);

/* What the next spans of this thread belong to. */
void trace_stage(int stage, int64_t layer);
void trace_layer(int64_t layer);

/* What they belong to now. */
struct trace_place {
    int stage;
    int64_t layer;
};
struct trace_place trace_place(void);

/* Who runs work that he does not know adds its span by the name and the bytes that the work gives
 * itself within, or else by his own name; not at all where the name is "". */
void trace_name(const char *name);
void trace_bytes(uint64_t more);
void trace_add_named(double begin, const char *name);

/* ---- For who looks --------------------------------------------------------------------------- */

/* Lanes in the order of their ranks, those of none first, and spans in the order of their ends. */
struct trace_lane_view {
    int rank;
    const char *name;
    const struct trace_span *spans; /* [span_count] */
    int64_t span_count;
};
void trace_look(struct trace *trace,
                void (*look)(void *context, const struct trace_lane_view *lane), void *context);

/* Spans that were left out, and when the first of them ended; 0: none was. */
int64_t trace_left_out(struct trace *trace, double *since);

#endif
