/* A run from prefill to decode as a picture, for the page of phasor report: what each rank did
 * when. */
#ifndef PHASOR_CLI_REPORT_TRACE_H
#define PHASOR_CLI_REPORT_TRACE_H

#include <stdbool.h>
#include <stdio.h>

/* A file of phasor run --trace (docs/trace.md), borrowed by who draws. */
struct report_trace;

/* False where it cannot be read, is none, or no decode comes behind its prefill: told on standard
 * error. */
bool report_trace_open(struct report_trace **out, const char *path);
void report_trace_close(struct report_trace *trace); /* NULL is allowed */

/* The last pass of prefill before the first of decode, what changes beside it, and the beginning of
 * decode: a row for each lane of the trace. False where memory is short: told on standard error. */
bool report_put_trace(FILE *file, const struct report_trace *trace);

/* The same as a file of its own. */
bool report_plot_trace(FILE *file, const struct report_trace *trace);

#endif
