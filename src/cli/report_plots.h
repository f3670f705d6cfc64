/* The pictures of phasor report as files of their own: SVG. */
#ifndef PHASOR_CLI_REPORT_PLOTS_H
#define PHASOR_CLI_REPORT_PLOTS_H

#include "bench_results.h"
#include "report_trace.h"

/* Into the folder, which is made if need be: "times-1-MODEL-256-64.svg" for each model, by its
 * number, and scenario; "errors.svg" of predictions where there are any; "parts.svg" of what
 * each part is worth, where all of them ran; and of the trace, unless it is NULL, "trace.svg". What
 * is there of these is made anew, unless it is no picture of phasor's. `path` is of the results.
 * False: told on standard error. */
bool report_plots_write(const char *folder, const struct bench_results *results, const char *path,
                        const struct report_trace *trace);

#endif
