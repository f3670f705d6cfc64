/* The page of phasor report: results of phasor bench as pictures. One file of HTML with them
 * within.
 */
#ifndef PHASOR_CLI_REPORT_PAGE_H
#define PHASOR_CLI_REPORT_PAGE_H

#include <stdio.h>

#include "bench_results.h"
#include "report_quality.h"
#include "report_trace.h"

/* What every page begins with. */
#define REPORT_PAGE_HEAD                                                                           \
    "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>phasor bench: "

/* False where memory is short: told on standard error. Other failures are those of `file`. `path`
 * is of the results, for the commands that the page names. Beside them, or NULL: the `trace` of a
 * run, and the `quality` of backups. */
bool report_page_write(FILE *file, const struct bench_results *results, const char *path,
                       const struct report_trace *trace, const struct report_quality *quality);

#endif
