/* What an INT4 backup does to a model's predictions, for the page of phasor report. */
#ifndef PHASOR_CLI_REPORT_QUALITY_H
#define PHASOR_CLI_REPORT_QUALITY_H

#include <stdbool.h>
#include <stdio.h>

/* A file of bench_quantize (bench/README.md), borrowed by who writes. */
struct report_quality;

/* False where it cannot be read or is none: told on standard error. */
bool report_quality_open(struct report_quality **out, const char *path);
void report_quality_close(struct report_quality *quality); /* NULL is allowed */

/* A row for each scheme of backups. */
void report_put_quality(FILE *file, const struct report_quality *quality);

#endif
